//! `POST /v1/chat/completions`.
//!
//! Bytes → request → conversation → prompt tokens → one engine request per choice → the reply, whole or streamed.

use axum::Json;
use axum::body::Bytes;
use axum::extract::{Request, State};
use axum::response::{IntoResponse, Response};
use perilune_engine::{GenerateRequest, SamplingParams};
use perilune_protocol::{ChatCompletionRequest, StreamMode};
use perilune_tokenizer::{ChatRenderer, OutputOptions, OutputParser, RenderedPrompt};

use crate::app::{Admission, SharedApp, TextSide, now_s};
use crate::chat_reply::{ChatChunks, ChatReply, ReasoningPlace};
use crate::chat_request::conversation;
use crate::error::ApiError;
use crate::generation::{Generation, collect};
use crate::output_text::{OutputText, StopStrings};
use crate::routes::{off_reactor, read_body, request_id};
use crate::sampling::{for_choice, sampling_params};
use crate::sse::{Streamed, respond};

/// The handler.
pub async fn create(State(app): State<SharedApp>, request: Request) -> Result<Response, ApiError> {
    app.serving()?;
    let id = format!("chatcmpl-{}", request_id(&request));
    let body = read_body(&app, request).await?;
    let prepared = off_reactor({
        let app = app.clone();
        move || Prepared::new(&app, id, &body)
    })
    .await?;
    let choices = prepared.submit(&app)?;
    let Prepared { reply, admission, stream, .. } = prepared;
    match stream {
        StreamMode::Whole => {
            let whole = reply.whole(collect(choices).await?);
            drop(admission);
            Ok(Json(whole).into_response())
        }
        StreamMode::Events(report) => {
            let chunks = ChatChunks::new(reply, report, choices.len());
            let streamed = Streamed { choices, chunks, in_flight: admission.in_flight };
            Ok(respond(streamed, app.settings.ping_interval))
        }
    }
}

/// A request that was read, checked and tokenised.
struct Prepared {
    admission: Admission,
    prompt: RenderedPrompt,
    params: SamplingParams,
    stops: StopStrings,
    n: usize,
    cache_salt: Option<String>,
    stream: StreamMode,
    reply: ChatReply,
}

impl Prepared {
    fn new(app: &SharedApp, id: String, body: &Bytes) -> Result<Self, ApiError> {
        let request = ChatCompletionRequest::parse(body)?;
        let admission = app.admit(request.model.as_deref())?;
        let text = admission.served.text("messages")?;
        let renderer = renderer(text)?;
        let options = &request.options;
        let mut params = sampling_params(options, &admission.served.defaults)?;
        params.logprobs = request.logprobs;
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
        Ok(Prepared { prompt, params, stops, n, cache_salt, stream, reply, admission })
    }

    /// Hands every choice to the engine; if one is refused, those before it are dropped with it.
    fn submit(&self, app: &SharedApp) -> Result<Vec<Generation>, ApiError> {
        (0..self.n).map(|index| self.submit_choice(app, index)).collect()
    }

    fn submit_choice(&self, app: &SharedApp, index: usize) -> Result<Generation, ApiError> {
        let served = &self.admission.served;
        // Stop strings are matched by `OutputText`, which knows `min_tokens`.
        let options = OutputOptions { start: self.prompt.start, stops: Vec::new() };
        let parser = OutputParser::new(self.reply.tokenizer.clone(), &options);
        let parser = parser.map_err(|error| ApiError::invalid(error.to_string(), Some("messages")))?;
        let text = OutputText::chat(parser, self.stops.clone())?;
        let mut params = for_choice(&self.params, index);
        if index > 0 {
            params.prompt_logprobs = None;
        }
        let request = GenerateRequest {
            cache_salt: self.cache_salt.clone(),
            checkpoint_hints: self.prompt.message_ends.clone(),
            ..GenerateRequest::new(self.prompt.tokens.clone(), params)
        };
        let submitted = served.engine.submit(request);
        let stream = submitted.map_err(|error| ApiError::from_submit(&error, app.settings.overload))?;
        Ok(Generation::new(app.clone(), stream, text, self.params.stop_token_ids.clone()))
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
