//! What a running sequence holds.

use std::sync::{Arc, Mutex, PoisonError};

use crate::tree::NodeId;
use crate::{BlockId, SlotId};

/// What one running sequence holds: a state slot, and blocks for its tokens in order. Dropping it gives everything back.
#[derive(Debug)]
pub struct SequenceCache {
    pub(crate) held: Option<Held>,
    pub(crate) returns: Returns,
}

/// Sequences that were dropped, to be taken back at the next opportunity.
pub(crate) type Returns = Arc<Mutex<Vec<Held>>>;

#[derive(Debug)]
pub(crate) struct Held {
    pub(crate) slot: SlotId,
    /// The node whose path this sequence uses and locks.
    pub(crate) node: NodeId,
    /// Blocks of the path.
    pub(crate) shared: usize,
    /// The block table: shared ones, then its own.
    pub(crate) table: Vec<BlockId>,
}

impl SequenceCache {
    /// The state slot.
    pub fn slot(&self) -> SlotId {
        self.held().slot
    }

    /// The block table: block `b` holds tokens `b * block_size ..`.
    pub fn blocks(&self) -> &[BlockId] {
        &self.held().table
    }

    #[allow(clippy::expect_used)] // taken by `drop` and by functions that consume the sequence
    pub(crate) fn held(&self) -> &Held {
        self.held.as_ref().expect("a sequence's memory was taken while it was in use")
    }

    #[allow(clippy::expect_used)] // as above
    pub(crate) fn held_mut(&mut self) -> &mut Held {
        self.held.as_mut().expect("a sequence's memory was taken while it was in use")
    }
}

impl Drop for SequenceCache {
    fn drop(&mut self) {
        if let Some(held) = self.held.take() {
            self.returns.lock().unwrap_or_else(PoisonError::into_inner).push(held);
        }
    }
}
