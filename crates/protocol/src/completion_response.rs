//! What `POST /v1/completions` answers; one shape serves the whole body and the chunks of a stream.

use schemars::JsonSchema;
use serde::Serialize;

use crate::{CompletionLogprobs, PromptLogprobs, Usage};

/// A whole answer, or one chunk.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct Completion {
    /// `cmpl-…`, the same in every chunk.
    pub id: String,
    /// Always `text_completion`.
    pub object: &'static str,
    /// Seconds since 1970.
    pub created: u64,
    /// The model's name.
    pub model: String,
    /// The choices: `n` per prompt, prompts in their order.
    pub choices: Vec<CompletionChoice>,
    /// Token counts; in a stream only where asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub usage: Option<Usage>,
}

/// A choice, or what a chunk adds to it.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct CompletionChoice {
    /// Its number: prompt number times `n` plus the number within the prompt.
    pub index: usize,
    /// Text.
    pub text: String,
    /// Log-probabilities, where asked for.
    pub logprobs: Option<CompletionLogprobs>,
    /// `stop`, `length` or `abort`; in a stream non-null exactly once, in the choice's last chunk.
    #[schemars(extend("enum" = ["stop", "length", "abort", "error", null]))]
    pub finish_reason: Option<&'static str>,
    /// The stop string or stop token that ended it, where one was given.
    pub stop_reason: Option<serde_json::Value>,
    /// Ids generated, where asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub token_ids: Option<Vec<u32>>,
    /// Log-probabilities of the prompt, where asked for; in a stream in the choice's first chunk.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prompt_logprobs: Option<PromptLogprobs>,
    /// Ids of the prompt, where asked for; in a stream in the choice's first chunk.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prompt_token_ids: Option<Vec<u32>>,
}
