//! JSON shapes of the public APIs: what clients send, what they get back, and what is wrong with what they sent.
//!
//! Requests are read by hand from guarded JSON (`json`, `fields`) rather than derived, so that every refusal names the
//! field, the value and the rule; unknown fields are ignored. Responses are plain `Serialize` structs. Nothing here
//! knows tokens' text, sampling ranges that depend on a model, or HTTP: those are checked where they are known.

mod chat;
mod chat_response;
mod completion;
mod completion_response;
mod error;
mod fields;
mod generation;
mod json;
mod logprobs;
mod message;
mod model;
mod thinking;
mod tokenize;
mod tools;
mod usage;

pub use chat::ChatCompletionRequest;
pub use chat_response::{
    AssistantMessage, ChatChoice, ChatChunk, ChatChunkChoice, ChatCompletion, ChatDelta, FunctionCall, FunctionDelta,
    ToolCall, ToolCallDelta,
};
pub use completion::{CompletionRequest, Prompt};
pub use completion_response::{Completion, CompletionChoice};
pub use error::{ErrorBody, ErrorDetail, ErrorKind, ProtocolError};
pub use generation::{GenerationOptions, StreamMode, UsageReport};
pub use json::parse_object;
pub use logprobs::{
    ChatLogprobs, CompletionLogprobs, LOGPROB_FLOOR, PromptLogprob, PromptLogprobs, TokenLogprob, TopLogprob, floored,
};
pub use message::{Message, RequestedCall};
pub use model::{ModelCard, ModelList};
pub use thinking::{EFFORT_WORDS, EffortLevel, ThinkingOptions};
pub use tokenize::{DetokenizeRequest, DetokenizeResponse, TokenizeInput, TokenizeRequest, TokenizeResponse};
pub use tools::{ResponseFormat, ToolChoice, Tools};
pub use usage::{CompletionTokensDetails, PromptTokensDetails, Usage};
