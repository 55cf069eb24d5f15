//! Writes a checkpoint as one GGUF file, the format of llama.cpp, so that both can be measured on the same weights.
//!
//! Text models only, without their vocabulary: such a file runs on token ids. Architectures `kimi-linear` and `kimi-k3`,
//! tensor names and metadata as llama.cpp reads them; the container is GGUF version 3 (its `docs/gguf.md`).

mod block;
mod container;
mod metadata;
mod tensors;

use std::path::Path;

use perilune_config::ModelConfig;

pub use block::GgufFormat;

use crate::{Checkpoint, WeightsError};

/// What a file says of its tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GgufVocabulary {
    /// Nothing.
    None,
    /// Each has its number as its text: enough for a server, which turns what it generates into text.
    Numbered,
}

/// How a model is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GgufOptions {
    /// What matrices are written as; experts that are packed as MXFP4 stay so.
    pub matrices: GgufFormat,
    /// What the file says of its tokens.
    pub vocabulary: GgufVocabulary,
}

/// Writes the model as GGUF.
///
/// # Errors
/// `Gguf` where the architecture cannot be expressed; `Io`; those of reading the checkpoint.
pub fn write_gguf(
    checkpoint: &Checkpoint<'_>,
    config: &ModelConfig,
    (options, path): (GgufOptions, &Path),
) -> Result<(), WeightsError> {
    let arch = metadata::architecture(config)?;
    let mut all = metadata::metadata(config, arch);
    all.extend(metadata::vocabulary(config, options.vocabulary));
    let job = tensors::Job { checkpoint, config, format: options.matrices, arch };
    let tensors = tensors::tensors(&job);
    container::write(path, &all, &tensors)
}
