//! Memory for bodies that are still coming: a bound on all of them together.
//!
//! What has come is counted, not what was announced, so that a claim alone keeps nobody out.

use std::sync::atomic::{AtomicUsize, Ordering};

/// So many of the largest body may be read at once.
const LARGEST_BODIES: usize = 16;

/// Bytes that bodies may hold together while they are read.
#[derive(Debug)]
pub(crate) struct BodyRoom {
    limit: usize,
    taken: AtomicUsize,
}

/// What one body holds; given back when dropped.
pub(crate) struct BodyShare<'a> {
    room: &'a BodyRoom,
    taken: usize,
}

impl BodyRoom {
    /// Room for sixteen bodies of `max_body_bytes`.
    pub(crate) fn new(max_body_bytes: usize) -> Self {
        BodyRoom { limit: max_body_bytes.saturating_mul(LARGEST_BODIES), taken: AtomicUsize::new(0) }
    }

    /// Bytes in all.
    pub(crate) fn limit(&self) -> usize {
        self.limit
    }

    /// A body that holds nothing yet.
    pub(crate) fn enter(&self) -> BodyShare<'_> {
        BodyShare { room: self, taken: 0 }
    }
}

impl BodyShare<'_> {
    /// Takes `bytes` more; whether there was room.
    pub(crate) fn take(&mut self, bytes: usize) -> bool {
        let more = |taken: usize| taken.checked_add(bytes).filter(|sum| *sum <= self.room.limit);
        let fits = self.room.taken.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).is_ok();
        self.taken += if fits { bytes } else { 0 };
        fits
    }
}

impl Drop for BodyShare<'_> {
    fn drop(&mut self) {
        self.room.taken.fetch_sub(self.taken, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_taken_is_given_back() {
        let room = BodyRoom::new(1);
        let (mut first, mut second) = (room.enter(), room.enter());
        assert!(first.take(10) && second.take(6) && !second.take(1));
        drop(first);
        assert!(second.take(10) && !second.take(1));
        drop(second);
        assert_eq!(room.taken.load(Ordering::Relaxed), 0);
    }
}
