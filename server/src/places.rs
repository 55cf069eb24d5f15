//! Places for requests that are under way at once: from the first byte of their body to the last of their answer.
//!
//! The engine's queue bounds what waits for the device; this bounds what is read and held before that.

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::http::Method;
use axum::middleware::Next;
use axum::response::Response;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::access::{Access, access};
use crate::app::SharedApp;
use crate::error::ApiError;
use crate::held_body::{Held, holding};

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
    match free.try_acquire_owned() {
        Ok(permit) => holding(next.run(request).await, Place(permit)),
        Err(_) => {
            let limit = app.places.limit.unwrap_or_default();
            let message =
                format!("{limit} requests are under way, as many as are let in at once (--max-concurrent-requests)");
            ApiError::overloaded(app.settings.overload, message).with_code("too_many_requests").for_path(path)
        }
    }
}
