//! What computes a step. The engine knows nothing of models and devices beyond this trait.

use std::time::Duration;

use perilune_backend::{BackendError, SampleRow, SampledRow};
use perilune_cache::{CacheOp, Place};
use perilune_scheduler::SeqId;
use perilune_tensor::TokenId;

/// The next tokens of one sequence.
#[derive(Debug, Clone)]
pub struct StepRun<'a> {
    /// The sequence, for messages only.
    pub seq: SeqId,
    /// The tokens to compute, at least one.
    pub tokens: &'a [TokenId],
    /// All tokens of the sequence up to the last one here.
    pub history: &'a [TokenId],
    /// Most tokens that the runner may draft behind `tokens` and verify with them; its blocks have room for them.
    pub drafts: usize,
    /// How many tokens of the sequence were computed before: the position of the first one here.
    pub position: usize,
    /// Its KDA state slot.
    pub slot: Place,
    /// Its latent blocks in sequence order, enough for the last token here and the drafts.
    pub blocks: Vec<Place>,
    /// Which rows to sample or score. `row` counts within `tokens`; rising. Where drafts are allowed, the last row of
    /// `tokens` is followed by one for each of them; their occurrences do not count the drafts before them.
    pub rows: Vec<SampleRow>,
    /// Copies of its state to take on the way, rising. Those among drafts are taken only where so many are kept.
    pub snapshots: Vec<StateCopy>,
}

/// A copy of a run's state.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StateCopy {
    /// Tokens of the run that it includes, at least 1.
    pub after: usize,
    /// Slot that takes it.
    pub slot: Place,
}

/// One step: any number of runs, each of another sequence.
#[derive(Debug, Clone)]
pub struct StepInput<'a> {
    /// For each run of the step before, how many of its tokens, drafts included, the state of its sequence is to include.
    /// That comes before everything else, as the operations may move or copy that state.
    pub kept: Vec<usize>,
    /// What is to be done with slots and blocks before anything is computed, in order.
    pub ops: Vec<CacheOp>,
    /// The runs.
    pub runs: Vec<StepRun<'a>>,
}

/// Results of a step: for each run, one entry per row it asked for, in order. Where drafts were allowed, the entries end with
/// the token after the last draft that was accepted; all before it are those drafts.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct StepOutput {
    /// Per run of the input.
    pub runs: Vec<Vec<SampledRow>>,
    /// How many drafts were verified, per run of the input.
    pub drafted: Vec<usize>,
    /// Time spent on drafting.
    pub drafting: Duration,
}

/// Computes steps. A result must depend on its own sequence alone, never on the others in the step.
pub trait StepRunner: Send + 'static {
    /// Token ids are below this.
    fn vocab_size(&self) -> usize;

    /// Performs the input's operations on memory, computes its runs, and samples the rows they ask for.
    ///
    /// # Errors
    /// Any error ends the engine: the device's state counts as lost.
    fn run(&mut self, input: &StepInput<'_>) -> Result<StepOutput, BackendError>;
}
