//! Liveness, readiness, version and metrics.

use std::time::Duration;

use axum::Json;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use perilune_engine::{GenerateRequest, SamplingParams, TokenEvent};
use perilune_protocol::{Health, Readiness, Version};
use perilune_tensor::TokenId;

use crate::app::{App, SharedApp};
use crate::error::ApiError;
use crate::lifecycle::Phase;

/// How long one token may take.
const TOKEN_TIMEOUT: Duration = Duration::from_secs(20);

/// `GET /health`: the process lives, whatever it does; 503 only once nothing can be served any more.
pub async fn health(State(app): State<SharedApp>) -> Response {
    match app.lifecycle.phase() {
        Phase::Failed(reason) => failed(reason),
        _ => Json(Health { status: "ok", reason: None }).into_response(),
    }
}

fn failed(reason: String) -> Response {
    let health = Health { status: "failed", reason: Some(reason) };
    (StatusCode::SERVICE_UNAVAILABLE, Json(health)).into_response()
}

/// `GET /health_generate`, SGLang's: 200 once one token was generated, in its turn like any other; 503 where that fails or
/// takes too long.
pub async fn health_generate(State(app): State<SharedApp>) -> Response {
    match tokio::time::timeout(TOKEN_TIMEOUT, one_token(&app)).await {
        Ok(Ok(())) => Json(Health { status: "ok", reason: None }).into_response(),
        Ok(Err(reason)) => failed(reason),
        Err(_) => failed(format!("no token came within {} s", TOKEN_TIMEOUT.as_secs())),
    }
}

async fn one_token(app: &App) -> Result<(), String> {
    let admission = app.admit(None).map_err(|error| error.body().error.message)?;
    let params = SamplingParams { max_tokens: Some(1), temperature: 0.0, ..SamplingParams::default() };
    let request = GenerateRequest::new(vec![TokenId(0)], params);
    let mut stream = admission.served.engine.submit(request).map_err(|error| error.to_string())?;
    match stream.next().await {
        Some(TokenEvent::Token { .. }) => Ok(()),
        Some(TokenEvent::Failed { message, .. }) => Err(message),
        _ => Err("the engine ended the request without a token".to_owned()),
    }
}

/// `GET /ready`: 200 while requests are served; 503 while loading, draining, stalled, or after a failure.
pub async fn ready(State(app): State<SharedApp>) -> Response {
    let status = match app.lifecycle.phase() {
        Phase::Ready if app.is_stalled() => "stalled",
        Phase::Ready => return Json(Readiness { status: "ready" }).into_response(),
        Phase::Loading => "loading",
        Phase::Draining | Phase::Cut => "draining",
        Phase::Failed(_) => "failed",
    };
    (StatusCode::SERVICE_UNAVAILABLE, Json(Readiness { status })).into_response()
}

/// `GET /version`.
pub async fn version() -> Json<Version> {
    Json(Version { name: "perilune", version: env!("CARGO_PKG_VERSION") })
}

/// `GET /metrics`, in the OpenMetrics text format.
pub async fn metrics(State(app): State<SharedApp>) -> Result<Response, ApiError> {
    let page = app.metrics.render().map_err(|error| ApiError::server(format!("metrics: {error}")))?;
    let kind = "application/openmetrics-text; version=1.0.0; charset=utf-8";
    Ok(([(header::CONTENT_TYPE, kind)], page).into_response())
}
