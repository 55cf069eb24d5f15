//! Anthropic's `POST /v1/messages` and `/v1/messages/count_tokens`.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde_json::Value;

use super::sampling::SamplingBody;

/// A message to make. Unknown fields are ignored; `null` means absent.
#[derive(Debug, JsonSchema)]
pub struct MessagesBody {
    /// Most tokens to generate, thinking included.
    #[schemars(range(min = 1))]
    pub max_tokens: u32,
    /// The prompt and the rest.
    #[schemars(flatten)]
    pub rest: CountTokensBody,
}

/// A prompt, and what would be made of it.
#[derive(Debug, JsonSchema)]
pub struct CountTokensBody {
    /// The model's name; the one served where absent.
    pub model: Option<String>,
    /// The conversation.
    #[schemars(length(min = 1))]
    pub messages: Vec<Turn>,
    /// Instructions.
    pub system: Option<Blocks>,
    /// Tools of the client's own.
    pub tools: Option<Vec<ClientTool>>,
    /// Which of them to call.
    pub tool_choice: Option<ChoiceOfTools>,
    /// Thinking; off where absent.
    pub thinking: Option<Thinking>,
    /// The format of the answer.
    pub output_config: Option<OutputConfig>,
    /// The same under its older name.
    pub output_format: Option<SchemaFormat>,
    /// Texts that end the output.
    pub stop_sequences: Option<Vec<String>>,
    /// Answer with server-sent events.
    pub stream: Option<bool>,
    /// Sampling; `n` and `stop` have no effect here.
    #[schemars(flatten)]
    pub sampling: SamplingBody,
}

/// One turn.
#[derive(Debug, JsonSchema)]
pub struct Turn {
    /// Who speaks.
    pub role: Role,
    /// What.
    pub content: Blocks,
}

/// Who speaks.
#[derive(Debug, JsonSchema)]
#[schemars(rename_all = "snake_case")]
pub enum Role {
    /// The user.
    User,
    /// The model.
    Assistant,
}

/// Text, or blocks.
#[derive(Debug, JsonSchema)]
#[schemars(untagged)]
pub enum Blocks {
    /// Text.
    Text(String),
    /// Blocks.
    Blocks(Vec<Block>),
}

/// A block of a turn. Instructions and results of tools hold text alone.
#[derive(Debug, JsonSchema)]
#[schemars(tag = "type", rename_all = "snake_case")]
pub enum Block {
    /// Text.
    Text {
        /// The text.
        text: String,
    },
    /// What the model thought before.
    Thinking {
        /// The text.
        thinking: String,
    },
    /// Thinking that another service sealed; left out.
    RedactedThinking {},
    /// A tool the model called.
    ToolUse {
        /// By which the result refers to it.
        id: String,
        /// The tool.
        name: String,
        /// Its arguments.
        input: Option<BTreeMap<String, Value>>,
    },
    /// The result of that.
    ToolResult {
        /// Which use it answers.
        tool_use_id: String,
        /// Text, or text blocks.
        content: Option<Box<Blocks>>,
    },
}

/// A tool.
#[derive(Debug, JsonSchema)]
pub struct ClientTool {
    /// Only `custom`.
    #[schemars(rename = "type")]
    pub kind: Option<String>,
    /// Its name.
    #[schemars(regex(pattern = "^[A-Za-z_][A-Za-z0-9_]*$"), length(max = 256))]
    pub name: String,
    /// What it does.
    pub description: Option<String>,
    /// The JSON schema of its arguments.
    pub input_schema: Option<BTreeMap<String, Value>>,
    /// Hold calls to the schema.
    pub strict: Option<bool>,
}

/// Which tools may or must be used.
#[derive(Debug, JsonSchema)]
pub struct ChoiceOfTools {
    /// `auto`, `none`, `any` or `tool`.
    #[schemars(rename = "type")]
    pub kind: String,
    /// The tool, with `tool`.
    pub name: Option<String>,
    /// At most one use.
    pub disable_parallel_tool_use: Option<bool>,
}

/// Thinking.
#[derive(Debug, JsonSchema)]
pub struct Thinking {
    /// `enabled`, `adaptive` or `disabled`.
    #[schemars(rename = "type")]
    pub kind: String,
    /// Up to 4,096 is low effort, up to 24,576 high, above it max.
    #[schemars(range(min = 1))]
    pub budget_tokens: Option<u32>,
}

/// The format of the answer.
#[derive(Debug, JsonSchema)]
pub struct OutputConfig {
    /// A schema.
    pub format: Option<SchemaFormat>,
}

/// A schema.
#[derive(Debug, JsonSchema)]
pub struct SchemaFormat {
    /// Only `json_schema`.
    #[schemars(rename = "type", extend("const" = "json_schema"))]
    pub kind: String,
    /// The schema.
    pub schema: BTreeMap<String, Value>,
}

/// How many tokens a prompt would have.
#[derive(Debug, JsonSchema)]
pub struct InputTokens {
    /// So many.
    pub input_tokens: u64,
}

/// What the model says.
#[derive(Debug, JsonSchema)]
pub struct AnthropicMessage {
    /// `msg_…`.
    pub id: String,
    /// Always `message`.
    #[schemars(rename = "type")]
    pub kind: String,
    /// Always `assistant`.
    pub role: String,
    /// The model's name.
    pub model: String,
    /// Thinking, text, uses of tools, in this order.
    pub content: Vec<MessageBlock>,
    /// `end_turn`, `max_tokens`, `stop_sequence`, `tool_use` or `abort`.
    #[schemars(extend("enum" = ["end_turn", "max_tokens", "stop_sequence", "tool_use", "abort", null]))]
    pub stop_reason: Option<String>,
    /// The text that ended it.
    pub stop_sequence: Option<String>,
    /// Token counts.
    pub usage: AnthropicUsage,
}

/// A block of an answer.
#[derive(Debug, JsonSchema)]
#[schemars(tag = "type", rename_all = "snake_case")]
pub enum MessageBlock {
    /// What it thought.
    Thinking {
        /// The text.
        thinking: String,
        /// Always empty: nothing is sealed here.
        signature: String,
    },
    /// What it says.
    Text {
        /// The text.
        text: String,
    },
    /// A tool it uses.
    ToolUse {
        /// By which the result refers to it.
        id: String,
        /// The tool.
        name: String,
        /// Its arguments.
        input: BTreeMap<String, Value>,
    },
}

/// Token counts.
#[derive(Debug, JsonSchema)]
pub struct AnthropicUsage {
    /// Tokens of the prompt that were computed.
    pub input_tokens: u64,
    /// Always 0.
    pub cache_creation_input_tokens: u64,
    /// Tokens of the prompt whose state was reused.
    pub cache_read_input_tokens: u64,
    /// Tokens generated.
    pub output_tokens: u64,
}

/// A refusal.
#[derive(Debug, JsonSchema)]
pub struct AnthropicError {
    /// Always `error`.
    #[schemars(rename = "type")]
    pub kind: String,
    /// What is wrong.
    pub error: AnthropicErrorDetail,
}

/// What is wrong.
#[derive(Debug, JsonSchema)]
pub struct AnthropicErrorDetail {
    /// `invalid_request_error`, `authentication_error`, `not_found_error`, `overloaded_error` or `api_error`.
    #[schemars(rename = "type")]
    pub kind: String,
    /// A sentence: field, value, rule.
    pub message: String,
    /// The field at fault.
    pub param: Option<String>,
}
