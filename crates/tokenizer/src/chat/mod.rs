//! Chat formats: a conversation to prompt tokens.
//!
//! What: the conversation as plain data, and the renderer that turns it into tokens segment by segment, so that
//! nothing a client writes can become a control token. What not: parsing requests (the server's) and parsing the
//! model's answer (`output`).

mod conversation;
mod im;
mod renderer;
mod tool_result;
mod xtml;

pub use conversation::{
    Argument, ArgumentKind, Arguments, ChatMessage, Conversation, Effort, ResponseFormat, Role, Thinking, ToolCall,
    ToolChoice,
};
pub use renderer::{ChatFormat, ChatRenderer, RenderedPrompt};
pub(crate) use renderer::{FormatTokens, ImTokens, XtmlTokens};
