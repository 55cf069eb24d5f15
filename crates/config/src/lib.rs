//! Reads a checkpoint's configuration files and refuses what cannot run.

mod error;
mod tokenizer;

pub use error::ConfigError;
pub use tokenizer::{GenerationConfig, TokenizerConfig};
