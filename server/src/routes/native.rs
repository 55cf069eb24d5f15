//! SGLang's `POST /generate`: prompts as text or ids, the answer beside what is known of it.

use axum::body::Bytes;
use axum::extract::{Request, State};
use axum::response::Response;
use perilune_protocol::{NativeRequest, Prompt, UsageReport};
use perilune_tokenizer::SpecialTokens;
use serde_json::Value;

use crate::app::{Served, SharedApp};
use crate::error::ApiError;
use crate::generation::Piece;
use crate::native_reply::{NativeChunks, NativeReply};
use crate::output_rule::compile_text;
use crate::output_text::{OutputText, StopStrings};
use crate::routes::generate::{Answer, Prepared, PreparedPrompt, answer};
use crate::routes::token_ids;
use crate::sampling::sampling_params;
use crate::sse::ChunkEvents;
use crate::token_limit::TokenLimit;

/// The handler.
pub async fn create(State(app): State<SharedApp>, request: Request) -> Response {
    answer::<NativeAnswer>(app, request).await
}

struct NativeAnswer {
    reply: NativeReply,
    specials: SpecialTokens,
    stops: StopStrings,
}

impl Answer for NativeAnswer {
    const ID_PREFIX: &'static str = "gen";
    const PROMPT_FIELD: &'static str = "text";
    type Whole = Value;
    type Events = ChunkEvents<NativeChunks>;

    fn prepare(app: &SharedApp, id: String, body: &Bytes) -> Result<Prepared<Self>, ApiError> {
        let mut request = NativeRequest::parse(body)?;
        app.settings.profile.apply(&mut request.options)?;
        let admission = app.admit(None)?;
        let served = &admission.served;
        let options = &request.options;
        let mut params = sampling_params(options, &served.defaults)?;
        params.logprobs = request.logprobs;
        let limit = TokenLimit::of(options, None, &served.defaults);
        let compile = |form| compile_text((served.text("sampling_params")?, app.settings.overload), form);
        let grammar = options.structured.as_ref().map(compile).transpose()?;
        let stops = StopStrings { texts: options.stop.clone(), min_tokens: options.min_tokens };
        let specials = if options.skip_special_tokens { SpecialTokens::Skip } else { SpecialTokens::Keep };
        let cache_salt = options.cache_salt.clone();
        let ids = request.prompts.into_iter().map(|prompt| prompt_ids(served, prompt));
        let reply = NativeReply {
            id: request.rid.clone().unwrap_or(id),
            tokenizer: served.text.as_ref().map(|text| text.tokenizer.clone()),
            prompts: ids.collect::<Result<_, _>>()?,
            n: options.n,
            listed: request.listed,
            texts: request.texts,
            logprobs: request.logprobs.is_some(),
            alternatives: request.logprobs.is_some_and(|count| count > 0),
        };
        let prompts = reply.prompts.iter().map(|ids| PreparedPrompt::plain(ids)).collect();
        let (n, stream, rid) = (reply.n, request.stream, request.rid);
        let answer = NativeAnswer { reply, specials, stops };
        Ok(Prepared { admission, prompts, cache_salt, grammar, rid, n, params, limit, stream, answer })
    }

    fn output(&self) -> Result<OutputText, ApiError> {
        match &self.reply.tokenizer {
            Some(tokenizer) => OutputText::plain(tokenizer.clone(), self.specials, self.stops.clone()),
            None => OutputText::ids(self.stops.clone()),
        }
    }

    fn whole(&self, choices: Vec<Piece>) -> Value {
        self.reply.whole(choices)
    }

    fn events(self, _report: UsageReport, num_choices: usize) -> Self::Events {
        ChunkEvents::new(NativeChunks::new(self.reply, num_choices), num_choices)
    }
}

fn prompt_ids(served: &Served, prompt: Prompt) -> Result<Vec<perilune_tensor::TokenId>, ApiError> {
    match prompt {
        Prompt::Ids(ids) => Ok(token_ids(ids)),
        Prompt::Text(text) => Ok(served.text("text")?.tokenizer.encode_text(&text)),
    }
}
