//! Why memory was not lent.

/// A request for memory that cannot be met, everything evictable counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum CacheError {
    /// Too few blocks can be had now.
    #[error("{needed} more blocks are needed, {free} can be had")]
    OutOfBlocks {
        /// Blocks still missing.
        needed: usize,
        /// Blocks that can be had.
        free: usize,
    },
    /// No room for another state slot.
    #[error("no room for another state slot; {total} would fit without blocks")]
    OutOfSlots {
        /// Slots that fit without blocks.
        total: usize,
    },
}
