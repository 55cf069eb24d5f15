//! What `POST /v1/chat/completions` answers: one body, or chunks of a stream.

use schemars::JsonSchema;
use serde::Serialize;

use crate::{ChatLogprobs, PromptLogprobs, Usage};

/// A whole answer.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct ChatCompletion {
    /// `chatcmpl-…`.
    pub id: String,
    /// Always `chat.completion`.
    pub object: &'static str,
    /// Seconds since 1970.
    pub created: u64,
    /// The model's name.
    pub model: String,
    /// The choices, by index.
    pub choices: Vec<ChatChoice>,
    /// Token counts.
    pub usage: Usage,
    /// Log-probabilities of the prompt, where asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prompt_logprobs: Option<PromptLogprobs>,
    /// Ids of the prompt, where asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prompt_token_ids: Option<Vec<u32>>,
}

/// One choice of a whole answer.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct ChatChoice {
    /// Its number, from 0.
    pub index: usize,
    /// What the model said.
    pub message: AssistantMessage,
    /// Log-probabilities, where asked for.
    pub logprobs: Option<ChatLogprobs>,
    /// `stop`, `length`, `tool_calls` or `abort`.
    #[schemars(extend("enum" = ["stop", "length", "tool_calls", "abort"]))]
    pub finish_reason: &'static str,
    /// The stop string or stop token that ended it, where one was given.
    pub stop_reason: Option<serde_json::Value>,
    /// Ids generated, where asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub token_ids: Option<Vec<u32>>,
}

/// The message of a choice.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct AssistantMessage {
    /// Always `assistant`.
    pub role: &'static str,
    /// The answer; `null` where there are only tool calls.
    pub content: Option<String>,
    /// The reasoning before it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reasoning_content: Option<String>,
    /// The same once more, where the server is told to say it under both names.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reasoning: Option<String>,
    /// Tool calls.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub tool_calls: Vec<ToolCall>,
}

/// A complete tool call.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct ToolCall {
    /// Its id, unique in the answer.
    pub id: String,
    /// Always `function`.
    #[serde(rename = "type")]
    pub kind: &'static str,
    /// The function.
    pub function: FunctionCall,
}

/// The function of a tool call.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct FunctionCall {
    /// The tool's name.
    pub name: String,
    /// Arguments as JSON text.
    pub arguments: String,
}

/// One chunk of a stream.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct ChatChunk {
    /// The same in every chunk.
    pub id: String,
    /// Always `chat.completion.chunk`.
    pub object: &'static str,
    /// Seconds since 1970, the same in every chunk.
    pub created: u64,
    /// The model's name.
    pub model: String,
    /// At most one choice; none in the last chunk with usage.
    pub choices: Vec<ChatChunkChoice>,
    /// Token counts, where asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub usage: Option<Usage>,
    /// Log-probabilities of the prompt, in the first chunk, where asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prompt_logprobs: Option<PromptLogprobs>,
    /// Ids of the prompt, in the first chunk, where asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prompt_token_ids: Option<Vec<u32>>,
}

/// What a chunk adds to a choice.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct ChatChunkChoice {
    /// The choice's number.
    pub index: usize,
    /// The addition.
    pub delta: ChatDelta,
    /// Log-probabilities of the tokens behind it, where asked for.
    pub logprobs: Option<ChatLogprobs>,
    /// As of a whole answer; non-null exactly once per choice, in its last chunk.
    #[schemars(extend("enum" = ["stop", "length", "tool_calls", "abort", "error", null]))]
    pub finish_reason: Option<&'static str>,
    /// With `finish_reason`: the stop string or token that ended it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stop_reason: Option<serde_json::Value>,
    /// Ids of the tokens behind it, where asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub token_ids: Option<Vec<u32>>,
}

/// Additions to a message.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, JsonSchema)]
pub struct ChatDelta {
    /// `assistant`, in the first chunk of a choice.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub role: Option<&'static str>,
    /// More of the answer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub content: Option<String>,
    /// More of the reasoning.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reasoning_content: Option<String>,
    /// The same once more, where the server is told to say it under both names.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reasoning: Option<String>,
    /// Tool calls that start or go on.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub tool_calls: Vec<ToolCallDelta>,
}

/// An addition to a tool call.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct ToolCallDelta {
    /// The call's number within the message, from 0.
    pub index: usize,
    /// Its id, in its first delta.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
    /// `function`, in its first delta.
    #[serde(rename = "type", skip_serializing_if = "Option::is_none")]
    pub kind: Option<&'static str>,
    /// Name and arguments.
    pub function: FunctionDelta,
}

/// An addition to a tool call's function.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct FunctionDelta {
    /// The whole name, in the call's first delta.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// More of the JSON text of the arguments.
    pub arguments: String,
}
