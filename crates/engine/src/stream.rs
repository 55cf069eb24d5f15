//! The events of one request, on their way to its caller.

use std::task::{Context, Poll, ready};
use std::time::Instant;

use perilune_scheduler::SeqId;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender};
use tokio::sync::oneshot;

use crate::handle::Command;
use crate::{Fault, TokenEvent};

/// The events of one request. Dropping it before its last event ends the generation; at most one more step computes it.
///
/// Events wait here until they are read; there are never more of them than `max_tokens` and two.
#[derive(Debug)]
pub struct TokenStream {
    id: SeqId,
    events: UnboundedReceiver<TokenEvent>,
    commands: UnboundedSender<Command>,
    start: Start,
    ended: Ended,
}

/// When the request left the queue.
#[derive(Debug)]
enum Start {
    /// Not known to have.
    Ahead(oneshot::Receiver<Instant>),
    /// Then.
    At(Instant),
    /// The engine went away before.
    Never,
}

/// Whether the last event was delivered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Ended {
    No,
    Yes,
}

impl TokenStream {
    pub(crate) fn new(
        id: SeqId,
        (events, start): (UnboundedReceiver<TokenEvent>, oneshot::Receiver<Instant>),
        commands: UnboundedSender<Command>,
    ) -> Self {
        TokenStream { id, events, commands, start: Start::Ahead(start), ended: Ended::No }
    }

    /// Waits until the request has its first step, or has ended without one; when that was. `None` from an engine that is
    /// gone. No event is taken.
    pub async fn started(&mut self) -> Option<Instant> {
        if let Start::Ahead(start) = &mut self.start {
            self.start = start.await.map_or(Start::Never, Start::At);
        }
        self.started_at()
    }

    /// What [`TokenStream::started`] would return, if it would do so at once.
    pub fn started_at(&mut self) -> Option<Instant> {
        if let Start::Ahead(start) = &mut self.start
            && let Ok(at) = start.try_recv()
        {
            self.start = Start::At(at);
        }
        match self.start {
            Start::At(at) => Some(at),
            Start::Ahead(_) | Start::Never => None,
        }
    }

    /// The request's number, in order of submission.
    pub fn id(&self) -> u64 {
        self.id.0
    }

    /// Ends the generation as dropping does, but counts it as stopped: the caller has found its end in the text.
    pub fn stop(mut self) {
        if self.ended == Ended::No {
            self.ended = Ended::Yes;
            // An engine that is gone has nothing left to stop.
            let _ = self.commands.send(Command::Stop(self.id));
        }
    }

    /// The next event; `None` after the last one.
    pub async fn next(&mut self) -> Option<TokenEvent> {
        std::future::poll_fn(|cx| self.poll_next(cx)).await
    }

    /// The next event, for callers that poll; `None` after the last one.
    pub fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Option<TokenEvent>> {
        if self.ended == Ended::Yes {
            return Poll::Ready(None);
        }
        let event = ready!(self.events.poll_recv(cx));
        Poll::Ready(Some(self.note(event)))
    }

    /// The next event, for callers without an async runtime; `None` after the last one. Waits on the calling thread, and
    /// must not be called inside an async runtime.
    pub fn blocking_next(&mut self) -> Option<TokenEvent> {
        if self.ended == Ended::Yes {
            return None;
        }
        let event = self.events.blocking_recv();
        Some(self.note(event))
    }

    /// A channel that closes without a last event means that the engine thread is gone.
    fn note(&mut self, event: Option<TokenEvent>) -> TokenEvent {
        let event = event
            .unwrap_or_else(|| TokenEvent::Failed { fault: Fault::Engine, message: "the engine has stopped".into() });
        if event.is_last() {
            self.ended = Ended::Yes;
        }
        event
    }
}

impl Drop for TokenStream {
    fn drop(&mut self) {
        if self.ended == Ended::No {
            // An engine that is gone has nothing left to abort.
            let _ = self.commands.send(Command::Abort(self.id));
        }
    }
}
