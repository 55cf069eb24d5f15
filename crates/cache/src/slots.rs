//! State slots, one per running sequence, each lending stamped with a generation.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// A state slot in one of its lendings. Two lendings of the same slot differ in their generation, so that a stale id
/// can be told from a current one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SlotId {
    /// Place in the state tensors.
    pub index: u32,
    /// How many times the slot was lent before.
    pub generation: u64,
}

#[derive(Debug)]
struct State {
    free: Vec<u32>,
    /// Per slot: the generation it is lent in now or will be lent in next.
    generations: Vec<u64>,
}

/// All state slots. Cloning gives another handle on the same pool.
#[derive(Debug, Clone)]
pub struct StateSlots {
    state: Arc<Mutex<State>>,
    total: usize,
}

impl StateSlots {
    /// A pool of `total` free slots, lent lowest index first.
    pub fn new(total: u32) -> Self {
        let state = State { free: (0..total).rev().collect(), generations: vec![0; total as usize] };
        StateSlots { state: Arc::new(Mutex::new(state)), total: total as usize }
    }

    /// Size of the pool.
    pub fn total(&self) -> usize {
        self.total
    }

    /// Slots not lent.
    pub fn free(&self) -> usize {
        self.lock().free.len()
    }

    /// Lends a slot, whose contents are whatever its last holder left; `None` where none is free.
    pub fn lease(&self) -> Option<SlotLease> {
        let mut state = self.lock();
        let index = state.free.pop()?;
        let id = SlotId { index, generation: state.generations[index as usize] };
        drop(state);
        Some(SlotLease { id, pool: self.clone() })
    }

    /// Whether `id` is lent now, in this very lending.
    pub fn is_current(&self, id: SlotId) -> bool {
        let state = self.lock();
        let lent = state.generations.get(id.index as usize) == Some(&id.generation);
        lent && !state.free.contains(&id.index)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// One slot, lent until dropped.
#[derive(Debug)]
pub struct SlotLease {
    id: SlotId,
    pool: StateSlots,
}

impl SlotLease {
    /// The slot.
    pub fn id(&self) -> SlotId {
        self.id
    }
}

impl Drop for SlotLease {
    fn drop(&mut self) {
        let mut state = self.pool.lock();
        state.generations[self.id.index as usize] += 1;
        state.free.push(self.id.index);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slot_comes_back_in_a_new_generation() {
        let slots = StateSlots::new(1);
        let lease = slots.lease().expect("a free slot");
        let first = lease.id();
        assert!(slots.is_current(first));
        assert!(slots.lease().is_none());
        drop(lease);
        assert!(!slots.is_current(first));
        let second = slots.lease().expect("a free slot").id();
        assert_eq!((second.index, second.generation), (first.index, first.generation + 1));
        assert!(!slots.is_current(first));
    }

    #[test]
    fn ids_out_of_range_are_not_current() {
        assert!(!StateSlots::new(1).is_current(SlotId { index: 1, generation: 0 }));
    }
}
