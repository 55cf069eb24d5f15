//! A response body that holds something until it was sent, or nobody waits for it any more.

use std::pin::Pin;
use std::task::{Context, Poll, ready};

use axum::body::{Body, Bytes, HttpBody};
use axum::response::Response;
use http_body::{Frame, SizeHint};

/// What a body can hold.
pub(crate) trait Held: Send + Unpin + 'static {
    /// So many bytes were taken to be sent.
    fn sent(&mut self, _num_bytes: usize) {}
}

struct HeldBody<T> {
    body: Body,
    held: T,
}

/// `response`, with a body that drops `held` at its end.
pub(crate) fn holding<T: Held>(response: Response, held: T) -> Response {
    response.map(|body| Body::new(HeldBody { body, held }))
}

impl<T: Held> HttpBody for HeldBody<T> {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let frame = ready!(Pin::new(&mut self.body).poll_frame(cx));
        if let Some(data) = frame.as_ref().and_then(|frame| frame.as_ref().ok()).and_then(Frame::data_ref) {
            let num_bytes = data.len();
            self.held.sent(num_bytes);
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
