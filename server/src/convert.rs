//! `perilune convert`: a checkpoint in another program's format.

use perilune_config::ModelConfig;
use perilune_weights::{Checkpoint, GgufFormat, GgufOptions, GgufVocabulary, SafetensorsDir, write_gguf};

use crate::cli::{ConvertArgs, ConvertTo, MatrixFormat, Vocabulary};
use crate::error::ServerError;

/// Writes the file.
///
/// # Errors
/// A checkpoint that cannot be read, or not be expressed in the format; `Io`.
pub fn run(args: &ConvertArgs) -> Result<(), ServerError> {
    let config = ModelConfig::from_dir(&args.dir)?;
    let source = SafetensorsDir::open(&args.dir)?;
    let checkpoint = Checkpoint::open(&source, &config)?;
    let matrices = match args.matrices {
        MatrixFormat::F16 => GgufFormat::F16,
        MatrixFormat::Bf16 => GgufFormat::Bf16,
        MatrixFormat::Q8_0 => GgufFormat::Q8_0,
        MatrixFormat::Q4_0 => GgufFormat::Q4_0,
    };
    let vocabulary = match args.vocabulary {
        Vocabulary::None => GgufVocabulary::None,
        Vocabulary::Numbered => GgufVocabulary::Numbered,
    };
    let options = GgufOptions { matrices, vocabulary };
    match args.to {
        ConvertTo::Gguf => Ok(write_gguf(&checkpoint, &config, (options, &args.out))?),
    }
}
