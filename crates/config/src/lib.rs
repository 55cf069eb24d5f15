//! Reads a checkpoint's configuration files and refuses what cannot run.

mod draft;
mod error;
mod file;
mod generation;
mod keys;
mod model;
mod tokenizer;

pub use draft::{
    AnchorRow, ConfidenceInput, DraftConfig, DraftFamily, DraftHeads, DraftMask, DraftTaps, MarkovHead, MarkovKind,
    Rotary, TapNorm, TapStream, Yarn,
};
pub use error::ConfigError;
pub use generation::GenerationConfig;
pub use model::{
    ExpertStorage, FfnActivation, FfnKind, HeadKind, KdaDecay, KdaDims, LatentMoe, LatentNorm, LayerKind, MlaDims,
    ModelConfig, MoeDims, OutGateRank, OutputGate, ParameterCount, RouterNorm,
};
pub use tokenizer::{AddedToken, TokenizerConfig};
