//! Places for requests that are under way at once: from the last byte of their body to the last of their answer.
//!
//! The engine's queue bounds what waits for the device; this bounds what is prepared and answered around it. A body that is
//! still coming takes no place, so that a slow client keeps nobody out; what it may hold is bounded by size and time.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::Method;
use axum::middleware::Next;
use axum::response::Response;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::access::{Access, access};
use crate::app::{App, SharedApp};
use crate::error::ApiError;
use crate::held_body::{Held, holding};
use crate::routes::read_bytes;

/// Places; of any number, where no limit is set.
#[derive(Debug)]
pub struct Places {
    limit: Option<usize>,
    free: Option<Arc<Semaphore>>,
}

/// A place that is taken.
struct Place(#[expect(dead_code, reason = "held to be dropped")] OwnedSemaphorePermit);

impl Held for Place {}

impl Places {
    /// So many places.
    pub fn new(limit: Option<usize>) -> Self {
        let semaphore = |limit: usize| Arc::new(Semaphore::new(limit.min(Semaphore::MAX_PERMITS)));
        Places { limit, free: limit.map(semaphore) }
    }
}

/// Lets a request in while there is a place. What operators need is always let in.
pub(crate) async fn take(State(app): State<SharedApp>, request: Request, next: Next) -> Response {
    let path = request.uri().path();
    let free = app.places.free.clone().filter(|_| request.method() == Method::POST && access(path) == Access::Users);
    let Some(free) = free else { return next.run(request).await };
    let path = path.to_owned();
    let request = match with_body(&app, request).await {
        Ok(request) => request,
        Err(error) => return error.for_path(&path),
    };
    match free.try_acquire_owned() {
        Ok(permit) => holding(next.run(request).await, Place(permit)),
        Err(_) => {
            let limit = app.places.limit.unwrap_or_default();
            let message =
                format!("{limit} requests are under way, as many as are let in at once (--max-concurrent-requests)");
            ApiError::overloaded(app.settings.overload, message).with_code("too_many_requests").for_path(&path)
        }
    }
}

/// The request once its body is here.
async fn with_body(app: &App, request: Request) -> Result<Request, ApiError> {
    let (parts, body) = request.into_parts();
    let head = Request::from_parts(parts.clone(), body);
    let body = read_bytes(app, head).await?;
    Ok(Request::from_parts(parts, Body::from(body)))
}
