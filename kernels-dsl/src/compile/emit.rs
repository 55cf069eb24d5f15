//! Sources of some kernels in a folder, with an index of what a launcher must know of each.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use serde_json::{Value, json};

use super::{KernelSource, source};
use crate::{Access, Dialect, ScalarType, Target, Variant};

/// Writes the sources of `variants` for a target, `FOLDER/cuda/NAME.cu` or `FOLDER/hip/NAME.hip`, and their index beside
/// them, `cuda.json` or `hip.json`.
///
/// # Errors
/// Names the kernel that cannot be compiled, or what the system says of a file.
pub fn write(folder: &Path, target: Target, variants: &[Variant]) -> Result<(), Box<dyn std::error::Error>> {
    let (family, extension) = match target.dialect {
        Dialect::Cuda => ("cuda", "cu"),
        Dialect::Hip => ("hip", "hip"),
    };
    fs::create_dir_all(folder.join(family))?;
    let mut index = Vec::new();
    for variant in variants {
        let kernel = source(variant, target)?;
        let file = format!("{family}/{}.{extension}", kernel.name);
        fs::write(folder.join(&file), &kernel.text)?;
        index.push(facts(&kernel, &file));
    }
    fs::write(folder.join(format!("{family}.json")), serde_json::to_string_pretty(&index)?)?;
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
