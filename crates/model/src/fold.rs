//! The fold: states advance by as many verified tokens as were kept.

use perilune_backend::{Backend, BackendError, KdaFold};

use crate::caches::LayerCache;
use crate::columns::{CopyColumns, RunColumns, RunRows};
use crate::kimi::Kimi;
use crate::workspace::kda_dims;
use crate::{Caches, ModelError, SlotCopy, StepLimits, Workspace};

/// What is kept of one verification.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FoldRun<'a> {
    /// First row of the run in the step that verified it ([`crate::ForwardBatch::first_row`]).
    pub first_row: usize,
    /// How many of its rows are kept, from the first one on.
    pub rows: usize,
    /// Its sequence's slot.
    pub slot: u32,
    /// Copies of the state to take on the way, in rising order, within the rows that are kept.
    pub snapshots: &'a [SlotCopy],
}

/// Folds of a step, on the device.
#[derive(Debug)]
pub struct FoldBatch<B: Backend> {
    runs: RunColumns<B::Tensor>,
    copies: CopyColumns<B::Tensor>,
    limits: StepLimits,
}

impl<B: Backend> FoldBatch<B> {
    /// Room for steps within `limits`.
    ///
    /// # Errors
    /// `OutOfMemory`.
    pub fn new(backend: &B, limits: StepLimits) -> Result<Self, BackendError> {
        let runs = RunColumns::new(backend, limits.max_runs)?;
        Ok(FoldBatch { runs, copies: CopyColumns::new(backend, limits.max_snapshots)?, limits })
    }

    /// Replaces the folds.
    ///
    /// # Errors
    /// `Limit`, `Run`.
    pub fn fill(&mut self, backend: &B, runs: &[FoldRun<'_>]) -> Result<(), ModelError> {
        let copies = runs.iter().map(|run| run.snapshots.len()).sum();
        let limits = self.limits;
        for (what, found, room) in [("folds", runs.len(), limits.max_runs), ("snapshots", copies, limits.max_snapshots)]
        {
            if found > room {
                return Err(ModelError::Limit { what, found, room });
            }
        }
        for (index, run) in runs.iter().enumerate() {
            let last = run.first_row + run.rows;
            if last > limits.max_verify_rows {
                let problem = format!("its rows end at {last}, of {} that are kept", limits.max_verify_rows);
                return Err(ModelError::Run { index, problem });
            }
        }
        let rows = |run: &FoldRun<'_>| RunRows { start: run.first_row, len: run.rows, position: 0, slot: run.slot };
        self.runs.fill(backend, runs.iter().map(rows))?;
        Ok(self.copies.fill(backend, runs.iter().map(|run| run.snapshots))?)
    }
}

impl<B: Backend> Kimi<B> {
    /// Enqueues the folds of the last step's verifications: leaves the states and tails that decoding the kept tokens one
    /// by one would have left, bit for bit.
    ///
    /// # Errors
    /// `Mismatch` where workspace and caches do not belong together.
    pub fn fold(
        &self,
        backend: &B,
        workspace: &Workspace<B>,
        batch: &FoldBatch<B>,
        caches: &mut Caches<B>,
    ) -> Result<(), BackendError> {
        if batch.runs.count == 0 {
            return Ok(());
        }
        for (layer, replay) in caches.layers.iter().zip(&workspace.replay) {
            let (LayerCache::Kda { state, conv }, Some(replay)) = (layer, replay) else { continue };
            backend.kda_fold(KdaFold {
                dims: kda_dims(&self.config),
                segments: batch.runs.segments(),
                replay,
                arena: &mut caches.arena,
                conv_at: *conv,
                state_at: *state,
                snapshots: batch.copies.snapshots(),
            })?;
        }
        Ok(())
    }
}
