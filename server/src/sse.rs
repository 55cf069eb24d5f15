//! Server-sent events: what an API says in a stream, in its order, whatever happens.
//!
//! An [`EventWriter`] says which events follow a piece, a failure, the end; [`events`] asks it. Most APIs send unnamed
//! chunks and close with `[DONE]`: a [`Chunks`] says what such chunks look like, [`ChunkEvents`] decides their order: pieces
//! as they come; after a failure, an end for every choice that has none, then the error; usage where asked for; `[DONE]`
//! last, always.

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

/// The end of every stream of chunks.
const DONE: &str = "[DONE]";

/// An event: its name, where it has one, and its data.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SseEvent {
    /// `event:`.
    pub name: Option<&'static str>,
    /// `data:`, one line.
    pub data: String,
}

impl SseEvent {
    /// An event with `value` as JSON.
    pub fn json(name: Option<&'static str>, value: &impl Serialize) -> Self {
        let data = serde_json::to_string(value).unwrap_or_else(|error| {
            tracing::error!(%error, "an event cannot be written as JSON");
            "{}".to_owned()
        });
        SseEvent { name, data }
    }
}

/// What an API says in a stream.
pub trait EventWriter: Send + 'static {
    /// Before anything is generated.
    fn begin(&mut self) -> Vec<SseEvent> {
        Vec::new()
    }

    /// For a piece of choice `index`.
    fn piece(&mut self, index: usize, piece: Piece) -> Vec<SseEvent>;

    /// After a failure; nothing follows.
    fn fail(&mut self, error: &ApiError) -> Vec<SseEvent>;

    /// After all choices have ended; nothing follows.
    fn end(&mut self) -> Vec<SseEvent>;
}

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

/// Chunks as events.
pub struct ChunkEvents<C> {
    chunks: C,
    /// Which choices have not finished.
    open: Vec<bool>,
}

impl<C: Chunks> ChunkEvents<C> {
    /// The events of so many choices.
    pub fn new(chunks: C, num_choices: usize) -> Self {
        ChunkEvents { chunks, open: vec![true; num_choices] }
    }
}

impl<C: Chunks> EventWriter for ChunkEvents<C> {
    fn piece(&mut self, index: usize, piece: Piece) -> Vec<SseEvent> {
        if piece.finish.is_some()
            && let Some(open) = self.open.get_mut(index)
        {
            *open = false;
        }
        self.chunks.piece(index, piece).iter().map(|chunk| SseEvent::json(None, chunk)).collect()
    }

    fn fail(&mut self, error: &ApiError) -> Vec<SseEvent> {
        let open = (0..self.open.len()).filter(|index| self.open[*index]);
        let mut events: Vec<SseEvent> = open.map(|index| SseEvent::json(None, &self.chunks.failed(index))).collect();
        events.push(SseEvent::json(None, &error.body()));
        events.push(SseEvent { name: None, data: DONE.to_owned() });
        events
    }

    fn end(&mut self) -> Vec<SseEvent> {
        let usage = self.chunks.usage();
        let mut events: Vec<SseEvent> = usage.iter().map(|chunk| SseEvent::json(None, chunk)).collect();
        events.push(SseEvent { name: None, data: DONE.to_owned() });
        events
    }
}

/// A request whose answer is streamed.
pub struct Streamed<W> {
    /// Its choices.
    pub choices: Vec<Generation>,
    /// What is said of them.
    pub writer: W,
    /// Its place among the requests in flight.
    pub in_flight: InFlight,
}

/// The response that streams an answer. Dropping it (the client left) ends the generation.
pub fn respond<W: EventWriter>(streamed: Streamed<W>, ping: Option<Duration>) -> Response {
    let event = |event: SseEvent| {
        let named = event.name.map_or_else(Event::default, |name| Event::default().event(name));
        Ok::<_, Infallible>(named.data(event.data))
    };
    let events = events(streamed).map(event);
    match ping {
        Some(interval) => Sse::new(events).keep_alive(KeepAlive::new().interval(interval).text("ping")).into_response(),
        None => Sse::new(events).into_response(),
    }
}

/// The events, in order.
pub fn events<W: EventWriter>(mut streamed: Streamed<W>) -> impl Stream<Item = SseEvent> + Send + 'static {
    let state = State {
        pieces: Some(side_by_side(streamed.choices)),
        ready: streamed.writer.begin().into(),
        writer: streamed.writer,
        in_flight: Some(streamed.in_flight),
    };
    unfold(state, |mut state| async move { state.next().await.map(|event| (event, state)) })
}

struct State<W> {
    /// `None` once all choices have ended.
    pieces: Option<Pieces>,
    writer: W,
    ready: VecDeque<SseEvent>,
    in_flight: Option<InFlight>,
}

impl<W: EventWriter> State<W> {
    async fn next(&mut self) -> Option<SseEvent> {
        loop {
            if let Some(event) = self.ready.pop_front() {
                return Some(event);
            }
            let Some(pieces) = &mut self.pieces else {
                self.in_flight = None;
                return None;
            };
            let events = match pieces.next().await {
                Some((index, Ok(piece))) => self.writer.piece(index, piece),
                Some((_, Err(error))) => {
                    self.pieces = None;
                    self.writer.fail(&error)
                }
                None => {
                    self.pieces = None;
                    self.writer.end()
                }
            };
            self.ready.extend(events);
        }
    }
}
