//! Server-sent events: `data: {json}` lines, then `data: [DONE]`, whatever happens.
//!
//! A [`Chunks`] says what the chunks of an API look like; [`events`] decides their order: pieces as they come; after a
//! failure, an end for every choice that has none, then the error; usage where asked for; `[DONE]` last, always.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::time::Duration;

use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use futures_util::stream::{Stream, StreamExt, unfold};
use serde::Serialize;

use crate::error::ApiError;
use crate::generation::{Generation, Piece, Pieces, side_by_side};
use crate::lifecycle::InFlight;

/// The end of every stream.
const DONE: &str = "[DONE]";

/// How an API writes the chunks of a stream.
pub trait Chunks: Send + 'static {
    /// One chunk.
    type Chunk: Serialize;

    /// The chunk for a piece of choice `index`; `None` where it has nothing to say.
    fn piece(&mut self, index: usize, piece: Piece) -> Option<Self::Chunk>;

    /// The last chunk of a choice that ends with an error.
    fn failed(&mut self, index: usize) -> Self::Chunk;

    /// The chunk with the usage of the whole request, where it was asked for.
    fn usage(&mut self) -> Option<Self::Chunk>;
}

/// A request whose answer is streamed.
pub struct Streamed<C> {
    /// Its choices.
    pub choices: Vec<Generation>,
    /// How chunks look.
    pub chunks: C,
    /// Its place among the requests in flight.
    pub in_flight: InFlight,
}

/// The response that streams an answer. Dropping it (the client left) ends the generation.
pub fn respond<C: Chunks>(streamed: Streamed<C>, ping: Option<Duration>) -> Response {
    let events = events(streamed).map(|data| Ok::<_, Infallible>(Event::default().data(data)));
    match ping {
        Some(interval) => Sse::new(events).keep_alive(KeepAlive::new().interval(interval).text("ping")).into_response(),
        None => Sse::new(events).into_response(),
    }
}

/// The `data` of each event.
pub fn events<C: Chunks>(streamed: Streamed<C>) -> impl Stream<Item = String> + Send + 'static {
    let state = State {
        open: vec![true; streamed.choices.len()],
        pieces: Some(side_by_side(streamed.choices)),
        chunks: streamed.chunks,
        ready: VecDeque::new(),
        in_flight: Some(streamed.in_flight),
    };
    unfold(state, |mut state| async move { state.next().await.map(|data| (data, state)) })
}

struct State<C> {
    /// `None` once all choices have ended.
    pieces: Option<Pieces>,
    /// Which choices have not finished.
    open: Vec<bool>,
    chunks: C,
    ready: VecDeque<String>,
    in_flight: Option<InFlight>,
}

impl<C: Chunks> State<C> {
    async fn next(&mut self) -> Option<String> {
        loop {
            if let Some(data) = self.ready.pop_front() {
                return Some(data);
            }
            let Some(pieces) = &mut self.pieces else {
                self.in_flight = None;
                return None;
            };
            match pieces.next().await {
                Some((index, Ok(piece))) => self.piece(index, piece),
                Some((_, Err(error))) => self.fail(&error),
                None => self.finish(),
            }
        }
    }

    fn piece(&mut self, index: usize, piece: Piece) {
        if piece.finish.is_some()
            && let Some(open) = self.open.get_mut(index)
        {
            *open = false;
        }
        if let Some(chunk) = self.chunks.piece(index, piece) {
            self.push(&chunk);
        }
    }

    fn fail(&mut self, error: &ApiError) {
        for index in 0..self.open.len() {
            if self.open[index] {
                let chunk = self.chunks.failed(index);
                self.push(&chunk);
            }
        }
        self.push(&error.body());
        self.close();
    }

    fn finish(&mut self) {
        if let Some(chunk) = self.chunks.usage() {
            self.push(&chunk);
        }
        self.close();
    }

    fn close(&mut self) {
        self.ready.push_back(DONE.to_owned());
        self.pieces = None;
    }

    fn push(&mut self, chunk: &impl Serialize) {
        match serde_json::to_string(chunk) {
            Ok(data) => self.ready.push_back(data),
            Err(error) => tracing::error!(%error, "a chunk cannot be written as JSON"),
        }
    }
}
