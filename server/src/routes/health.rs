//! Liveness, readiness, version and metrics.

use axum::Json;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use perilune_protocol::{Health, Readiness, Version};

use crate::app::SharedApp;
use crate::error::ApiError;
use crate::lifecycle::Phase;

/// `GET /health`: the process lives, whatever it does; 503 only once nothing can be served any more.
pub async fn health(State(app): State<SharedApp>) -> Response {
    match app.lifecycle.phase() {
        Phase::Failed(reason) => {
            let health = Health { status: "failed", reason: Some(reason) };
            (StatusCode::SERVICE_UNAVAILABLE, Json(health)).into_response()
        }
        _ => Json(Health { status: "ok", reason: None }).into_response(),
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
