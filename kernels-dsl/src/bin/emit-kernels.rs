//! Writes the sources of a catalogue of kernels, and per dialect an index of them, into a folder.
//!
//! `cargo xtask build-kernels` runs it; it knows nothing of compilers.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use perilune_kernels_dsl::catalogue::{Shapes, variants};
use perilune_kernels_dsl::compile::{KernelSource, source};
use perilune_kernels_dsl::{Access, Dialect, ScalarType, Target};
use serde_json::{Value, json};

type Failure = Box<dyn std::error::Error>;

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("emit-kernels: {e}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<(), Failure> {
    let (mut out, mut models) = (None, Vec::new());
    let mut args = std::env::args().skip(1);
    while let Some(name) = args.next() {
        let value = args.next().ok_or_else(|| format!("{name} needs a value"))?;
        match name.as_str() {
            "--out" => out = Some(PathBuf::from(value)),
            "--model" => models.push(Shapes::from_config(&serde_json::from_str(&fs::read_to_string(&value)?)?)?),
            _ => return Err(format!("unknown option `{name}`").into()),
        }
    }
    let out = out.ok_or("--out is missing")?;
    if models.is_empty() {
        models = Shapes::known()?;
    }
    for target in [Target::CUDA, Target::HIP] {
        emit(&out, target, &models)?;
    }
    Ok(())
}

/// All sources for one target, and their index.
fn emit(out: &Path, target: Target, models: &[Shapes]) -> Result<(), Failure> {
    let (folder, extension) = match target.dialect {
        Dialect::Cuda => ("cuda", "cu"),
        Dialect::Hip => ("hip", "hip"),
    };
    fs::create_dir_all(out.join(folder))?;
    let mut index = Vec::new();
    for variant in variants(models, target) {
        let kernel = source(&variant, target)?;
        let file = format!("{folder}/{}.{extension}", kernel.name);
        fs::write(out.join(&file), &kernel.text)?;
        index.push(facts(&kernel, &file));
    }
    fs::write(out.join(format!("{folder}.json")), serde_json::to_string_pretty(&index)?)?;
    Ok(())
}

/// What a launcher must know of a kernel, in the words of the launcher's manifest.
fn facts(kernel: &KernelSource, file: &str) -> Value {
    let abi = &kernel.abi;
    let buffers: Vec<&str> = abi.buffers.iter().map(|b| if *b == Access::Read { "read" } else { "write" }).collect();
    let mut scalars = String::new();
    for group in &abi.scalars {
        let name = match group.scalar_type {
            ScalarType::F32 => "f32",
            ScalarType::U32 => "u32",
            ScalarType::U64 => "u64",
        };
        let _ = write!(scalars, "{}{name}*{}@{}", if scalars.is_empty() { "" } else { " " }, group.count, group.offset);
    }
    json!({
        "name": kernel.name,
        "source": file,
        "entry": kernel.entry,
        "units": kernel.units,
        "plane": kernel.plane,
        "shared_bytes": kernel.shared_bytes,
        "buffers": buffers.join(" "),
        "scalars": scalars,
        "lengths": abi.lengths.map(|l| format!("{}@{}", l.count, l.offset)),
        "info": format!("{} value", abi.info_bytes),
    })
}
