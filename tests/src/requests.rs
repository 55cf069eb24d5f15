//! Prompts without meaning, and requests that show everything about what follows them.

use perilune_engine::{GenerateRequest, SamplingParams};
use perilune_tensor::TokenId;

/// Some of the tokens 2 to 58, the same for the same `which`.
pub fn text(which: u32, len: usize) -> Vec<TokenId> {
    (0..len as u32).map(|i| TokenId(2 + (i * i + 7 * i * which + which) % 57)).collect()
}

/// A request whose tokens are drawn, always the same way, with log-probabilities.
pub fn drawn_request(prompt: &[TokenId], max_tokens: usize) -> GenerateRequest {
    let params =
        SamplingParams { seed: Some(7), max_tokens: Some(max_tokens), logprobs: Some(3), ..SamplingParams::default() };
    GenerateRequest::new(prompt.to_vec(), params)
}
