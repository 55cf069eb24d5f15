//! Kernels from a folder that `cargo xtask build-kernels` wrote.

use std::path::{Path, PathBuf};

use perilune_backend::BackendError;
use perilune_kernels_dsl::{Target, Variant};
use sha2::{Digest, Sha256};

use crate::{Artifact, Kernels, Manifest, ManifestError};

/// A folder of binaries with their manifest, read for one architecture.
#[derive(Debug, Clone)]
pub struct Folder {
    path: PathBuf,
    architecture: String,
    manifest: Manifest,
}

/// A folder that holds no kernels for a device.
#[derive(Debug, thiserror::Error)]
pub enum FolderError {
    /// The manifest is not there or cannot be read.
    #[error("{}: {source}; `cargo xtask build-kernels --out DIR` writes such a folder", .file.display())]
    Unread {
        /// The manifest.
        file: PathBuf,
        /// What the system says.
        source: std::io::Error,
    },
    /// The manifest is not whole, or not one of ours.
    #[error("{}: {source}", .file.display())]
    Torn {
        /// The manifest.
        file: PathBuf,
        /// What is wrong.
        source: ManifestError,
    },
    /// Nothing was built for the device.
    #[error(
        "{}: no kernels for {wanted}, which is this device's architecture; there are some for {}. \
         `cargo xtask build-kernels --arch {wanted} --out DIR` builds them", .file.display(), list(.built)
    )]
    Architecture {
        /// The manifest.
        file: PathBuf,
        /// The device's architecture.
        wanted: String,
        /// Architectures that have kernels.
        built: Vec<String>,
    },
}

fn list(names: &[String]) -> String {
    if names.is_empty() { "none".into() } else { names.join(", ") }
}

impl Folder {
    /// Reads the manifest; binaries are read when they are asked for.
    ///
    /// # Errors
    /// Where there is no manifest, it cannot be read, or it has nothing for the architecture.
    pub fn open(path: &Path, architecture: &str) -> Result<Folder, FolderError> {
        let file = path.join("manifest.json");
        let text = match std::fs::read_to_string(&file) {
            Ok(text) => text,
            Err(source) => return Err(FolderError::Unread { file, source }),
        };
        match Manifest::parse(&text, architecture) {
            Err(source) => Err(FolderError::Torn { file, source }),
            Ok(manifest) if manifest.is_empty() => {
                let (wanted, built) = (architecture.to_owned(), manifest.architectures().to_vec());
                Err(FolderError::Architecture { file, wanted, built })
            }
            Ok(manifest) => Ok(Folder { path: path.to_owned(), architecture: architecture.to_owned(), manifest }),
        }
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
        let device = |what: String| BackendError::Device(format!("{}: {what}", file.display()));
        let code = std::fs::read(&file).map_err(|e| device(e.to_string()))?;
        // A launch with the arguments of another build would write anywhere.
        if hex(&Sha256::digest(&code)) != entry.sha256 {
            return Err(device("not the binary that its manifest describes: build the kernels again".into()));
        }
        Ok(Artifact { entry: entry.clone(), code: code.into() })
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use perilune_kernels_dsl::norm::RmsNormProblem;

    const CODE: [u8; 3] = *b"abc";
    const CODE_SHA256: &str = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";

    fn built() -> (tempfile::TempDir, Variant) {
        let dir = tempfile::tempdir().unwrap();
        let kernel = RmsNormProblem { rows: 1, width: 64 }.plan(Target::CUDA).kernel();
        let manifest = format!(
            r#"{{"version": 1, "kernels": [{{"name": "{kernel}", "entry": "e", "units": 32, "plane": 32, "shared_bytes": 0,
            "buffers": "", "scalars": "", "info": "0 value",
            "binaries": {{"sm_90a": {{"file": "norm.cubin", "sha256": "{CODE_SHA256}"}}}}}}]}}"#
        );
        std::fs::write(dir.path().join("manifest.json"), manifest).unwrap();
        std::fs::write(dir.path().join("norm.cubin"), CODE).unwrap();
        (dir, kernel)
    }

    #[test]
    fn finds_what_was_built_and_says_what_was_not() {
        let (dir, kernel) = built();
        let folder = Folder::open(dir.path(), "sm_90a").unwrap();
        assert_eq!(*folder.find(&kernel, Target::CUDA).unwrap().code, CODE);
        let other = RmsNormProblem { rows: 1, width: 63 }.plan(Target::CUDA).kernel();
        let error = folder.find(&other, Target::CUDA).unwrap_err().to_string();
        assert!(error.contains(&other.name()) && error.contains("sm_90a"), "{error}");
    }

    #[test]
    fn another_architecture_is_named_with_those_that_were_built() {
        let (dir, _) = built();
        let error = Folder::open(dir.path(), "gfx942").unwrap_err().to_string();
        assert!(error.contains("no kernels for gfx942") && error.contains("for sm_90a. "), "{error}");
        assert!(error.contains("--arch gfx942"), "{error}");
    }

    #[test]
    fn a_foreign_binary_is_not_launched() {
        let (dir, kernel) = built();
        std::fs::write(dir.path().join("norm.cubin"), b"abd").unwrap();
        let error = Folder::open(dir.path(), "sm_90a").unwrap().find(&kernel, Target::CUDA).unwrap_err().to_string();
        assert!(error.contains("norm.cubin") && error.contains("build the kernels again"), "{error}");
        std::fs::remove_file(dir.path().join("norm.cubin")).unwrap();
        let error = Folder::open(dir.path(), "sm_90a").unwrap().find(&kernel, Target::CUDA).unwrap_err().to_string();
        assert!(error.contains("norm.cubin"), "{error}");
    }

    #[test]
    fn a_missing_folder_and_a_torn_manifest() {
        let (dir, _) = built();
        let error = Folder::open(&dir.path().join("nowhere"), "sm_90a").unwrap_err().to_string();
        assert!(error.contains("nowhere") && error.contains("build-kernels"), "{error}");
        let file = dir.path().join("manifest.json");
        let whole = std::fs::read_to_string(&file).unwrap();
        std::fs::write(&file, &whole[..whole.len() / 2]).unwrap();
        let error = Folder::open(dir.path(), "sm_90a").unwrap_err().to_string();
        assert!(error.contains("manifest.json") && error.contains("manifest:"), "{error}");
    }
}
