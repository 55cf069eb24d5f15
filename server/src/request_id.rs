//! `X-Request-Id`: the client's own, or a new one; on every response, and part of every completion's id.
//!
//! An id that is not 1 to 128 visible ASCII characters is replaced, and a warning says so.

use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicU64, Ordering};

use axum::extract::{Request, State};
use axum::http::{HeaderName, HeaderValue};
use axum::middleware::Next;
use axum::response::Response;

use crate::app::SharedApp;

const HEADER: HeaderName = HeaderName::from_static("x-request-id");
/// Longest id taken from a client, in bytes.
const MAX_BYTES: usize = 128;

/// The id of the request at hand, found in its extensions.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RequestId(pub String);

/// Makes ids that no other request of this or another process has.
#[derive(Debug)]
pub struct RequestIds {
    process: u64,
    next: AtomicU64,
}

impl Default for RequestIds {
    fn default() -> Self {
        RequestIds { process: RandomState::new().hash_one(std::process::id()), next: AtomicU64::new(0) }
    }
}

impl RequestIds {
    fn make(&self) -> String {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        format!("{:016x}{number:08x}", self.process)
    }
}

/// Tags a request and its response.
pub async fn tag(State(app): State<SharedApp>, mut request: Request, next: Next) -> Response {
    let given = request.headers().get(&HEADER);
    let id = match given.and_then(|value| value.to_str().ok()).filter(|id| acceptable(id)) {
        Some(id) => id.to_owned(),
        None => {
            let id = app.request_ids.make();
            if let Some(given) = given {
                tracing::warn!(?given, id, "an X-Request-Id is replaced: it must be 1 to 128 visible ASCII characters");
            }
            id
        }
    };
    request.extensions_mut().insert(RequestId(id.clone()));
    let mut response = next.run(request).await;
    if let Ok(value) = HeaderValue::from_str(&id) {
        response.headers_mut().insert(HEADER, value);
    }
    response
}

fn acceptable(id: &str) -> bool {
    !id.is_empty() && id.len() <= MAX_BYTES && id.bytes().all(|byte| byte.is_ascii_graphic())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_differ_and_are_acceptable() {
        let ids = RequestIds::default();
        let (a, b) = (ids.make(), ids.make());
        assert_ne!(a, b);
        assert!(acceptable(&a) && acceptable("abc-123/4"));
        for bad in ["", "a b", "é", "a\n", &"x".repeat(129)] {
            assert!(!acceptable(bad), "{bad:?}");
        }
    }
}
