//! OpenAI's `POST /v1/responses`.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde_json::Value;

use super::conversation::{DeclaredFunction, ToolChoiceForm};
use super::sampling::SamplingBody;
use crate::{ResponseStatus, TokenLogprob};

/// A response to make; nothing is kept, so the whole conversation comes in `input`. Unknown fields are ignored; `null`
/// means absent.
#[derive(Debug, JsonSchema)]
pub struct ResponsesBody {
    /// The model's name; the one served where absent.
    pub model: Option<String>,
    /// The conversation.
    pub input: InputForm,
    /// Instructions before it.
    pub instructions: Option<String>,
    /// Most tokens to generate, reasoning included.
    #[schemars(range(min = 1))]
    pub max_output_tokens: Option<u32>,
    /// Tools.
    #[schemars(length(max = 1024))]
    pub tools: Option<Vec<ResponsesTool>>,
    /// Which of them to call.
    pub tool_choice: Option<ToolChoiceForm>,
    /// Whether there may be several calls; true where absent.
    pub parallel_tool_calls: Option<bool>,
    /// The format of the answer.
    pub text: Option<ResponsesText>,
    /// Thinking.
    pub reasoning: Option<ResponsesReasoning>,
    /// Return log-probabilities with so many alternatives for each token.
    #[schemars(range(min = 0, max = 20))]
    pub top_logprobs: Option<u32>,
    /// `message.output_text.logprobs` asks for log-probabilities.
    pub include: Option<Vec<String>>,
    /// Answer with server-sent events.
    pub stream: Option<bool>,
    /// Comes back as it was sent.
    pub metadata: Option<Value>,
    /// Comes back as it was sent.
    pub user: Option<Value>,
    /// Only `disabled`: nothing is cut silently.
    pub truncation: Option<String>,
    /// Only `false`: nothing is kept.
    pub background: Option<bool>,
    /// Refused: nothing is kept.
    pub previous_response_id: Option<()>,
    /// Refused: nothing is kept.
    pub conversation: Option<()>,
    /// Refused: nothing is kept.
    pub prompt: Option<()>,
    /// Sampling and stopping; `n` can only be 1.
    #[schemars(flatten)]
    pub sampling: SamplingBody,
}

