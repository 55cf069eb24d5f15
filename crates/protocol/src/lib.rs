//! JSON shapes of the public APIs: what clients send, what they get back, and what is wrong with what they sent.
//!
//! Requests are read by hand from guarded JSON (`json`, `fields`) rather than derived, so that every refusal names the
//! field, the value and the rule; unknown fields are ignored. Responses are plain `Serialize` structs; [`wire`] holds the
//! shapes of what is read or written by hand, for the OpenAPI document. Nothing here
//! knows tokens' text, sampling ranges that depend on a model, or HTTP: those are checked where they are known.

mod answer_start;
mod anthropic_request;
mod cache_report;
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
mod native;
mod operations;
mod responses_object;
mod responses_request;
mod structured;
mod thinking;
mod tokenize;
mod tools;
mod usage;
pub mod wire;

pub use anthropic_request::{parse_count_request, parse_messages_request};
pub use cache_report::{CacheEvents, CachePage, CacheSizes, CachedPrefix, CachedState};
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
pub use native::NativeRequest;
pub use operations::{
    AbortRequest, Aborted, AddedToken, Flushed, Health, Readiness, ServerInfo, ServerLimits, TokenizerInfo, Version,
};
pub use responses_object::{OutputItem, ResponseObject, ResponseStatus};
pub use responses_request::{ResponsesEcho, ResponsesRequest};
pub use structured::{OutputForm, StructuredOutput};
pub use thinking::{EFFORT_WORDS, EffortLevel, ThinkingOptions};
pub use tokenize::{DetokenizeRequest, DetokenizeResponse, TokenizeInput, TokenizeRequest, TokenizeResponse};
pub use tools::{Function, ParallelCalls, ResponseFormat, Strictness, ToolChoice, Tools};
pub use usage::{CompletionTokensDetails, PromptTokensDetails, Usage};
