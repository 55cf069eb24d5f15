//! The bodies of `POST /v1/completions`, `/tokenize` and `/detokenize`.

use schemars::JsonSchema;

use super::chat::{ChatTemplateOptions, StreamOptions, ThinkingBody};
use super::conversation::{DeclaredTool, WrittenMessage};
use super::sampling::SamplingBody;

/// Prompts: text or token ids, one or at most 1024.
#[derive(Debug, JsonSchema)]
#[schemars(untagged)]
pub enum PromptForm {
    /// One text.
    Text(String),
    /// Texts.
    Texts(#[schemars(length(min = 1, max = 1024))] Vec<String>),
    /// The token ids of one prompt.
    Ids(#[schemars(length(min = 1))] Vec<u32>),
    /// Those of several.
    IdLists(#[schemars(length(min = 1, max = 1024))] Vec<Vec<u32>>),
}

/// A text completion to make. Unknown fields are ignored; `null` means absent.
#[derive(Debug, JsonSchema)]
pub struct CompletionBody {
    /// The model's name; the one served where absent.
    pub model: Option<String>,
    /// The prompts.
    pub prompt: PromptForm,
    /// Return the prompt before the completion.
    pub echo: Option<bool>,
    /// Return log-probabilities, with so many alternatives for each token.
    #[schemars(range(min = 0, max = 20))]
    pub logprobs: Option<u32>,
    /// Most tokens to generate; 16 where absent; 0 only scores the prompt, with `echo` or `prompt_logprobs`.
    pub max_tokens: Option<u32>,
    /// Only as `n` says: choosing among more choices is not offered.
    pub best_of: Option<u32>,
    /// Only empty: the model does not fill in the middle.
    #[schemars(length(max = 0))]
    pub suffix: Option<String>,
    /// Answer with server-sent events.
    pub stream: Option<bool>,
    /// What such a stream reports.
    pub stream_options: Option<StreamOptions>,
    /// Sampling and stopping.
    #[schemars(flatten)]
    pub sampling: SamplingBody,
}

/// What to tokenise: `prompt`, or `messages` and what belongs to them.
#[derive(Debug, JsonSchema)]
pub struct TokenizeBody {
    /// The model's name; the one served where absent.
    pub model: Option<String>,
    /// Text.
    pub prompt: Option<String>,
    /// A conversation, rendered as chat completions would.
    #[schemars(length(min = 1))]
    pub messages: Option<Vec<WrittenMessage>>,
    /// Tools of that conversation.
    #[schemars(length(max = 1024))]
    pub tools: Option<Vec<DeclaredTool>>,
    /// Thinking and its effort.
    pub thinking: Option<ThinkingBody>,
    /// Effort.
    pub reasoning_effort: Option<String>,
    /// Effort, as templates have it.
    pub chat_template_kwargs: Option<ChatTemplateOptions>,
    /// Return the tokens' texts, too.
    pub return_token_strs: Option<bool>,
}

/// What to put together.
#[derive(Debug, JsonSchema)]
pub struct DetokenizeBody {
    /// The model's name; the one served where absent.
    pub model: Option<String>,
    /// Token ids.
    pub tokens: Vec<u32>,
}
