//! Bodies as they are written on the wire, for the OpenAPI document alone: nothing is read into them or written from them.
//!
//! Requests are read by hand (`fields`), so that every refusal names field, value and rule; some answers are put together
//! piece by piece. Their shapes are written down here once more, and tests hold the two together: the fields that a
//! parser asks for are the ones declared here, and answers of a running server validate against what is declared here.

mod anthropic;
mod chat;
mod completion;
mod conversation;
mod forms;
mod message_events;
mod native;
mod operations;
#[cfg(test)]
mod parity_tests;
mod response_events;
mod responses;
mod sampling;

pub use anthropic::{
    AnthropicError, AnthropicErrorDetail, AnthropicMessage, AnthropicUsage, CountTokensBody, InputTokens, MessageBlock,
    MessagesBody,
};
pub use chat::{ChatBody, ChatTemplateOptions, StreamOptions, ThinkingBody};
pub use completion::{CompletionBody, DetokenizeBody, PromptForm, TokenizeBody};
pub use conversation::{
    AssistantCall, ContentForm, DeclaredFunction, DeclaredTool, NamedTool, TextPart, ToolChoiceForm, ToolName,
    WrittenMessage,
};
pub use forms::{NamedSchema, ResponseFormatForm, SchemaForm, StructuredForm};
pub use message_events::{BlockDelta, MessageEnd, MessageEvent};
pub use native::{
    NativeAnswer, NativeAnswers, NativeBody, NativeChunk, NativeFinish, NativeMeta, NativeParams, NativeToken,
};
pub use operations::AbortBody;
pub use response_events::ResponseEvent;
pub use responses::{
    CachedTokens, IncompleteDetails, InputForm, InputItem, InputPart, InputText, KnownItem, ReasoningTokens,
    ResponseAnswer, ResponseContent, ResponseFailure, ResponseItem, ResponseUsage, ResponsesBody, ResponsesFormat,
    ResponsesReasoning, ResponsesText, ResponsesTool, Speaker, SpokenItem,
};
pub use sampling::{SamplingBody, StopForm};
