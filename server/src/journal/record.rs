//! What the choices of one request note.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

/// One choice, from its submission to its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Turn {
    pub submitted: Instant,
    /// Its first step; `None` where it had none.
    pub started: Option<Instant>,
    pub first_token: Option<Instant>,
    pub ended: Instant,
    /// As usage counts them.
    pub prompt_tokens: usize,
    /// Of those, not computed but reused.
    pub cached_tokens: usize,
    pub completion_tokens: usize,
    /// Why it ended.
    pub end: &'static str,
}

/// The choices of one request that have ended.
#[derive(Debug, Default)]
pub(crate) struct RequestRecord(Mutex<Vec<Turn>>);

impl RequestRecord {
    fn push(&self, turn: Turn) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(turn);
    }

    /// All of them, which are forgotten.
    pub(crate) fn take(&self) -> Vec<Turn> {
        std::mem::take(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// A choice that goes on; noted when dropped.
#[derive(Debug)]
pub(crate) struct OpenTurn {
    /// `None` where nothing is noted.
    record: Option<Arc<RequestRecord>>,
    /// So far.
    pub turn: Turn,
}

impl OpenTurn {
    /// A choice that was submitted at `submitted`: a moment before the engine got it.
    pub(crate) fn begin(record: Option<Arc<RequestRecord>>, submitted: Instant, prompt_tokens: usize) -> Self {
        let turn = Turn {
            submitted,
            started: None,
            first_token: None,
            ended: submitted,
            prompt_tokens,
            cached_tokens: 0,
            completion_tokens: 0,
            end: "left",
        };
        OpenTurn { record, turn }
    }
}

impl Drop for OpenTurn {
    fn drop(&mut self) {
        if let Some(record) = &self.record {
            record.push(Turn { ended: Instant::now(), ..self.turn });
        }
    }
}
