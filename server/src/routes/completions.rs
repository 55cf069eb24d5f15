//! `POST /v1/completions`: prompts as text or as token ids, one or many; `echo`; scoring without generating.
//!
//! The only generating route where the model is served on token ids alone: then prompts are ids, texts are empty, and
//! ids come back whether asked for or not.

use axum::body::Bytes;
use axum::extract::{Request, State};
use axum::response::Response;
use perilune_protocol::{Completion, CompletionRequest, Prompt, UsageReport};
use perilune_tokenizer::SpecialTokens;

use crate::app::{Served, SharedApp, now_s};
use crate::completion_reply::{CompletionChunks, CompletionReply, Extras, PromptText};
use crate::error::ApiError;
use crate::generation::Piece;
use crate::output_rule::compile_text;
use crate::output_text::{OutputText, StopStrings};
use crate::routes::generate::{Answer, Prepared, PreparedPrompt, answer};
use crate::routes::token_ids;
use crate::sampling::sampling_params;
use crate::sse::ChunkEvents;
use crate::token_limit::TokenLimit;

/// Tokens generated where the client names no limit: OpenAI's default of this route.
const DEFAULT_MAX_TOKENS: usize = 16;

/// The handler.
pub async fn create(State(app): State<SharedApp>, request: Request) -> Response {
    answer::<TextAnswer>(app, request).await
}

/// The continuation of some prompts.
struct TextAnswer {
    reply: CompletionReply,
    specials: SpecialTokens,
    stops: StopStrings,
}

impl Answer for TextAnswer {
    const ID_PREFIX: &'static str = "cmpl";
    const PROMPT_FIELD: &'static str = "prompt";
    type Whole = Completion;
    type Events = ChunkEvents<CompletionChunks>;

    fn prepare(app: &SharedApp, id: String, body: &Bytes) -> Result<Prepared<Self>, ApiError> {
        let mut request = CompletionRequest::parse(body)?;
        app.settings.profile.apply(&mut request.options)?;
        let admission = app.admit(request.model.as_deref())?;
        let served = &admission.served;
        let options = &request.options;
        let mut params = sampling_params(options, &served.defaults)?;
        params.logprobs = request.logprobs;
        if request.echo {
            // An echoed prompt needs its own log-probabilities; the larger of the two wishes serves both.
            params.prompt_logprobs = params.prompt_logprobs.max(request.logprobs);
        }
        let limit = TokenLimit::of(options, Some(DEFAULT_MAX_TOKENS), &served.defaults);
        let extras = Extras {
            echo: request.echo,
            logprobs: request.logprobs.is_some(),
            prompt_logprobs: options.prompt_logprobs,
            token_ids: options.return_token_ids || served.text.is_none(),
        };
        let stops = StopStrings { texts: options.stop.clone(), min_tokens: options.min_tokens };
        let cache_salt = options.cache_salt.clone();
        let compile = |form| compile_text((served.text("structured_outputs")?, app.settings.overload), form);
        let grammar = options.structured.as_ref().map(compile).transpose()?;
        let specials = if options.skip_special_tokens { SpecialTokens::Skip } else { SpecialTokens::Keep };
        let prompts = request.prompts.into_iter().map(|prompt| prompt_text(served, prompt, extras));
        let reply = CompletionReply {
            id,
            created: now_s(),
            model: request.model.unwrap_or_else(|| app.model_name().to_owned()),
            tokenizer: served.text.as_ref().map(|text| text.tokenizer.clone()),
            n: options.n,
            extras,
            prompts: prompts.collect::<Result<_, _>>()?,
        };
        let prompts = reply.prompts.iter().map(|prompt| PreparedPrompt::plain(&prompt.ids)).collect();
        let (n, stream) = (reply.n, app.settings.profile.stream(request.stream));
        let answer = TextAnswer { reply, specials, stops };
        Ok(Prepared { admission, prompts, cache_salt, grammar, rid: None, n, params, limit, stream, answer })
    }

    fn output(&self) -> Result<OutputText, ApiError> {
        match &self.reply.tokenizer {
            Some(tokenizer) => OutputText::plain(tokenizer.clone(), self.specials, self.stops.clone()),
            None => OutputText::ids(self.stops.clone()),
        }
    }

    fn whole(&self, choices: Vec<Piece>) -> Completion {
        self.reply.whole(choices)
    }

    fn events(self, report: UsageReport, num_choices: usize) -> Self::Events {
        ChunkEvents::new(CompletionChunks::new(self.reply, report), num_choices)
    }
}

fn prompt_text(served: &Served, prompt: Prompt, extras: Extras) -> Result<PromptText, ApiError> {
    let ids = match prompt {
        Prompt::Ids(ids) => token_ids(ids),
        Prompt::Text(text) => served.text("prompt")?.tokenizer.encode_text(&text),
    };
    Ok(match served.text.as_ref().filter(|_| extras.echo) {
        Some(side) => PromptText::decoded(ids, &side.tokenizer),
        None => PromptText::ids_only(ids),
    })
}
