//! How the rows of a step belong to sequences, as index tensors on the device.
//!
//! Index tensors are device tensors so that a recorded step can be replayed after only their contents changed.

/// Runs of consecutive rows, each the next tokens of one sequence. A decode row is a run of length 1.
///
/// The first `count` entries of each tensor count; the tensors may be longer.
#[derive(Debug)]
pub struct Segments<'a, T> {
    /// Number of runs `S`.
    pub count: usize,
    /// `U32 [>= S]`: first row of the run in the step's row tensors. Runs do not overlap.
    pub start: &'a T,
    /// `U32 [>= S]`: rows of the run, at least 1.
    pub len: &'a T,
    /// `U32 [>= S]`: position of the run's first token in its sequence, which is how many tokens came before it.
    pub position: &'a T,
    /// `U32 [>= S]`: KDA state slot of the sequence. Distinct among the runs of one operation.
    pub slot: &'a T,
}

impl<T> Clone for Segments<'_, T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Segments<'_, T> {}

/// Which latent blocks hold the tokens of each run, in compressed rows.
#[derive(Debug)]
pub struct BlockTables<'a, T> {
    /// `U32 [>= S + 1]`: run `s` owns `blocks[offset[s] .. offset[s + 1]]`.
    pub offset: &'a T,
    /// `U32`: block ids in sequence order; block `b` of a run holds positions `b * block_size ..`.
    pub blocks: &'a T,
}

impl<T> Clone for BlockTables<'_, T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for BlockTables<'_, T> {}
