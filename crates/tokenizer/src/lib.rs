//! Text to tokens and back; K3's XTML chat format.
//!
//! * [`Tokenizer`]: a tiktoken vocabulary with K3's pre-tokenizer and the checkpoint's special tokens.
//! * [`IncrementalDecoder`]: tokens to text, one at a time, never splitting a character.
//! * [`StopMatcher`]: stop strings in a stream of text.
//! * [`ChatRenderer`]: a conversation to prompt tokens.
//! * [`ChannelParser`]: generated tokens to the channels reasoning, content and tool calls, decided on token ids.
//! * [`OutputParser`]: the two before it joined, giving text deltas for one answer.
//!
//! Nothing here knows HTTP, JSON shapes of an API, or devices.

mod bpe;
mod chat;
mod decoder;
mod error;
mod json;
mod output;
mod pre_tokenizer;
mod stop;
mod tokenizer;
mod vocabulary;

pub use chat::{
    Argument, ArgumentKind, Arguments, ChatFormat, ChatMessage, ChatRenderer, Conversation, Effort, RenderedPrompt,
    ResponseFormat, Role, Thinking, ToolCall, ToolChoice,
};
pub use decoder::{IncrementalDecoder, SpecialTokens};
pub use error::TokenizerError;
pub use json::{canonical_json, spaced_json};
pub use output::{
    ArgumentsForm, CallStep, Channel, ChannelEvent, ChannelParser, OutputDelta, OutputOptions, OutputParser,
    OutputStart, ParsedMessage, ParsedToolCall,
};
pub use stop::{StopMatcher, StopStep};
pub use tokenizer::Tokenizer;
pub use vocabulary::Vocabulary;
