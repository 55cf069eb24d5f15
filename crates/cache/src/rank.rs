//! The order of eviction: value per length, with ageing.
//!
//! An item is a checkpoint with the blocks that only it keeps alive. Its value is the tokens whose computation a hit
//! saves times how often it was hit, per length that it holds. Ranks are that value on top of the rank of what was last
//! evicted, so that an item that is never hit again sinks while the others rise past it.

use std::collections::BTreeSet;

/// Items in the order in which they are evicted.
#[derive(Debug, Default)]
pub(crate) struct EvictionQueue {
    order: BTreeSet<(Rank, u32)>,
    /// The rank of what was last evicted.
    floor: Rank,
}

/// A rank: larger is evicted later.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub(crate) struct Rank(f64);

impl Eq for Rank {}

impl PartialOrd for Rank {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Rank {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.0.total_cmp(&other.0)
    }
}

impl EvictionQueue {
    /// The rank of an item whose hits save `tokens`, which was hit `uses` times and holds `len`.
    pub(crate) fn rank(&self, (tokens, uses): (usize, u32), len: usize) -> Rank {
        Rank(self.floor.0 + tokens as f64 * f64::from(uses) / len.max(1) as f64)
    }

    pub(crate) fn insert(&mut self, item: u32, rank: Rank) {
        self.order.insert((rank, item));
    }

    pub(crate) fn remove(&mut self, item: u32, rank: Rank) {
        self.order.remove(&(rank, item));
    }

    /// The item that goes next.
    pub(crate) fn lowest(&self) -> Option<(Rank, u32)> {
        self.order.first().copied()
    }

    /// Takes an item out because it is evicted.
    pub(crate) fn evict(&mut self, item: u32, rank: Rank) {
        self.remove(item, rank);
        self.floor = self.floor.max(rank);
    }
}
