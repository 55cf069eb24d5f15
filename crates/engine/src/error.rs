//! What can go wrong before and at the submission of a request.

use perilune_backend::BackendError;
use perilune_sampling::SamplingError;

/// A request that was not accepted. Nothing of it stays in the engine.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SubmitError {
    /// As many requests wait as may wait. Try again later.
    #[error("the queue is full: {max_queued_requests} requests are waiting")]
    QueueFull {
        /// The limit.
        max_queued_requests: usize,
    },
    /// The engine is finishing what it has and takes nothing new.
    #[error("the engine is draining and takes no new requests")]
    Draining,
    /// The engine stopped, in order or after a fault.
    #[error("the engine has stopped: {reason}")]
    Dead {
        /// Why.
        reason: String,
    },
    /// Prompt and output do not fit into the context.
    #[error(
        "the prompt has {prompt} tokens and max_tokens is {max_tokens}: together they exceed the context of {context} tokens"
    )]
    PromptTooLong {
        /// Tokens of the prompt.
        prompt: usize,
        /// Tokens asked for; 1 where the caller set no limit.
        max_tokens: usize,
        /// Tokens that fit, prompt and output together.
        context: usize,
    },
    /// A sampling parameter is out of range.
    #[error(transparent)]
    Invalid(#[from] SamplingError),
    /// There is nothing to continue.
    #[error("the prompt is empty: at least one token is needed")]
    EmptyPrompt,
    /// A prompt token is not in the vocabulary.
    #[error("prompt token {index} has id {id}: ids must be below the vocabulary size, {vocab_size}")]
    UnknownToken {
        /// Its place in the prompt.
        index: usize,
        /// The id.
        id: u32,
        /// The limit.
        vocab_size: usize,
    },
}

/// An engine that could not be set up.
#[derive(Debug, Clone, thiserror::Error)]
pub enum EngineError {
    /// A value of the configuration cannot work.
    #[error("engine configuration: `{field}` is {value}, {rule}")]
    Config {
        /// Field of [`crate::EngineConfig`].
        field: &'static str,
        /// Its value.
        value: usize,
        /// What it must be.
        rule: String,
    },
    /// Memory does not suffice for a single request.
    #[error(
        "not even one request fits: {budget_bytes} bytes are set aside for caches, but one request of {context} tokens needs {needed_bytes}; \
         raise the memory fraction or lower the context length"
    )]
    NoRoom {
        /// Bytes for caches.
        budget_bytes: usize,
        /// Tokens of the request.
        context: usize,
        /// Bytes it needs.
        needed_bytes: usize,
    },
    /// The device refused.
    #[error(transparent)]
    Backend(#[from] BackendError),
    /// The disk tier cannot be had.
    #[error("the disk cache cannot be used: {0}")]
    Disk(String),
    /// The operating system gave no thread.
    #[error("cannot start the engine thread: {0}")]
    Thread(String),
}
