//! What a sequence tells its caller.

use perilune_sampling::TokenLogprobs;
use perilune_tensor::TokenId;

/// One sequence, in order of arrival: a larger id arrived later.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SeqId(pub u64);

impl std::fmt::Display for SeqId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.fmt(f)
    }
}

/// Whether a token belongs to the text or only ends it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TokenRole {
    /// Part of the output.
    Content,
    /// The stop token: counted in [`Usage::completion_tokens`], not to be shown. Nothing but the finish follows.
    Stop,
}

/// Why a sequence ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FinishReason {
    /// A stop token was generated.
    Stop {
        /// Which one.
        token: TokenId,
    },
    /// `max_tokens` or the end of the context was reached.
    Length,
    /// The caller left, or the engine was told to end it.
    Abort,
}

/// Tokens of a sequence that ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Usage {
    /// Tokens of the prompt.
    pub prompt_tokens: usize,
    /// Tokens generated, the stop token included.
    pub completion_tokens: usize,
    /// Prompt tokens that were not computed because a stored prefix had them.
    pub cached_tokens: usize,
    /// Tokens that were drafted and verified.
    pub drafted_tokens: usize,
    /// Drafts that became tokens of the output.
    pub accepted_tokens: usize,
}

/// Something that happened to a sequence.
#[derive(Debug, Clone, PartialEq)]
pub struct Event {
    /// The sequence.
    pub seq: SeqId,
    /// What happened.
    pub kind: EventKind,
}

/// What happened. A sequence ends with exactly one `Finished` or `Corrupt`, after which nothing follows.
#[derive(Debug, Clone, PartialEq)]
pub enum EventKind {
    /// Log-probabilities of all prompt tokens, the first of which has none. Once, before any token.
    PromptLogprobs(Vec<Option<TokenLogprobs>>),
    /// A new token.
    Token {
        /// The token.
        id: TokenId,
        /// Whether it is text or the stop token.
        role: TokenRole,
        /// Where the caller asked for them.
        logprobs: Option<TokenLogprobs>,
    },
    /// The end.
    Finished {
        /// Why.
        reason: FinishReason,
        /// How many tokens.
        usage: Usage,
    },
    /// The end, because the model gave logits that are not finite.
    Corrupt,
}
