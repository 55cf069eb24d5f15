//! What operators ask: the server's settings and figures, its tokenizer, and to end requests.

use axum::Json;
use axum::extract::{Request, State};
use perilune_protocol::{AbortRequest, Aborted, AddedToken, ServerInfo, ServerLimits, TokenizerInfo};
use perilune_tensor::TokenId;

use crate::app::SharedApp;
use crate::error::ApiError;
use crate::routes::read_body;

/// `GET /server_info`: versions, names, limits and what is going on. No key is shown.
pub async fn server_info(State(app): State<SharedApp>) -> Result<Json<ServerInfo>, ApiError> {
    let served = app.serving()?;
    let (config, stats) = (served.engine.config(), served.engine.stats());
    Ok(Json(ServerInfo {
        name: "perilune",
        version: env!("CARGO_PKG_VERSION"),
        served_model_names: app.settings.model_names.clone(),
        max_model_len: served.context_length,
        vocab_size: served.engine.vocab_size(),
        token_ids_only: served.text.is_none(),
        limits: ServerLimits {
            max_running_requests: config.max_running_requests,
            max_queued_requests: config.max_queued_requests,
            chunked_prefill_size: config.chunked_prefill_size,
            max_body_bytes: app.settings.max_body_bytes,
            body_timeout_s: app.settings.body_timeout.map(|time| time.as_secs_f64()),
            max_concurrent_requests: app.settings.max_concurrent_requests,
            max_queue_time_s: app.settings.max_queue_time.map(|time| time.as_secs_f64()),
        },
        block_size: config.cache.block_size,
        running: stats.running,
        waiting: stats.waiting,
        steps: stats.steps,
        prompt_tokens: stats.prompt_tokens,
        generated_tokens: stats.generated_tokens,
        preemptions: stats.preemptions,
    }))
}

/// `GET /tokenizer_info`: what `tokenizer_config.json` would say, in vLLM's shape.
pub async fn tokenizer_info(State(app): State<SharedApp>) -> Result<Json<TokenizerInfo>, ApiError> {
    let served = app.serving()?;
    let tokenizer = &served.text("tokenizer")?.tokenizer;
    let name = |id: Option<TokenId>| id.and_then(|id| tokenizer.special_name(id)).map(str::to_owned);
    let added = tokenizer
        .config()
        .added_tokens
        .iter()
        .map(|(id, token)| (id.0, AddedToken { content: token.content.clone(), special: token.special }));
    Ok(Json(TokenizerInfo {
        tokenizer_class: "TikTokenTokenizer",
        vocab_size: tokenizer.vocab_size(),
        num_base_tokens: tokenizer.num_base_tokens(),
        model_max_length: served.context_length,
        eos_token: name(tokenizer.eos_id()),
        stop_token_ids: tokenizer.stop_ids().iter().map(|id| id.0).collect(),
        added_tokens_decoder: added.collect(),
        chat_template: None,
    }))
}

/// `POST /abort_request`: `{"rid": ID}` ends the requests of that `X-Request-Id` (or `rid` of `/generate`),
/// `{"abort_all": true}` all of them.
pub async fn abort_request(State(app): State<SharedApp>, request: Request) -> Result<Json<Aborted>, ApiError> {
    let engine = app.serving()?.engine.clone();
    match AbortRequest::parse(&read_body(&app, request).await?)? {
        AbortRequest::All => {
            engine.abort_all();
            Ok(Json(Aborted { aborted: true }))
        }
        AbortRequest::Id(id) => Ok(Json(Aborted { aborted: app.aborts.abort(&id) })),
    }
}
