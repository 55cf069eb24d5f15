//! The host tier's account: how much of its budget evicted units take. The bytes are kept by whoever performs the
//! [`crate::CacheOp`]s.

/// A unit kept in host memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct HostId(pub u64);

/// Lengths are those of the arena.
#[derive(Debug, Default)]
pub(crate) struct HostAccount {
    budget: usize,
    used: usize,
    next: u64,
}

impl HostAccount {
    pub(crate) fn new(budget: usize) -> Self {
        HostAccount { budget, used: 0, next: 0 }
    }

    pub(crate) fn budget(&self) -> usize {
        self.budget
    }

    pub(crate) fn used(&self) -> usize {
        self.used
    }

    pub(crate) fn has_room(&self, len: usize) -> bool {
        self.used + len <= self.budget
    }

    /// Books a unit; ids are never used twice.
    pub(crate) fn book(&mut self, len: usize) -> HostId {
        self.used += len;
        self.pass_through()
    }

    /// An id for a unit that is only on its way between device and disk: outside the budget.
    pub(crate) fn pass_through(&mut self) -> HostId {
        self.next += 1;
        HostId(self.next)
    }

    pub(crate) fn release(&mut self, len: usize) {
        self.used -= len;
    }
}