/// The user's words, or items: messages, reasoning, calls and their results.
#[derive(Debug, JsonSchema)]
#[schemars(untagged)]
pub enum InputForm {
    /// One text.
    Text(String),
    /// Items.
    Items(#[schemars(length(min = 1))] Vec<InputItem>),
}

/// An item of the conversation, with its `type`; a message needs none.
#[derive(Debug, JsonSchema)]
#[schemars(untagged)]
pub enum InputItem {
    /// With its type.
    Known(KnownItem),
    /// A message without it.
    Spoken(SpokenItem),
}

/// An item with its type.
#[derive(Debug, JsonSchema)]
#[schemars(tag = "type", rename_all = "snake_case")]
pub enum KnownItem {
    /// What somebody said.
    Message {
        /// Who.
        role: Speaker,
        /// What.
        content: InputText,
    },
    /// What the model thought; part of the turn around it.
    Reasoning {
        /// The text.
        content: Option<InputText>,
        /// The same, where `content` is absent or empty.
        summary: Option<InputText>,
    },
    /// A tool it called.
    FunctionCall {
        /// By which the result refers to it.
        call_id: String,
        /// The tool.
        #[schemars(regex(pattern = "^[A-Za-z_][A-Za-z0-9_]*$"), length(max = 256))]
        name: String,
        /// JSON text.
        arguments: Option<String>,
    },
    /// The result of that.
    FunctionCallOutput {
        /// Which call it answers.
        call_id: String,
        /// The text.
        output: Option<InputText>,
    },
}

/// What somebody said.
#[derive(Debug, JsonSchema)]
pub struct SpokenItem {
    /// Who.
    pub role: Speaker,
    /// What.
    pub content: InputText,
}

/// Who speaks.
#[derive(Debug, JsonSchema)]
#[schemars(rename_all = "snake_case")]
pub enum Speaker {
    /// The user.
    User,
    /// Instructions.
    System,
    /// Instructions; the same as `system`.
    Developer,
    /// The model.
    Assistant,
}

/// Text, whole or in parts.
#[derive(Debug, JsonSchema)]
#[schemars(untagged)]
pub enum InputText {
    /// One text.
    Text(String),
    /// Parts.
    Parts(Vec<InputPart>),
}

/// A part of a text; other kinds are refused: this is a text model.
#[derive(Debug, JsonSchema)]
#[schemars(tag = "type", rename_all = "snake_case")]
pub enum InputPart {
    /// Text.
    Text {
        /// The text.
        text: String,
    },
    /// Said to the model.
    InputText {
        /// The text.
        text: String,
    },
    /// Said by the model.
    OutputText {
        /// The text.
        text: String,
    },
    /// Thought.
    ReasoningText {
        /// The text.
        text: String,
    },
    /// Of what was thought.
    SummaryText {
        /// The text.
        text: String,
    },
}

/// A function that may be called.
#[derive(Debug, JsonSchema)]
pub struct ResponsesTool {
    /// Only `function`.
    #[schemars(rename = "type", extend("const" = "function"))]
    pub kind: String,
    /// The function.
    #[schemars(flatten)]
    pub function: DeclaredFunction,
}

/// The format of the answer.
#[derive(Debug, JsonSchema)]
pub struct ResponsesText {
    /// Any text where absent.
    pub format: Option<ResponsesFormat>,
}

/// The format of the answer; enforced, whatever `strict` says.
#[derive(Debug, JsonSchema)]
#[schemars(tag = "type", rename_all = "snake_case")]
pub enum ResponsesFormat {
    /// Any text.
    Text,
    /// A JSON object.
    JsonObject,
    /// JSON of a schema.
    JsonSchema {
        /// Its name.
        name: Option<String>,
        /// JSON Schema, draft 2020-12, within what can be enforced while a model writes.
        schema: BTreeMap<String, Value>,
        /// Without effect.
        strict: Option<bool>,
    },
}

/// Thinking.
#[derive(Debug, JsonSchema)]
pub struct ResponsesReasoning {
    /// none, minimal, low, medium, high, xhigh or max.
    pub effort: Option<String>,
}

/// A response.
#[derive(Debug, JsonSchema)]
pub struct ResponseAnswer {
    /// `resp_…`.
    pub id: String,
    /// Always `response`.
    pub object: String,
    /// Seconds since 1970.
    pub created_at: u64,
    /// Where it stands.
    pub status: ResponseStatus,
    /// Always `false`.
    pub background: bool,
    /// What went wrong.
    pub error: Option<ResponseFailure>,
    /// Why it is incomplete.
    pub incomplete_details: Option<IncompleteDetails>,
    /// The model's name.
    pub model: String,
    /// Reasoning, messages and calls, in this order.
    pub output: Vec<ResponseItem>,
    /// Always `null`.
    pub previous_response_id: Option<()>,
    /// Always `false`.
    pub store: bool,
    /// Always `disabled`.
    pub truncation: String,
    /// Token counts, once it has ended.
    pub usage: Option<ResponseUsage>,
    /// As sent.
    pub instructions: Option<String>,
    /// As sent.
    pub max_output_tokens: Option<u32>,
    /// As sent.
    pub metadata: Value,
    /// As sent, or what absence means.
    pub parallel_tool_calls: bool,
    /// As sent, or what absence means.
    pub reasoning: BTreeMap<String, Value>,
    /// As sent, or 1.
    pub temperature: f64,
    /// As sent, or what absence means.
    pub text: BTreeMap<String, Value>,
    /// As sent, or what absence means.
    pub tool_choice: Value,
    /// As sent.
    pub tools: Vec<BTreeMap<String, Value>>,
    /// As sent, or 0.
    pub top_logprobs: u32,
    /// As sent, or 1.
    pub top_p: f64,
    /// As sent.
    pub user: Value,
}

/// Why a response is incomplete.
#[derive(Debug, JsonSchema)]
pub struct IncompleteDetails {
    /// Always `max_output_tokens`.
    pub reason: String,
}

/// What went wrong.
#[derive(Debug, JsonSchema)]
pub struct ResponseFailure {
    /// A word for programs.
    pub code: String,
    /// A sentence.
    pub message: String,
}

/// An item of the output.
#[derive(Debug, JsonSchema)]
#[schemars(tag = "type", rename_all = "snake_case")]
pub enum ResponseItem {
    /// What the model thought.
    Reasoning {
        /// `rs_…`.
        id: String,
        /// Always empty.
        summary: Vec<Value>,
        /// The text.
        content: Vec<ResponseContent>,
        /// Always `null`.
        encrypted_content: Option<()>,
        /// Where it stands.
        status: ResponseStatus,
    },
    /// What it says.
    Message {
        /// `msg_…`.
        id: String,
        /// Where it stands.
        status: ResponseStatus,
        /// Always `assistant`.
        role: String,
        /// The text.
        content: Vec<ResponseContent>,
    },
    /// A tool it calls.
    FunctionCall {
        /// `fc_…`.
        id: String,
        /// By which the result refers to it.
        call_id: String,
        /// The tool.
        name: String,
        /// JSON text.
        arguments: String,
        /// Where it stands.
        status: ResponseStatus,
    },
}

/// A part of an item.
#[derive(Debug, JsonSchema)]
#[schemars(tag = "type", rename_all = "snake_case")]
pub enum ResponseContent {
    /// Thought.
    ReasoningText {
        /// The text.
        text: String,
    },
    /// Said.
    OutputText {
        /// The text.
        text: String,
        /// Always empty.
        annotations: Vec<Value>,
        /// Where asked for.
        logprobs: Vec<TokenLogprob>,
    },
}

/// Token counts.
#[derive(Debug, JsonSchema)]
pub struct ResponseUsage {
    /// Tokens of the prompt.
    pub input_tokens: u64,
    /// Of them.
    pub input_tokens_details: CachedTokens,
    /// Tokens generated.
    pub output_tokens: u64,
    /// Of them.
    pub output_tokens_details: ReasoningTokens,
    /// Their sum.
    pub total_tokens: u64,
}

/// Tokens of the prompt that were not computed.
#[derive(Debug, JsonSchema)]
pub struct CachedTokens {
    /// Those whose state was reused.
    pub cached_tokens: u64,
}

/// Tokens that are no answer.
#[derive(Debug, JsonSchema)]
pub struct ReasoningTokens {
    /// Those of the reasoning.
    pub reasoning_tokens: u64,
}
