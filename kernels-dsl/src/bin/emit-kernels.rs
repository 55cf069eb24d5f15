//! Writes the sources of a catalogue of kernels, and per dialect an index of them, into a folder.
//!
//! `cargo xtask build-kernels` runs it; it knows nothing of compilers.

use std::fs;
use std::path::PathBuf;
use std::process::ExitCode;

use perilune_kernels_dsl::Target;
use perilune_kernels_dsl::catalogue::{Shapes, variants};
use perilune_kernels_dsl::compile::emit;

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
        emit::write(&out, target, &variants(&models, target))?;
    }
    Ok(())
}
