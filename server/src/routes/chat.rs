//! `POST /v1/chat/completions`: a conversation, rendered in the model's chat format.

use axum::body::Bytes;
use axum::extract::{Request, State};
use axum::response::Response;
use perilune_protocol::{ChatCompletion, ChatCompletionRequest, UsageReport};
use perilune_tokenizer::{ChatRenderer, OutputOptions, OutputParser, OutputStart, RenderedPrompt};

use crate::app::{SharedApp, TextSide, now_s};
use crate::chat_reply::{ChatChunks, ChatReply, ReasoningPlace};
use crate::chat_request::conversation;
use crate::error::ApiError;
use crate::generation::Piece;
use crate::output_text::{OutputText, StopStrings};
use crate::routes::generate::{Answer, Prepared, PreparedPrompt, answer};
use crate::sampling::sampling_params;
use crate::token_limit::TokenLimit;

/// The handler.
pub async fn create(State(app): State<SharedApp>, request: Request) -> Result<Response, ApiError> {
    answer::<ChatAnswer>(app, request).await
}

/// The answer to a conversation.
struct ChatAnswer {
    reply: ChatReply,
    start: OutputStart,
    stops: StopStrings,
}

impl Answer for ChatAnswer {
    const ID_PREFIX: &'static str = "chatcmpl";
    const PROMPT_FIELD: &'static str = "messages";
    type Whole = ChatCompletion;
    type Chunks = ChatChunks;

    fn prepare(app: &SharedApp, id: String, body: &Bytes) -> Result<Prepared<Self>, ApiError> {
        let request = ChatCompletionRequest::parse(body)?;
        let admission = app.admit(request.model.as_deref())?;
        let text = admission.served.text("messages")?;
        let renderer = renderer(text)?;
        let options = &request.options;
        let mut params = sampling_params(options, &admission.served.defaults)?;
        params.logprobs = request.logprobs;
        let limit = TokenLimit::of(options, None, &admission.served.defaults);
        let (n, stream) = (options.n, request.stream);
        let stops = StopStrings { texts: options.stop.clone(), min_tokens: options.min_tokens };
        let mut reply = ChatReply {
            id,
            created: now_s(),
            model: request.model.clone().unwrap_or_else(|| app.model_name().to_owned()),
            tokenizer: text.tokenizer.clone(),
            reasoning: reasoning_place(&request),
            prompt_tokens: 0,
            prompt_logprobs: options.prompt_logprobs,
            prompt_ids: None,
        };
        let (return_ids, cache_salt) = (options.return_token_ids, options.cache_salt.clone());
        let prompt = render(renderer, request)?;
        reply.prompt_tokens = prompt.usage_tokens;
        reply.prompt_ids = return_ids.then(|| prompt.tokens.clone());
        let answer = ChatAnswer { reply, start: prompt.start, stops };
        let prompts = vec![PreparedPrompt { tokens: prompt.tokens, turn_ends: prompt.message_ends }];
        Ok(Prepared { admission, prompts, cache_salt, n, params, limit, stream, answer })
    }

    fn output(&self) -> Result<OutputText, ApiError> {
        // Stop strings are matched by `OutputText`, which knows `min_tokens`.
        let options = OutputOptions { start: self.start, stops: Vec::new() };
        let parser = OutputParser::new(self.reply.tokenizer.clone(), &options);
        let parser = parser.map_err(|error| ApiError::invalid(error.to_string(), Some("messages")))?;
        OutputText::chat(parser, self.stops.clone())
    }

    fn scores_prompt(&self, choice: usize) -> bool {
        choice == 0
    }

    fn whole(&self, choices: Vec<Piece>) -> ChatCompletion {
        self.reply.whole(choices)
    }

    fn chunks(self, report: UsageReport, num_choices: usize) -> ChatChunks {
        ChatChunks::new(self.reply, report, num_choices)
    }
}

/// The chat format of the model.
///
/// # Errors
/// 400 where its vocabulary has none.
pub(crate) fn renderer(text: &TextSide) -> Result<&ChatRenderer, ApiError> {
    text.chat.as_ref().map_err(|reason| ApiError::invalid(reason.clone(), Some("messages")))
}

/// The prompt of a chat request.
///
/// # Errors
/// 400 for a conversation the chat format cannot express.
pub(crate) fn render(renderer: &ChatRenderer, request: ChatCompletionRequest) -> Result<RenderedPrompt, ApiError> {
    let conversation = conversation(request)?;
    renderer.render(&conversation).map_err(|error| ApiError::invalid(error.to_string(), Some("messages")))
}

fn reasoning_place(request: &ChatCompletionRequest) -> ReasoningPlace {
    match (request.include_reasoning, request.separate_reasoning) {
        (false, _) => ReasoningPlace::Nowhere,
        (true, false) => ReasoningPlace::Inline,
        (true, true) => ReasoningPlace::Apart,
    }
}
