//! A conversation ready to be continued: rendered, its parameters checked, its grammar compiled. Every API of
//! conversations goes through here and differs only in what it reads and what it says.

use std::sync::Arc;

use perilune_engine::{SamplingParams, SharedGrammar};
use perilune_protocol::{ChatCompletionRequest, StreamMode, ThinkingOptions};
use perilune_tensor::TokenId;
use perilune_tokenizer::{
    ChatFormat, ChatRenderer, OutputOptions, OutputParser, OutputStart, RenderedPrompt, Tokenizer,
};

use crate::app::{Admission, App, TextSide};
use crate::chat_request::conversation;
use crate::error::ApiError;
use crate::output_rule::{chat_rule, compile_chat};
use crate::output_text::{OutputText, StopStrings};
use crate::routes::generate::{Prepared, PreparedPrompt};
use crate::sampling::sampling_params;
use crate::token_limit::TokenLimit;

/// What an API calls the fields that refusals name.
#[derive(Debug, Clone, Copy)]
pub(crate) struct FieldNames {
    /// The conversation.
    pub prompt: &'static str,
    /// The schema of a tool's arguments, within the tool.
    pub parameters: &'static str,
    /// The schema of the answer.
    pub schema: &'static str,
}

/// The names of chat completions.
pub(crate) const CHAT: FieldNames =
    FieldNames { prompt: "messages", parameters: "function.parameters", schema: "response_format.json_schema.schema" };

/// See the module.
pub(crate) struct ReadyChat {
    /// Leave to run it.
    pub admission: Admission,
    /// Tokens to text.
    pub voice: Voice,
    /// The prompt.
    pub prompt: RenderedPrompt,
    params: SamplingParams,
    limit: TokenLimit,
    n: usize,
    stream: StreamMode,
    cache_salt: Option<String>,
    grammar: Option<SharedGrammar>,
}

/// What turns a chat's tokens into text.
pub(crate) struct Voice {
    /// The vocabulary.
    pub tokenizer: Arc<Tokenizer>,
    start: OutputStart,
    stops: StopStrings,
}

impl ReadyChat {
    /// Checks, renders, compiles.
    ///
    /// # Errors
    /// 404 for another model, 503 where none is served, 400 for everything that is wrong with the request.
    pub(crate) fn new(app: &App, mut request: ChatCompletionRequest, names: FieldNames) -> Result<Self, ApiError> {
        let profile = app.settings.profile;
        profile.apply(&mut request.options)?;
        let admission = app.admit(request.model.as_deref())?;
        let text = admission.served.text(names.prompt)?;
        let renderer = renderer(text, names)?;
        let options = &request.options;
        let mut params = sampling_params(options, &admission.served.defaults)?;
        params.logprobs = request.logprobs;
        let limit = TokenLimit::of(options, None, &admission.served.defaults);
        let stops = StopStrings { texts: options.stop.clone(), min_tokens: options.min_tokens };
        let (n, stream, cache_salt) = (options.n, profile.stream(request.stream), options.cache_salt.clone());
        let start = match request.thinking {
            ThinkingOptions::On(_) if renderer.format() == ChatFormat::Xtml => OutputStart::Reasoning,
            _ => OutputStart::Content,
        };
        let rule = chat_rule(&request, start);
        let grammar =
            rule.map(|rule| compile_chat((text, app.settings.overload), rule, (&request, names))).transpose()?;
        let prompt = render(renderer, request, names)?;
        let voice = Voice { tokenizer: text.tokenizer.clone(), start: prompt.start, stops };
        Ok(ReadyChat { voice, prompt, params, limit, n, stream, cache_salt, grammar, admission })
    }

    /// The request for the engine, with what its choices become.
    pub(crate) fn prepared<A>(self, answer: impl FnOnce(Voice) -> A) -> Prepared<A> {
        let ReadyChat { admission, voice, prompt, params, limit, n, stream, cache_salt, grammar } = self;
        let save_at = prompt.save_at();
        let RenderedPrompt { tokens, usage_tokens, .. } = prompt;
        let prompts = vec![PreparedPrompt { tokens, usage_tokens, save_at }];
        Prepared { admission, prompts, cache_salt, grammar, rid: None, n, params, limit, stream, answer: answer(voice) }
    }

    /// The prompt's ids.
    pub(crate) fn ids(&self) -> &[TokenId] {
        &self.prompt.tokens
    }
}

impl Voice {
    /// The text of one choice, before its first token.
    ///
    /// # Errors
    /// 400 for stop strings that cannot be matched.
    pub(crate) fn output(&self) -> Result<OutputText, ApiError> {
        // Stop strings are matched by `OutputText`, which knows `min_tokens`.
        let options = OutputOptions { start: self.start, stops: Vec::new() };
        let parser = OutputParser::new(self.tokenizer.clone(), &options);
        let parser = parser.map_err(|error| ApiError::invalid(error.to_string(), Some("messages")))?;
        OutputText::chat(parser, self.stops.clone())
    }
}

/// The chat format of the model.
///
/// # Errors
/// 400 where its vocabulary has none.
pub(crate) fn renderer(text: &TextSide, names: FieldNames) -> Result<&ChatRenderer, ApiError> {
    text.chat.as_ref().map_err(|reason| ApiError::invalid(reason.clone(), Some(names.prompt)))
}

/// The prompt of a chat request.
///
/// # Errors
/// 400 for a conversation the chat format cannot express.
pub(crate) fn render(
    renderer: &ChatRenderer,
    request: ChatCompletionRequest,
    names: FieldNames,
) -> Result<RenderedPrompt, ApiError> {
    let conversation = conversation(request)?;
    renderer.render(&conversation).map_err(|error| ApiError::invalid(error.to_string(), Some(names.prompt)))
}
