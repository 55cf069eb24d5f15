//! Reads a checkpoint's configuration files and refuses what cannot run.

mod error;
mod model;
mod tokenizer;

pub use error::ConfigError;
pub use model::{
    ExpertStorage, FfnActivation, FfnKind, HeadKind, KdaDecay, KdaDims, LatentMoe, LatentNorm, LayerKind, MlaDims,
    ModelConfig, MoeDims, OutGateRank, OutputGate, ParameterCount, RouterNorm,
};
pub use tokenizer::{AddedToken, GenerationConfig, TokenizerConfig};
