//! The body of `POST /v1/chat/completions`.

use schemars::JsonSchema;

use super::conversation::{DeclaredTool, ToolChoiceForm, WrittenMessage};
use super::forms::ResponseFormatForm;
use super::sampling::SamplingBody;

/// A chat completion to make. Unknown fields are ignored; `null` means absent.
#[derive(Debug, JsonSchema)]
pub struct ChatBody {
    /// The model's name; the one served where absent.
    pub model: Option<String>,
    /// The conversation.
    #[schemars(length(min = 1))]
    pub messages: Vec<WrittenMessage>,
    /// Tools available from the start.
    #[schemars(length(max = 1024))]
    pub tools: Option<Vec<DeclaredTool>>,
    /// Which of them to call.
    pub tool_choice: Option<ToolChoiceForm>,
    /// Whether an answer may hold several calls; true where absent.
    pub parallel_tool_calls: Option<bool>,
    /// The format of the answer.
    pub response_format: Option<ResponseFormatForm>,
    /// Thinking and its effort, as Kimi's API has it.
    pub thinking: Option<ThinkingBody>,
    /// Effort, as OpenAI's API has it: none, minimal, low, medium, high, xhigh or max.
    pub reasoning_effort: Option<String>,
    /// Effort, as templates have it.
    pub chat_template_kwargs: Option<ChatTemplateOptions>,
    /// Return the reasoning; true where absent.
    pub include_reasoning: Option<bool>,
    /// Return it apart from the content; true where absent.
    pub separate_reasoning: Option<bool>,
    /// Return log-probabilities.
    pub logprobs: Option<bool>,
    /// With so many alternatives for each token; needs `logprobs`.
    #[schemars(range(min = 0, max = 20))]
    pub top_logprobs: Option<u32>,
    /// Most tokens to generate, reasoning included.
    #[schemars(range(min = 1))]
    pub max_completion_tokens: Option<u32>,
    /// The older name of `max_completion_tokens`, which wins.
    #[schemars(range(min = 1))]
    pub max_tokens: Option<u32>,
    /// Answer with server-sent events.
    pub stream: Option<bool>,
    /// What such a stream reports.
    pub stream_options: Option<StreamOptions>,
    /// Sampling and stopping.
    #[schemars(flatten)]
    pub sampling: SamplingBody,
}

/// Thinking and its effort.
#[derive(Debug, JsonSchema)]
pub struct ThinkingBody {
    /// `enabled` or `disabled`.
    #[schemars(rename = "type")]
    pub kind: Option<String>,
    /// Only `all`: earlier reasoning is kept.
    pub keep: Option<String>,
    /// none, minimal, low, medium, high, xhigh or max.
    pub effort: Option<String>,
}

/// Effort, as templates have it.
#[derive(Debug, JsonSchema)]
pub struct ChatTemplateOptions {
    /// Whether to think.
    pub thinking: Option<bool>,
    /// none, minimal, low, medium, high, xhigh or max.
    pub thinking_effort: Option<String>,
}

/// What a stream reports.
#[derive(Debug, JsonSchema)]
pub struct StreamOptions {
    /// A last chunk with token counts.
    pub include_usage: Option<bool>,
    /// Token counts in every chunk, with `include_usage`.
    pub continuous_usage_stats: Option<bool>,
}
