//! Why a lease was not given.

/// A request for memory that the pools cannot meet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum CacheError {
    /// Too few blocks are free now.
    #[error("{needed} more blocks are needed, {free} are free")]
    OutOfBlocks {
        /// Blocks still missing.
        needed: usize,
        /// Blocks free.
        free: usize,
    },
    /// All state slots are taken.
    #[error("all {total} state slots are taken")]
    OutOfSlots {
        /// Size of the pool.
        total: usize,
    },
    /// More tokens than all blocks together hold.
    #[error("{tokens} tokens exceed the {capacity} that all blocks together hold")]
    NeverFits {
        /// Tokens asked for.
        tokens: usize,
        /// Tokens that fit.
        capacity: usize,
    },
}
