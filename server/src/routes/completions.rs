//! `POST /v1/completions`: prompts as text or as token ids, one or many; `echo`; scoring without generating.
//!
//! The only generating route where the model is served on token ids alone: then prompts are ids, texts are empty, and
//! ids come back whether asked for or not.

use axum::Json;
use axum::body::Bytes;
use axum::extract::{Request, State};
use axum::response::{IntoResponse, Response};
use perilune_engine::{GenerateRequest, SamplingParams};
use perilune_protocol::{CompletionRequest, Prompt, StreamMode};
use perilune_tokenizer::SpecialTokens;

use crate::app::{Admission, SharedApp, now_s};
use crate::completion_reply::{CompletionChunks, CompletionReply, Extras, PromptText};
use crate::error::ApiError;
use crate::generation::{Generation, collect};
use crate::output_text::{OutputText, StopStrings};
use crate::routes::{off_reactor, read_body, request_id, token_ids};
use crate::sampling::{for_choice, sampling_params};
use crate::sse::{Streamed, respond};

/// The handler.
pub async fn create(State(app): State<SharedApp>, request: Request) -> Result<Response, ApiError> {
    app.serving()?;
    let id = format!("cmpl-{}", request_id(&request));
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
            let chunks = CompletionChunks::new(reply, report);
            let streamed = Streamed { choices, chunks, in_flight: admission.in_flight };
            Ok(respond(streamed, app.settings.ping_interval))
        }
    }
}

/// A request that was read, checked and tokenised.
struct Prepared {
    admission: Admission,
    params: SamplingParams,
    stops: StopStrings,
    specials: SpecialTokens,
    cache_salt: Option<String>,
    stream: StreamMode,
    reply: CompletionReply,
}

impl Prepared {
    fn new(app: &SharedApp, id: String, body: &Bytes) -> Result<Self, ApiError> {
        let request = CompletionRequest::parse(body)?;
        let admission = app.admit(request.model.as_deref())?;
        let served = &admission.served;
        let options = &request.options;
        let mut params = sampling_params(options, &served.defaults)?;
        params.logprobs = request.logprobs;
        if request.echo {
            // An echoed prompt needs its own log-probabilities; the larger of the two wishes serves both.
            params.prompt_logprobs = params.prompt_logprobs.max(request.logprobs);
        }
        let extras = Extras {
            echo: request.echo,
            logprobs: request.logprobs.is_some(),
            prompt_logprobs: options.prompt_logprobs,
            token_ids: options.return_token_ids || served.text.is_none(),
        };
        let reply = CompletionReply {
            id,
            created: now_s(),
            model: request.model.clone().unwrap_or_else(|| app.model_name().to_owned()),
            tokenizer: served.text.as_ref().map(|text| text.tokenizer.clone()),
            n: options.n,
            extras,
            prompts: request
                .prompts
                .into_iter()
                .map(|prompt| prompt_text(&admission, prompt, extras))
                .collect::<Result<_, _>>()?,
        };
        let stops = StopStrings { texts: options.stop.clone(), min_tokens: options.min_tokens };
        let specials = if options.skip_special_tokens { SpecialTokens::Skip } else { SpecialTokens::Keep };
        let cache_salt = options.cache_salt.clone();
        Ok(Prepared { params, stops, specials, cache_salt, stream: request.stream, reply, admission })
    }

    /// Hands every choice of every prompt to the engine; if one is refused, those before it are dropped with it.
    fn submit(&self, app: &SharedApp) -> Result<Vec<Generation>, ApiError> {
        let choices = self.reply.prompts.iter().flat_map(|prompt| (0..self.reply.n).map(move |i| (prompt, i)));
        choices.map(|(prompt, index)| self.submit_choice(app, prompt, index)).collect()
    }

    fn submit_choice(&self, app: &SharedApp, prompt: &PromptText, index: usize) -> Result<Generation, ApiError> {
        let text = match &self.reply.tokenizer {
            Some(tokenizer) => OutputText::plain(tokenizer.clone(), self.specials, self.stops.clone())?,
            None => OutputText::ids(self.stops.clone())?,
        };
        let params = for_choice(&self.params, index);
        let request =
            GenerateRequest { cache_salt: self.cache_salt.clone(), ..GenerateRequest::new(prompt.ids.clone(), params) };
        let submitted = self.admission.served.engine.submit(request);
        let stream = submitted.map_err(|error| ApiError::from_submit(&error, app.settings.overload))?;
        Ok(Generation::new(app.clone(), stream, text, self.params.stop_token_ids.clone()))
    }
}

fn prompt_text(admission: &Admission, prompt: Prompt, extras: Extras) -> Result<PromptText, ApiError> {
    let text_side = admission.served.text.as_ref();
    let ids = match prompt {
        Prompt::Ids(ids) => token_ids(ids),
        Prompt::Text(text) => admission.served.text("prompt")?.tokenizer.encode_text(&text),
    };
    Ok(match text_side.filter(|_| extras.echo) {
        Some(side) => PromptText::decoded(ids, &side.tokenizer),
        None => PromptText::ids_only(ids),
    })
}
