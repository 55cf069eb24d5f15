//! What a step is to compute, and what came of it.

use std::ops::Range;

use perilune_cache::{CacheOp, SlotId};
use perilune_sampling::TokenLogprobs;

use crate::SeqId;

/// Whether a run ends in a new token.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Draws {
    /// Its last row draws the sequence's next token.
    Token,
    /// More of the prompt follows, or nothing is to be generated.
    Nothing,
}

/// The next tokens of one sequence.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PlannedRun {
    /// The sequence.
    pub seq: SeqId,
    /// Which of its tokens are computed: positions, not empty.
    pub tokens: Range<usize>,
    /// Positions among them whose logits score the prompt token that follows.
    pub scored: Range<usize>,
    /// Whether a token is drawn.
    pub draws: Draws,
    /// Copies of the state to take on the way, in rising order.
    pub snapshots: Vec<PlannedSnapshot>,
}

/// A copy of a sequence's state.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PlannedSnapshot {
    /// Tokens of the sequence that it includes: within the run, at least one of its tokens.
    pub position: usize,
    /// Slot that takes it.
    pub slot: SlotId,
}

/// A step. Runs are in order of arrival; each sequence has at most one.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct StepPlan {
    /// What is to be done with units of memory before anything is computed, in order.
    pub ops: Vec<CacheOp>,
    /// What to compute.
    pub runs: Vec<PlannedRun>,
    /// Sequences that gave up their memory for an earlier one and will be computed again.
    pub preempted: Vec<SeqId>,
}

/// What came of one row.
#[derive(Debug, Clone, PartialEq)]
pub enum RowOutcome {
    /// The token drawn or scored; its log-probabilities are kept where the caller asked for them.
    Token(TokenLogprobs),
    /// The logits were not finite.
    NonFinite,
}

/// What came of a run: one row per scored position, then one for the drawn token.
#[derive(Debug, Clone, PartialEq)]
pub struct RunOutcome {
    /// The sequence.
    pub seq: SeqId,
    /// The rows, in the order of positions.
    pub rows: Vec<RowOutcome>,
}
