//! The generated sources: running the emitter of `kernels-dsl` and reading what it wrote.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use serde_json::Value;

use super::options::{Family, Options, Which};
use crate::process::{cargo, run};

/// One generated source.
pub(super) struct Source {
    /// Unique within its family.
    pub(super) name: String,
    pub(super) family: Family,
    /// Where it lies.
    pub(super) path: PathBuf,
    pub(super) text: String,
    /// What the emitter says about it: `entry`, `units`, `shared_bytes`, the layout of arguments and more.
    pub(super) facts: Value,
}

/// Runs the emitter into the output folder and reads every source of the families asked for, sorted by name.
///
/// # Errors
/// Where the emitter fails or its index cannot be read.
pub(super) fn emit(options: &Options) -> Result<Vec<Source>> {
    let folder = options.out.as_path();
    let emitter: &[&str] = match options.which {
        Which::Catalogue => {
            &["--package", "perilune-kernels-dsl", "--features", "compile", "--bin", "emit-kernels", "--"]
        }
        Which::Checks => &["--package", "perilune-gpu-checks", "--features", "emulator", "--", "kernels"],
    };
    let mut command = cargo(&["run", "--release", "--quiet"]);
    command.args(emitter).arg("--out").arg(folder);
    for model in &options.models {
        command.arg("--model").arg(fs::canonicalize(model).with_context(|| model.display().to_string())?);
    }
    run(command)?;
    let mut sources = Vec::new();
    for family in &options.families() {
        let index = folder.join(format!("{}.json", family.name()));
        let text = fs::read_to_string(&index).with_context(|| index.display().to_string())?;
        let list: Vec<Value> = serde_json::from_str(&text).with_context(|| index.display().to_string())?;
        for facts in list {
            sources.push(read(folder, *family, facts)?);
        }
    }
    sources.sort_by(|a, b| (a.family.name(), &a.name).cmp(&(b.family.name(), &b.name)));
    Ok(sources)
}

fn read(folder: &Path, family: Family, facts: Value) -> Result<Source> {
    let field = |name: &str| facts[name].as_str().map(str::to_owned).with_context(|| format!("a kernel has no {name}"));
    let (name, path) = (field("name")?, folder.join(field("source")?));
    let text = fs::read_to_string(&path).with_context(|| path.display().to_string())?;
    Ok(Source { name, family, path, text, facts })
}
