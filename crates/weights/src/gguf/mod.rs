//! Writes a checkpoint as one GGUF file, the format of llama.cpp, so that both can be measured on the same weights.
//!
//! Text models only, without a vocabulary: such a file runs on token ids. Architectures `kimi-linear` and `kimi-k3`, tensor
//! names and metadata as llama.cpp reads them; the container is GGUF version 3 (its `docs/gguf.md`).

mod block;
mod container;
mod metadata;
mod tensors;

use std::path::Path;

use perilune_config::ModelConfig;

pub use block::GgufFormat;

use crate::{Checkpoint, WeightsError};

/// Writes the model as GGUF; matrices in `format`, experts that are packed as MXFP4 stay so.
///
/// # Errors
/// `Gguf` where the architecture cannot be expressed; `Io`; those of reading the checkpoint.
pub fn write_gguf(
    checkpoint: &Checkpoint<'_>,
    config: &ModelConfig,
    (format, path): (GgufFormat, &Path),
) -> Result<(), WeightsError> {
    let arch = metadata::architecture(config)?;
    let metadata = metadata::metadata(config, arch);
    let job = tensors::Job { checkpoint, config, format, arch };
    let tensors = tensors::tensors(&job);
    container::write(path, &metadata, &tensors)
}
