//! What can go wrong between text and tokens.

use std::path::PathBuf;

use perilune_config::ConfigError;
use perilune_tensor::TokenId;

/// A vocabulary that cannot be used, or a request that cannot be rendered or decoded.
#[derive(Debug, thiserror::Error)]
pub enum TokenizerError {
    /// A file could not be read.
    #[error("cannot read {path}: {source}")]
    Io {
        /// The file or directory.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// The directory holds no vocabulary, or several.
    #[error("{dir} must hold `tiktoken.model` or exactly one `*.tiktoken` file; it holds {found} of the latter")]
    NoVocabulary {
        /// The checkpoint's directory.
        dir: PathBuf,
        /// How many `*.tiktoken` files it holds.
        found: usize,
    },
    /// A line of the vocabulary file is malformed.
    #[error("vocabulary line {line}: {reason}")]
    Line {
        /// Line number, from 1.
        line: usize,
        /// What is wrong with it.
        reason: String,
    },
    /// The vocabulary as a whole cannot be used.
    #[error("vocabulary: {reason}")]
    Vocabulary {
        /// What is wrong with it.
        reason: String,
    },
    /// The checkpoint's configuration files cannot be used.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// A token id beyond the vocabulary.
    #[error("token id {id} is outside the vocabulary of {vocab_size} tokens")]
    UnknownToken {
        /// The id.
        id: TokenId,
        /// Number of ids, special slots included.
        vocab_size: usize,
    },
    /// The vocabulary has the control tokens of no known chat format.
    #[error("this checkpoint has no chat format: its vocabulary names neither {xtml} nor {im}")]
    NoChatFormat {
        /// K3's control tokens.
        xtml: &'static str,
        /// The control tokens of Kimi-Linear and K2.
        im: &'static str,
    },
    /// A message cannot be rendered in the checkpoint's chat format.
    #[error("message {index}: {reason}")]
    Message {
        /// Position in the conversation, from 0.
        index: usize,
        /// The rule it breaks.
        reason: &'static str,
    },
    /// The conversation asks for something the checkpoint's chat format cannot express.
    #[error("`{field}` cannot be expressed in this checkpoint's chat format: {reason}")]
    Inexpressible {
        /// The part of the conversation.
        field: &'static str,
        /// Why not.
        reason: &'static str,
    },
    /// A stop string is empty, which would match everywhere.
    #[error("stop string {index} is empty; a stop string needs at least one character")]
    EmptyStop {
        /// Position among the stop strings, from 0.
        index: usize,
    },
}
