//! What can be wrong with a configuration file.

use std::path::PathBuf;

/// A configuration that cannot be read or cannot run.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file could not be read.
    #[error("cannot read {path}: {source}")]
    Io {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// The file is not JSON of the expected shape.
    #[error("{path} is not valid: {reason}")]
    Parse {
        /// The file.
        path: PathBuf,
        /// Where and why.
        reason: String,
    },
    /// A key is missing.
    #[error("`{key}` is missing from {path}")]
    Missing {
        /// The file.
        path: PathBuf,
        /// The key, with its parents.
        key: String,
    },
    /// A key holds a value that cannot run.
    #[error("{path}: `{key}` is {found}; {rule}")]
    Unsupported {
        /// The file.
        path: PathBuf,
        /// The key, with its parents.
        key: String,
        /// The value found.
        found: String,
        /// What is accepted.
        rule: String,
    },
}
