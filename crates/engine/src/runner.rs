//! What computes a step. The engine knows nothing of models and devices beyond this trait.

use std::time::Duration;

use perilune_backend::{BackendError, Choice, SampleRow, SampledRow};
use perilune_cache::{CacheOp, HostId, Place, RecordId};
use perilune_disk::Unit;
use perilune_scheduler::SeqId;
use perilune_tensor::TokenId;

use crate::PendingMasks;

/// What stays the same where drafts of drawn tokens are verified.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DrawnDrafts {
    /// The distribution of the output: as many drafts are kept as that allows.
    KeepDistribution,
    /// Every token: a draft is kept where it is what the sequence would have drawn without it.
    KeepTokens,
}

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
    /// How drafts of drawn tokens are verified.
    pub drawn_drafts: DrawnDrafts,
    /// How many tokens of the sequence were computed before: the position of the first one here.
    pub position: usize,
    /// Its KDA state slot.
    pub slot: Place,
    /// Its latent blocks in sequence order, enough for the last token here and the drafts.
    pub blocks: Vec<Place>,
    /// Which rows to sample or score. `row` counts within `tokens`; rising. Where drafts are allowed, the last row of
    /// `tokens` is followed by one for each of them; their occurrences do not count the drafts before them.
    pub rows: Vec<SampleRow>,
    /// Masks of its drawn rows, the last ones of `rows`, where the sequence is constrained. To be waited for as late as
    /// possible and put into the rows with [`StepRun::masked_rows`].
    pub masks: Option<PendingMasks>,
    /// Copies of its state to take on the way, rising. Those among drafts are taken only where so many are kept.
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

    /// Performs the input's operations on memory, computes its runs, and samples the rows they ask for. A step without runs
    /// performs the operations only.
    ///
    /// # Errors
    /// Any error ends the engine: the device's state counts as lost.
    fn run(&mut self, input: &StepInput<'_>) -> Result<StepOutput, BackendError>;

    /// Length of a state of `slot_len` once it has left the device.
    fn kept_slot_len(&self, slot_len: usize) -> usize {
        slot_len
    }

    /// Access to what it keeps in host memory, for a disk tier; `None` where it keeps nothing there.
    fn host_units(&mut self) -> Option<&mut dyn HostUnits> {
        None
    }
}

/// Units in host memory, on their way between device and disk.
pub trait HostUnits {
    /// Puts a unit there, where the next `Load` finds it.
    fn put(&mut self, id: HostId, bytes: Vec<u8>);

    /// Units that `Archive` operations named since the last call.
    fn take_archived(&mut self) -> Vec<(RecordId, Unit)>;
}
