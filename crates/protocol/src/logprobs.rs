//! Log-probabilities in the shapes of OpenAI (generated tokens) and vLLM (prompt tokens).
//!
//! Every value passes through [`floored`], since JSON has no NaN and no infinity.

use schemars::JsonSchema;
use serde::Serialize;
use serde_json::{Map, Value};

/// The least log-probability reported: what an impossible token gets.
pub const LOGPROB_FLOOR: f32 = -9999.0;

/// A log-probability fit for JSON: at least [`LOGPROB_FLOOR`], which NaN becomes too.
pub fn floored(logprob: f32) -> f32 {
    if logprob >= LOGPROB_FLOOR { logprob.min(0.0) } else { LOGPROB_FLOOR }
}

/// `choices[].logprobs` of chat.
#[derive(Debug, Clone, PartialEq, Default, Serialize, JsonSchema)]
pub struct ChatLogprobs {
    /// One entry per generated token, in order.
    pub content: Vec<TokenLogprob>,
}

/// A generated token.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct TokenLogprob {
    /// Its text; bytes that are no characters by themselves show as U+FFFD.
    pub token: String,
    /// Natural logarithm of its probability.
    pub logprob: f32,
    /// Its exact bytes.
    pub bytes: Vec<u8>,
    /// The most likely tokens at its place, most likely first.
    pub top_logprobs: Vec<TopLogprob>,
}

/// A token that might have come.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct TopLogprob {
    /// Its text.
    pub token: String,
    /// Natural logarithm of its probability.
    pub logprob: f32,
    /// Its exact bytes.
    pub bytes: Vec<u8>,
}

/// `choices[].logprobs` of text completions: parallel lists.
#[derive(Debug, Clone, PartialEq, Default, Serialize, JsonSchema)]
pub struct CompletionLogprobs {
    /// Texts of the tokens.
    pub tokens: Vec<String>,
    /// Their log-probabilities; `null` for the first token of an echoed prompt, which nothing precedes.
    pub token_logprobs: Vec<Option<f32>>,
    /// Alternatives by text; where two tokens have one text, the likelier is kept.
    pub top_logprobs: Vec<Option<Map<String, Value>>>,
    /// Where each token starts in `text`, in characters.
    pub text_offset: Vec<usize>,
}

impl CompletionLogprobs {
    /// Puts the entries of `later` behind those of this one.
    pub fn append(&mut self, mut later: CompletionLogprobs) {
        self.tokens.append(&mut later.tokens);
        self.token_logprobs.append(&mut later.token_logprobs);
        self.top_logprobs.append(&mut later.top_logprobs);
        self.text_offset.append(&mut later.text_offset);
    }
}

/// Log-probabilities of a prompt: one entry per token, `null` for the first; each maps token ids to what is known.
pub type PromptLogprobs = Vec<Option<Map<String, Value>>>;

/// What is known of one token at a prompt position.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct PromptLogprob {
    /// Natural logarithm of its probability.
    pub logprob: f64,
    /// 1 for the most likely token; `null` beyond the alternatives asked for.
    pub rank: Option<usize>,
    /// Its text.
    pub decoded_token: Option<String>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_unfit_for_json_passes() {
        for bad in [f32::NAN, f32::NEG_INFINITY, -1e30, -10_000.0] {
            assert_eq!(floored(bad), LOGPROB_FLOOR);
        }
        assert_eq!((floored(-0.5), floored(0.0), floored(f32::INFINITY)), (-0.5, 0.0, 0.0));
        assert_eq!(serde_json::to_string(&floored(f32::NEG_INFINITY)).unwrap(), "-9999.0");
    }
}
