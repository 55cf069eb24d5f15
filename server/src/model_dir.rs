//! Which checkpoint is meant where none is named: the shipped demo.

use std::path::{Path, PathBuf};

use crate::error::ServerError;

/// Where the demo lies in the repository and in an installation.
const DEMO: &str = "models/demo";

/// The demo's directory: under the working directory, else in the source tree the binary was built from, else beside
/// the binary.
///
/// # Errors
/// `Flag` where it is nowhere.
pub fn default_model() -> Result<PathBuf, ServerError> {
    let source_tree = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let binary = std::env::current_exe().ok().and_then(|exe| exe.parent().map(Path::to_owned));
    let places = [Some(PathBuf::new()), Some(source_tree), binary];
    let found =
        places.into_iter().flatten().map(|place| place.join(DEMO)).find(|dir| dir.join("config.json").is_file());
    found.ok_or_else(|| ServerError::Flag {
        flag: "--model",
        value: "not given".to_owned(),
        rule: format!("no {DEMO} is here to fall back on; name a checkpoint's directory"),
    })
}

/// The directory's name, which the model is served under unless the operator says otherwise.
pub fn model_name(dir: &Path) -> String {
    let full = dir.canonicalize().unwrap_or_else(|_| dir.to_owned());
    full.file_name().map_or_else(|| "perilune".to_owned(), |name| name.to_string_lossy().into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_demo_is_found_and_named() {
        let dir = default_model().unwrap();
        assert!(dir.join("config.json").is_file());
        assert_eq!(model_name(&dir), "demo");
    }
}
