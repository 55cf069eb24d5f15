//! The router: which path leads where, and what every response has in common.
//!
//! A route is its path, its handler, and what the OpenAPI document says of it, in one line of one list.

use axum::extract::{MatchedPath, Request, State};
use axum::handler::Handler;
use axum::http::StatusCode;
use axum::middleware::{Next, from_fn_with_state};
use axum::response::Response;
use axum::routing::{MethodRouter, get, post};
use axum::{Extension, Router};
use perilune_protocol::ErrorKind;

use crate::access;
use crate::app::SharedApp;
use crate::error::ApiError;
use crate::journal;
use crate::openapi::{Documentation, Documented, Operation, operations as op};
use crate::places;
use crate::request_id::tag;
use crate::routes::{
    admin, cache, chat, completions, docs, health, messages, models, native, playground, responses, tokenize,
};

/// A path, where it leads, and what is said of it.
struct Route {
    path: &'static str,
    /// In lower case.
    method: &'static str,
    handler: MethodRouter<SharedApp>,
    operation: Operation,
}

impl Route {
    fn get<H: Handler<T, SharedApp>, T: 'static>(path: &'static str, handler: H, operation: Operation) -> Self {
        Route { path, method: "get", handler: get(handler), operation }
    }

    fn post<H: Handler<T, SharedApp>, T: 'static>(path: &'static str, handler: H, operation: Operation) -> Self {
        Route { path, method: "post", handler: post(handler), operation }
    }

    fn documented(&self) -> Documented<'_> {
        Documented { path: self.path, method: self.method, operation: &self.operation }
    }
}

fn routes() -> Vec<Route> {
    vec![
        Route::post("/v1/chat/completions", chat::create, op::chat()),
        Route::post("/v1/completions", completions::create, op::completions()),
        Route::post("/v1/responses", responses::create, op::responses()),
        Route::post("/v1/messages", messages::create, op::messages()),
        Route::post("/v1/messages/count_tokens", messages::count_tokens, op::count_tokens()),
        Route::get("/v1/models", models::list, op::models()),
        Route::get("/v1/models/{*id}", models::retrieve, op::model()),
        Route::post("/v1/embeddings", embeddings, op::embeddings()),
        Route::post("/generate", native::create, op::generate()),
        Route::post("/tokenize", tokenize::tokenize, op::tokenize()),
        Route::post("/detokenize", tokenize::detokenize, op::detokenize()),
        Route::get("/cache", cache::report, op::cache()),
        Route::post("/flush_cache", cache::flush, op::flush_cache()),
        Route::post("/abort_request", admin::abort_request, op::abort_request()),
        Route::get("/server_info", admin::server_info, op::server_info()),
        Route::get("/tokenizer_info", admin::tokenizer_info, op::tokenizer_info()),
        Route::get("/", playground::home, op::home()),
        Route::get("/playground", playground::page, op::playground()),
        Route::get("/health", health::health, op::health()),
        Route::get("/health_generate", health::health_generate, op::health_generate()),
        Route::get("/ready", health::ready, op::ready()),
        Route::get("/version", health::version, op::version()),
        Route::get("/metrics", health::metrics, op::metrics()),
        Route::get("/openapi.json", docs::document, op::document()),
        Route::get("/docs", docs::page, op::page()),
    ]
}

/// All routes of the server.
pub fn router(app: SharedApp) -> Router {
    let routes = routes();
    let documentation = Documentation::of(routes.iter().map(Route::documented));
    let add = |router: Router<SharedApp>, route: Route| router.route(route.path, route.handler);
    routes
        .into_iter()
        .fold(Router::new(), add)
        .method_not_allowed_fallback(method_not_allowed)
        .fallback(unknown_route)
        .layer(Extension(documentation))
        .layer(from_fn_with_state(app.clone(), places::take))
        .layer(from_fn_with_state(app.clone(), access::check))
        .layer(from_fn_with_state(app.clone(), count))
        .layer(from_fn_with_state(app.clone(), journal::note))
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

#[cfg(test)]
mod tests {
    use super::*;

    /// Whoever adds a route in another way than by the list would leave it out of the document.
    #[test]
    fn routes_come_from_the_list_alone_and_once() {
        let source = include_str!("http.rs");
        let calls = source.lines().filter(|line| line.contains(concat!(".rou", "te(")));
        assert_eq!(calls.count(), 1);
        let mut seen = std::collections::BTreeSet::new();
        assert!(routes().iter().all(|route| seen.insert((route.path, route.method))));
    }
}
