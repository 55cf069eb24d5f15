//! Token counts of one request.

use schemars::JsonSchema;
use serde::Serialize;

/// `usage`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, JsonSchema)]
pub struct Usage {
    /// Tokens of the prompt, counted once whatever `n`.
    pub prompt_tokens: usize,
    /// Tokens generated, over all choices, stop tokens included.
    pub completion_tokens: usize,
    /// Their sum.
    pub total_tokens: usize,
    /// Of the prompt tokens.
    pub prompt_tokens_details: PromptTokensDetails,
    /// Of the completion tokens.
    pub completion_tokens_details: CompletionTokensDetails,
}

/// Parts of the prompt tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, JsonSchema)]
pub struct PromptTokensDetails {
    /// Tokens whose state was reused rather than computed.
    pub cached_tokens: usize,
}

/// Parts of the completion tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, JsonSchema)]
pub struct CompletionTokensDetails {
    /// Tokens spent thinking.
    pub reasoning_tokens: usize,
    /// Tokens that had been drafted ahead; absent where nothing was.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub accepted_prediction_tokens: Option<usize>,
    /// Tokens that had been drafted ahead and were not what came. Unlike OpenAI's, they do not count as completion tokens.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rejected_prediction_tokens: Option<usize>,
}

impl Usage {
    /// Usage of a prompt and what was generated from it.
    pub fn new(prompt_tokens: usize, completion_tokens: usize, reasoning_tokens: usize) -> Self {
        Usage {
            prompt_tokens,
            completion_tokens,
            total_tokens: prompt_tokens + completion_tokens,
            prompt_tokens_details: PromptTokensDetails::default(),
            completion_tokens_details: CompletionTokensDetails { reasoning_tokens, ..Default::default() },
        }
    }
}
