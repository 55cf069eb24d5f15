//! Kernels from a folder that `cargo xtask build-kernels` wrote.

use std::path::{Path, PathBuf};

use perilune_backend::BackendError;
use perilune_kernels_dsl::{Target, Variant};

use crate::{Artifact, Kernels, Manifest};

/// A folder of binaries with their manifest, read for one architecture.
#[derive(Debug)]
pub struct Folder {
    path: PathBuf,
    architecture: String,
    manifest: Manifest,
}

impl Folder {
    /// Reads the manifest; binaries are read when they are asked for.
    ///
    /// # Errors
    /// `Device` where there is no manifest, it cannot be read, or it has nothing for the architecture.
    pub fn open(path: &Path, architecture: &str) -> Result<Folder, BackendError> {
        let file = path.join("manifest.json");
        let device = |what: String| BackendError::Device(format!("{}: {what}", file.display()));
        let text = std::fs::read_to_string(&file).map_err(|e| device(e.to_string()))?;
        let manifest = Manifest::parse(&text, architecture).map_err(|e| device(e.to_string()))?;
        if manifest.is_empty() {
            return Err(device(format!("no kernels for {architecture}; build them with --arch {architecture}")));
        }
        Ok(Folder { path: path.to_owned(), architecture: architecture.to_owned(), manifest })
    }

    /// The manifest.
    pub fn manifest(&self) -> &Manifest {
        &self.manifest
    }
}

impl Kernels for Folder {
    fn find(&self, variant: &Variant, _target: Target) -> Result<Artifact, BackendError> {
        let name = variant.name();
        let Some(entry) = self.manifest.get(&name) else {
            let what = format!("kernel {name} for {} (not in {})", self.architecture, self.path.display());
            return Err(BackendError::Unsupported { op: "kernel", what });
        };
        let file = self.path.join(&entry.file);
        let code = std::fs::read(&file).map_err(|e| BackendError::Device(format!("{}: {e}", file.display())))?;
        Ok(Artifact { entry: entry.clone(), code: code.into() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use perilune_kernels_dsl::norm::RmsNormProblem;

    #[test]
    fn finds_what_was_built_and_says_what_was_not() {
        let dir = tempfile::tempdir().unwrap();
        let plan = RmsNormProblem { rows: 1, width: 64 }.plan(Target::CUDA);
        let manifest = format!(
            r#"{{"version": 1, "kernels": [{{"name": "{}", "entry": "e", "units": 32, "plane": 32, "shared_bytes": 0,
            "buffers": "", "scalars": "", "info": "0 value", "binaries": {{"sm_90a": {{"file": "norm.cubin"}}}}}}]}}"#,
            plan.kernel()
        );
        std::fs::write(dir.path().join("manifest.json"), manifest).unwrap();
        std::fs::write(dir.path().join("norm.cubin"), [1, 2, 3]).unwrap();
        let folder = Folder::open(dir.path(), "sm_90a").unwrap();
        assert_eq!(*folder.find(&plan.kernel(), Target::CUDA).unwrap().code, [1, 2, 3]);
        let other = RmsNormProblem { rows: 1, width: 63 }.plan(Target::CUDA).kernel();
        let error = folder.find(&other, Target::CUDA).unwrap_err().to_string();
        assert!(error.contains(&other.name()) && error.contains("sm_90a"), "{error}");
        let error = Folder::open(dir.path(), "gfx942").unwrap_err().to_string();
        assert!(error.contains("--arch gfx942"), "{error}");
    }
}
