//! What a stream of Anthropic's `POST /v1/messages` says.

use schemars::JsonSchema;

use super::anthropic::{AnthropicErrorDetail, AnthropicMessage, AnthropicUsage, MessageBlock};

/// One event; `type` is its name, too. Blocks follow one another, each from its start to its stop.
#[derive(Debug, JsonSchema)]
#[schemars(tag = "type", rename_all = "snake_case")]
pub enum MessageEvent {
    /// The first.
    MessageStart {
        /// Without content yet.
        message: AnthropicMessage,
    },
    /// A block begins.
    ContentBlockStart {
        /// Its place in the content.
        index: u64,
        /// With nothing in it.
        content_block: MessageBlock,
    },
    /// It goes on.
    ContentBlockDelta {
        /// Its place in the content.
        index: u64,
        /// What is added.
        delta: BlockDelta,
    },
    /// It is complete, or, as the last one, cut off.
    ContentBlockStop {
        /// Its place in the content.
        index: u64,
    },
    /// All blocks have come.
    MessageDelta {
        /// Why it ended.
        delta: MessageEnd,
        /// Token counts.
        usage: AnthropicUsage,
    },
    /// The last.
    MessageStop {},
    /// The last where something went wrong.
    Error {
        /// What.
        error: AnthropicErrorDetail,
    },
}

/// What is added to a block.
#[derive(Debug, JsonSchema)]
#[schemars(tag = "type", rename_all = "snake_case")]
pub enum BlockDelta {
    /// Thinking.
    ThinkingDelta {
        /// The text.
        thinking: String,
    },
    /// The end of thinking.
    SignatureDelta {
        /// Always empty: nothing is sealed here.
        signature: String,
    },
    /// Text.
    TextDelta {
        /// The text.
        text: String,
    },
    /// The input of a tool.
    InputJsonDelta {
        /// A piece of JSON text.
        partial_json: String,
    },
}

/// Why a message ended.
#[derive(Debug, JsonSchema)]
pub struct MessageEnd {
    /// `end_turn`, `max_tokens`, `stop_sequence`, `tool_use` or `abort`.
    #[schemars(extend("enum" = ["end_turn", "max_tokens", "stop_sequence", "tool_use", "abort", null]))]
    pub stop_reason: Option<String>,
    /// The text that ended it.
    pub stop_sequence: Option<String>,
}
