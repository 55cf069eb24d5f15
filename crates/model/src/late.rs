//! Streams that a draft takes in later: those of several steps in one pass over its weights.

use perilune_backend::{Backend, BackendError};
use perilune_tensor::TensorSpec;

use crate::columns::{RunColumns, RunRows, index_value};
use crate::tap::TappedRows;
use crate::{ForwardBatch, StepLimits, Workspace};

/// Streams of steps that each had one token of the same sequences, in the same order. They lie in the workspace
/// ([`Workspace::taps`]): the rows of the newest step first, behind them those of the others from the oldest on.
#[derive(Debug)]
pub struct LateTaps<B: Backend> {
    steps: usize,
    /// Rows of all steps together.
    room: usize,
    columns: RunColumns<B::Tensor>,
    /// `U32 [room]`: where the rows of the first sequence lie, oldest first, then those of the second, and so on.
    order: B::Tensor,
}

impl<B: Backend> LateTaps<B> {
    /// None yet; room for `rows` rows within the limits of a step.
    ///
    /// # Errors
    /// `OutOfMemory`.
    pub fn new(backend: &B, (rows, limits): (usize, StepLimits)) -> Result<Self, BackendError> {
        let room = rows.min(limits.max_rows);
        let columns = RunColumns::new(backend, limits.max_runs.min(room))?;
        Ok(LateTaps { steps: 0, room, columns, order: backend.alloc(&TensorSpec::u32([room]))? })
    }

    /// Steps whose streams are late.
    pub fn steps(&self) -> usize {
        self.steps
    }

    /// Whether one more step of so many sequences can be late, and is not the only one.
    pub fn has_room(&self, sequences: usize) -> bool {
        sequences > 0 && (self.steps + 1).max(2) * sequences <= self.room
    }

    /// The step that has just been computed is late.
    pub fn add(&mut self) {
        self.steps += 1;
    }

    /// Makes way for the rows of another step.
    ///
    /// # Errors
    /// `Mismatch` without [`LateTaps::has_room`].
    pub fn make_way(
        &self,
        (backend, sequences): (&B, usize),
        workspace: &mut Workspace<B>,
    ) -> Result<(), BackendError> {
        match self.steps {
            0 => Ok(()),
            steps => workspace.copy_taps(backend, 0..sequences, steps * sequences),
        }
    }

    /// All rows that are late, sequence by sequence; nothing is late afterwards. `batch` is the newest step, `positions`
    /// those of its tokens.
    ///
    /// # Errors
    /// What the device refuses.
    pub fn take<'a>(
        &'a mut self,
        (backend, batch): (&B, &'a ForwardBatch<B>),
        positions: impl ExactSizeIterator<Item = usize>,
    ) -> Result<TappedRows<'a, B::Tensor>, BackendError> {
        let (steps, sequences) = (std::mem::take(&mut self.steps), positions.len());
        if steps == 1 {
            return Ok(batch.tapped());
        }
        let behind = |step: usize| if step + 1 == steps { 0 } else { step + 1 };
        let order: Vec<u32> = (0..sequences)
            .flat_map(|sequence| (0..steps).map(move |step| index_value(behind(step) * sequences + sequence)))
            .collect();
        backend.write_u32(&mut self.order, &order)?;
        let run = |(sequence, position): (usize, usize)| RunRows {
            start: sequence * steps,
            len: steps,
            position: (position + 1).saturating_sub(steps),
            // What drafts keep of tokens has no state; the operations do not read this.
            slot: index_value(sequence),
        };
        self.columns.fill(backend, positions.enumerate().map(run))?;
        let forms = batch.forms().map(|(_, tables)| (self.columns.segments(), tables)).collect();
        Ok(TappedRows { count: steps * sequences, order: Some(&self.order), forms })
    }
}
