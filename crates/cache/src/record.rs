//! What is known of a unit on disk.

use perilune_tensor::TokenId;

use crate::CacheKey;

/// A unit on disk; never used for another one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct RecordId(pub u64);

/// What a record holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum RecordKind {
    /// A whole latent block.
    Block,
    /// A block whose rows end within it; it serves only the state after it.
    Tail,
    /// A state.
    State,
}

/// A record and its place among the others: following the parents from a state gives its prefix.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Record {
    /// Which one.
    pub id: RecordId,
    /// What it holds.
    pub kind: RecordKind,
    /// The record that it continues; `None` at the start of a prefix.
    pub parent: Option<RecordId>,
    /// Whose prefix it is.
    pub key: CacheKey,
    /// Tokens that it adds to its parent's: a block's worth, fewer for a tail, none for a state.
    pub tokens: Box<[TokenId]>,
    /// Of a state: sequences that have started from it.
    pub starts: u32,
}

/// Why a record is not on disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum WriteFault {
    /// The disk is full, whatever the budget says.
    Full,
    /// Anything else.
    Other,
}
