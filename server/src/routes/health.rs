//! Liveness, readiness, version and metrics.

use axum::Json;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde_json::json;

use crate::app::SharedApp;
use crate::error::ApiError;
use crate::lifecycle::Phase;

/// `GET /health`: the process lives, whatever it does; 503 only once nothing can be served any more.
pub async fn health(State(app): State<SharedApp>) -> Response {
    match app.lifecycle.phase() {
        Phase::Failed(reason) => {
            (StatusCode::SERVICE_UNAVAILABLE, Json(json!({"status": "failed", "reason": reason}))).into_response()
        }
        _ => Json(json!({"status": "ok"})).into_response(),
    }
}

/// `GET /ready`: 200 while requests are served; 503 while loading, draining, stalled, or after a failure.
pub async fn ready(State(app): State<SharedApp>) -> Response {
    let status = match app.lifecycle.phase() {
        Phase::Ready if app.is_stalled() => "stalled",
        Phase::Ready => return Json(json!({"status": "ready"})).into_response(),
        Phase::Loading => "loading",
        Phase::Draining | Phase::Cut => "draining",
        Phase::Failed(_) => "failed",
    };
    (StatusCode::SERVICE_UNAVAILABLE, Json(json!({"status": status}))).into_response()
}

/// `GET /version`.
pub async fn version() -> Response {
    Json(json!({"name": "perilune", "version": env!("CARGO_PKG_VERSION")})).into_response()
}

/// `GET /metrics`, in the OpenMetrics text format.
pub async fn metrics(State(app): State<SharedApp>) -> Result<Response, ApiError> {
    let page = app.metrics.render().map_err(|error| ApiError::server(format!("metrics: {error}")))?;
    let kind = "application/openmetrics-text; version=1.0.0; charset=utf-8";
    Ok(([(header::CONTENT_TYPE, kind)], page).into_response())
}
