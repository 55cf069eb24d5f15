//! `perilune convert`: a checkpoint in another program's format.

use perilune_config::ModelConfig;
use perilune_weights::{Checkpoint, GgufFormat, SafetensorsDir, write_gguf};

use crate::cli::{ConvertArgs, ConvertTo, MatrixFormat};
use crate::error::ServerError;

/// Writes the file.
///
/// # Errors
/// A checkpoint that cannot be read, or not be expressed in the format; `Io`.
pub fn run(args: &ConvertArgs) -> Result<(), ServerError> {
    let config = ModelConfig::from_dir(&args.dir)?;
    let source = SafetensorsDir::open(&args.dir)?;
    let checkpoint = Checkpoint::open(&source, &config)?;
    let format = match args.matrices {
        MatrixFormat::F16 => GgufFormat::F16,
        MatrixFormat::Bf16 => GgufFormat::Bf16,
        MatrixFormat::Q8_0 => GgufFormat::Q8_0,
        MatrixFormat::Q4_0 => GgufFormat::Q4_0,
    };
    match args.to {
        ConvertTo::Gguf => Ok(write_gguf(&checkpoint, &config, (format, &args.out))?),
    }
}
