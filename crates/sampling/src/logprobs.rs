//! Log-probabilities as they are reported to a caller.

use perilune_tensor::TokenId;

/// A token and its log-probability.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct TokenLogprob {
    /// The token.
    pub id: TokenId,
    /// Natural logarithm of its probability under the raw logits; may be negative infinity, never NaN.
    pub logprob: f32,
}

/// The log-probability of the token at one position, and the most likely tokens there.
#[derive(Debug, Clone, PartialEq)]
pub struct TokenLogprobs {
    /// The token that stands at the position.
    pub chosen: TokenLogprob,
    /// As many as were asked for, falling, the lower id first among equals. `chosen` need not be among them.
    pub top: Vec<TokenLogprob>,
}
