//! What a request's stream delivers.

use perilune_sampling::TokenLogprobs;
use perilune_scheduler::{EventKind, FinishReason, TokenRole, Usage};
use perilune_tensor::TokenId;

/// One item of a [`crate::TokenStream`]. `Finished` or `Failed` is the last, exactly once.
#[derive(Debug, Clone, PartialEq)]
pub enum TokenEvent {
    /// Log-probabilities of all prompt tokens, the first of which has none. Once, before any token, where asked for.
    PromptLogprobs(Vec<Option<TokenLogprobs>>),
    /// A new token. The stop token is delivered, too, with [`TokenRole::Stop`]: it counts in the usage, and its text is
    /// not part of the output.
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
    /// The end, because of a fault.
    Failed {
        /// Whose it is.
        fault: Fault,
        /// A sentence for the caller.
        message: String,
    },
}

/// Whose fault it is that a generation failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// The request's: what its grammar demands cannot be written.
    Request,
    /// The request's: what its grammar demands takes more than a limit allows.
    Limit,
    /// The engine's, the device's or the model's.
    Engine,
}

impl TokenEvent {
    /// Whether nothing follows.
    pub fn is_last(&self) -> bool {
        matches!(self, TokenEvent::Finished { .. } | TokenEvent::Failed { .. })
    }
}

impl From<EventKind> for TokenEvent {
    fn from(kind: EventKind) -> Self {
        match kind {
            EventKind::PromptLogprobs(list) => TokenEvent::PromptLogprobs(list),
            EventKind::Token { id, role, logprobs } => TokenEvent::Token { id, role, logprobs },
            EventKind::Finished { reason, usage } => TokenEvent::Finished { reason, usage },
            EventKind::Corrupt => TokenEvent::Failed {
                fault: Fault::Engine,
                message: "the model produced logits that are not finite for this request; it was ended".into(),
            },
        }
    }
}
