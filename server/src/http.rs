//! The router: which path leads where, and what every response has in common.

use axum::Router;
use axum::extract::{MatchedPath, Request, State};
use axum::http::StatusCode;
use axum::middleware::{Next, from_fn_with_state};
use axum::response::Response;
use axum::routing::{get, post};
use perilune_protocol::ErrorKind;

use crate::access;
use crate::app::SharedApp;
use crate::error::ApiError;
use crate::request_id::tag;
use crate::routes::{admin, cache, chat, completions, health, messages, models, native, playground, responses, tokenize};

/// All routes of the server.
pub fn router(app: SharedApp) -> Router {
    Router::new()
        .route("/v1/chat/completions", post(chat::create))
        .route("/v1/completions", post(completions::create))
        .route("/v1/responses", post(responses::create))
        .route("/v1/messages", post(messages::create))
        .route("/v1/messages/count_tokens", post(messages::count_tokens))
        .route("/v1/models", get(models::list))
        .route("/v1/models/{*id}", get(models::retrieve))
        .route("/v1/embeddings", post(embeddings))
        .route("/generate", post(native::create))
        .route("/tokenize", post(tokenize::tokenize))
        .route("/detokenize", post(tokenize::detokenize))
        .route("/cache", get(cache::report))
        .route("/flush_cache", post(cache::flush))
        .route("/abort_request", post(admin::abort_request))
        .route("/server_info", get(admin::server_info))
        .route("/tokenizer_info", get(admin::tokenizer_info))
        .route("/", get(playground::home))
        .route("/playground", get(playground::page))
        .route("/health", get(health::health))
        .route("/ready", get(health::ready))
        .route("/version", get(health::version))
        .route("/metrics", get(health::metrics))
        .method_not_allowed_fallback(method_not_allowed)
        .fallback(unknown_route)
        .layer(from_fn_with_state(app.clone(), access::check))
        .layer(from_fn_with_state(app.clone(), count))
        .layer(from_fn_with_state(app.clone(), tag))
        .with_state(app)
}

async fn embeddings() -> ApiError {
    let message = "this server generates text; it offers no embeddings";
    ApiError::new(StatusCode::NOT_IMPLEMENTED, ErrorKind::InvalidRequestError, message)
}

async fn unknown_route(request: Request) -> ApiError {
    ApiError::not_found(format!("there is no route {} {}", request.method(), request.uri().path()))
}

async fn method_not_allowed(request: Request) -> ApiError {
    let message = format!("{} does not answer {}", request.uri().path(), request.method());
    ApiError::new(StatusCode::METHOD_NOT_ALLOWED, ErrorKind::InvalidRequestError, message)
}

async fn count(State(app): State<SharedApp>, request: Request, next: Next) -> Response {
    let route = request.extensions().get::<MatchedPath>().map_or("unknown", MatchedPath::as_str).to_owned();
    let response = next.run(request).await;
    app.metrics.count_response(&route, response.status().as_u16());
    response
}
