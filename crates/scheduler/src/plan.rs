//! What a step is to compute, and what came of it.

use std::ops::Range;

use perilune_cache::{CacheOp, SlotId};
use perilune_sampling::TokenLogprobs;

use crate::{Event, SeqId};

/// Whether a run ends in a new token.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Draws {
    /// Its last row draws the sequence's next token.
    Token,
    /// More of the prompt follows, or nothing is to be generated.
    Nothing,
}

/// Whether a sequence may draw in the next step. What else it has to compute does not depend on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Turn {
    /// Yes, with drafts.
    Free,
    /// One token, without drafts.
    NoDrafts,
    /// Not yet: what it needs for that is late, and nobody else is to wait for it.
    Later,
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
    /// Most tokens that may be drafted behind the run's own, and verified with them. There is memory for them.
    pub drafts: usize,
    /// Copies of the state to take on the way, in rising order.
    pub snapshots: Vec<PlannedSnapshot>,
}

/// A copy of a sequence's state.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PlannedSnapshot {
    /// Tokens of the sequence that it includes: at least one of the run. One that lies among the drafts is taken only if so
    /// many are kept.
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

/// What came of a run: one row per scored position, then one for the drawn token; where drafts were verified, one for each
/// draft that was kept, and one for the token drawn after them.
#[derive(Debug, Clone, PartialEq)]
pub struct RunOutcome {
    /// The sequence.
    pub seq: SeqId,
    /// The rows, in the order of positions.
    pub rows: Vec<RowOutcome>,
    /// How many drafts were verified.
    pub drafted: usize,
}

/// What a step came to.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Committed {
    /// What the sequences tell their callers.
    pub events: Vec<Event>,
    /// For each run of the plan, how many of its tokens, drafts included, its sequence's state is to include. For a run
    /// whose sequence has ended in the meantime or with a fault it does not matter.
    pub kept: Vec<usize>,
}
