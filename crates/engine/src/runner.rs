//! What computes a step. The engine knows nothing of models and devices beyond this trait.

use perilune_backend::{BackendError, Choice, SampleRow, SampledRow};
use perilune_cache::{CacheOp, Place};
use perilune_scheduler::SeqId;
use perilune_tensor::TokenId;

use crate::PendingMasks;

/// The next tokens of one sequence.
#[derive(Debug, Clone)]
pub struct StepRun<'a> {
    /// The sequence, for messages only.
    pub seq: SeqId,
    /// The tokens to compute, at least one.
    pub tokens: &'a [TokenId],
    /// How many tokens of the sequence were computed before: the position of the first one here.
    pub position: usize,
    /// Its KDA state slot.
    pub slot: Place,
    /// Its latent blocks in sequence order, enough for the last token here.
    pub blocks: Vec<Place>,
    /// Which rows to sample or score. `row` counts within `tokens`; rising.
    pub rows: Vec<SampleRow>,
    /// Masks of its drawn rows, the last ones of `rows`, where the sequence is constrained. To be waited for as late as
    /// possible and put into the rows with [`StepRun::masked_rows`].
    pub masks: Option<PendingMasks>,
    /// Copies of its state to take on the way, rising.
    pub snapshots: Vec<StateCopy>,
}

impl StepRun<'_> {
    /// The rows with their masks; waits for those. A row whose mask cannot be had stays as it was: the engine drops what
    /// is drawn from it.
    pub fn masked_rows(&self) -> Vec<SampleRow> {
        let mut rows = self.rows.clone();
        let Some(Ok(masks)) = self.masks.as_ref().map(PendingMasks::wait) else { return rows };
        let drawn = rows.iter_mut().filter(|row| matches!(row.choice, Choice::Draw { .. }));
        for (row, mask) in drawn.zip(masks) {
            // The grammar is stronger than bans: where they leave nothing of it, they do not count.
            if !mask.leaves(&row.banned) {
                row.banned.clear();
            }
            row.allowed = Some(mask);
        }
        rows
    }
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
    /// What is to be done with slots and blocks before anything is computed, in order.
    pub ops: Vec<CacheOp>,
    /// The runs.
    pub runs: Vec<StepRun<'a>>,
}

/// Results of a step: for each run, one entry per row it asked for, in order.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct StepOutput {
    /// Per run of the input.
    pub runs: Vec<Vec<SampledRow>>,
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
