//! The model's answer: generated tokens to channels, channels to text and tool calls.
//!
//! What: `channel` decides on token ids what each token is part of, `header` reads an element's tag, `parser` turns
//! channels into text deltas, `tool_call` writes the arguments of calls. What not: when to stop generating (the engine), except
//! for stop strings, which only the text knows.

mod channel;
mod header;
mod parser;
mod tool_call;

pub use channel::{ChannelEvent, ChannelParser, OutputStart};
pub use parser::{Channel, OutputDelta, OutputOptions, OutputParser, ParsedMessage};
pub use tool_call::{ArgumentsForm, CallStep, ParsedToolCall};
