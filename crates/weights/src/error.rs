//! What can be wrong with a checkpoint.

use std::path::PathBuf;

/// A checkpoint that cannot be read, or does not hold the model its configuration describes.
#[derive(Debug, thiserror::Error)]
pub enum WeightsError {
    /// A file could not be read or written.
    #[error("cannot access {path}: {source}")]
    Io {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// A directory holds no checkpoint.
    #[error("{dir} holds neither model.safetensors nor model.safetensors.index.json")]
    NoCheckpoint {
        /// The directory.
        dir: PathBuf,
    },
    /// A file is damaged or cut short.
    #[error("{path} is damaged or incomplete: {reason}")]
    Damaged {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        reason: String,
    },
    /// The index and the files disagree.
    #[error("{path}: {reason}")]
    Index {
        /// The index file.
        path: PathBuf,
        /// What is wrong.
        reason: String,
    },
    /// The model needs a tensor that is not there.
    #[error("tensor `{name}` is missing, expected {expected}")]
    Missing {
        /// Name as it would stand in the checkpoint.
        name: String,
        /// Shape and element types that would fit.
        expected: String,
    },
    /// A tensor is there that the model has no use for.
    #[error("tensor `{name}` ({found}) does not belong to the model that config.json describes")]
    Unexpected {
        /// Name in the checkpoint.
        name: String,
        /// Its shape and element type.
        found: String,
    },
    /// A tensor has another shape or element type than the model needs.
    #[error("tensor `{name}` is {found}, expected {expected}")]
    Mismatch {
        /// Name in the checkpoint.
        name: String,
        /// Its shape and element type.
        found: String,
        /// What fits.
        expected: String,
    },
    /// The model cannot be written as GGUF.
    #[error("this model cannot be written as GGUF: {what}")]
    Gguf {
        /// What the format's architectures demand.
        what: &'static str,
    },
    /// A tensor holds a value the model cannot compute with.
    #[error("tensor `{name}` holds {found} at element {element}; {rule}")]
    Value {
        /// Name in the checkpoint.
        name: String,
        /// Index of the element in row-major order.
        element: usize,
        /// The value.
        found: String,
        /// What is accepted.
        rule: &'static str,
    },
}
