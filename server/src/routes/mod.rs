//! The HTTP routes, one file each, and what they share: reading a bounded body of JSON, leaving the reactor for text work.

pub mod admin;
pub mod cache;
pub mod chat;
pub mod completions;
mod content_type;
pub mod docs;
pub(crate) mod generate;
pub mod health;
pub mod messages;
pub mod models;
pub mod native;
pub mod playground;
pub mod responses;
pub mod tokenize;

use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::extract::Request;
use axum::http::{StatusCode, header};
use futures_util::StreamExt;
use perilune_protocol::ErrorKind;
use perilune_tensor::TokenId;

use crate::app::App;
use crate::error::ApiError;
use crate::request_id::RequestId;

/// The id of the request at hand.
pub(crate) fn request_id(request: &Request) -> String {
    request.extensions().get::<RequestId>().map_or_else(String::new, |id| id.0.clone())
}

/// Reads a body of JSON of at most the configured size.
pub(crate) async fn read_body(app: &App, request: Request) -> Result<Bytes, ApiError> {
    content_type::check(request.headers())?;
    read_bytes(app, request).await
}

/// Reads a body of at most the configured size, in the configured time; a longer one is refused by its claim, before it is
/// read.
pub(crate) async fn read_bytes(app: &App, request: Request) -> Result<Bytes, ApiError> {
    let limit = app.settings.max_body_bytes;
    let too_large = || {
        let message = format!("the body is larger than {limit} bytes (--max-body-bytes)");
        ApiError::new(StatusCode::PAYLOAD_TOO_LARGE, ErrorKind::InvalidRequestError, message)
    };
    let claim = request.headers().get(header::CONTENT_LENGTH).and_then(|value| value.to_str().ok());
    if claim.and_then(|claim| claim.parse::<u64>().ok()).is_some_and(|claim| claim > limit as u64) {
        return Err(too_large());
    }
    in_time(app.settings.body_timeout, collect(app, request.into_body(), too_large)).await?
}

/// The whole body, held to its own limit and to that of all bodies together.
async fn collect(app: &App, body: Body, too_large: impl Fn() -> ApiError) -> Result<Bytes, ApiError> {
    let mut room = app.body_room.enter();
    let mut parts = body.into_data_stream();
    let mut whole = Vec::new();
    while let Some(part) = parts.next().await {
        let part = part.map_err(|error| ApiError::invalid(format!("the body could not be read: {error}"), None))?;
        if whole.len() + part.len() > app.settings.max_body_bytes {
            return Err(too_large());
        }
        if !room.take(part.len()) {
            return Err(no_room(app));
        }
        whole.extend_from_slice(&part);
    }
    Ok(Bytes::from(whole))
}

fn no_room(app: &App) -> ApiError {
    let limit = app.body_room.limit();
    let message = format!(
        "the bodies that are being read hold {limit} bytes, as many as they may together (16 times --max-body-bytes); \
         try again later"
    );
    ApiError::overloaded(app.settings.overload, message).with_code("no_body_room")
}

async fn in_time<T>(limit: Option<Duration>, reading: impl Future<Output = T>) -> Result<T, ApiError> {
    let Some(limit) = limit else { return Ok(reading.await) };
    tokio::time::timeout(limit, reading).await.map_err(|_| {
        let message = format!("the body did not come within {} s (--body-timeout)", limit.as_secs_f64());
        ApiError::new(StatusCode::REQUEST_TIMEOUT, ErrorKind::InvalidRequestError, message).with_code("body_timeout")
    })
}

/// Runs parsing, rendering and tokenising on a thread that may block, so that a large request delays no other.
pub(crate) async fn off_reactor<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, ApiError> + Send + 'static,
) -> Result<T, ApiError> {
    match tokio::task::spawn_blocking(work).await {
        Ok(result) => result,
        Err(error) => {
            tracing::error!(%error, "a request could not be prepared");
            Err(ApiError::server("the request could not be prepared; the fault is the server's"))
        }
    }
}

/// Ids as the engine takes them.
pub(crate) fn token_ids(ids: Vec<u32>) -> Vec<TokenId> {
    ids.into_iter().map(TokenId).collect()
}
