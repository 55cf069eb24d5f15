//! A draft takes in the target's streams late, those of several steps at once, while nothing is drafted: a step that brings
//! no drafts is to cost hardly more than one without a draft.

use perilune_backend::{Backend, BackendError};
use perilune_model::{Caches, ForwardBatch, LateTaps, StepLimits, Workspace};
use perilune_scheduler::SeqId;
use perilune_speculate::{Draft, Proposal, TappedStep};

use crate::{StepInput, StepRun};

/// Rows that may be late. Beyond, a pass over the draft's weights is shared by so many that it hardly counts.
const LATE_ROWS: usize = 64;

/// Steps that a draft has not taken in yet: they have one token of each sequence, no drafts, and nothing happened to caches
/// between them.
#[derive(Debug)]
pub(crate) struct Arrears<B: Backend> {
    taps: LateTaps<B>,
    /// Sequences of the newest one and the positions of their tokens.
    newest: Vec<(SeqId, usize)>,
}

/// The last step that was computed.
pub(crate) struct LastStep<'a, B: Backend> {
    pub(crate) backend: &'a B,
    pub(crate) batch: &'a ForwardBatch<B>,
    pub(crate) workspace: &'a mut Workspace<B>,
    pub(crate) caches: &'a mut Caches<B>,
}

impl<B: Backend> LastStep<'_, B> {
    pub(crate) fn reborrow(&mut self) -> LastStep<'_, B> {
        let LastStep { backend, batch, workspace, caches } = self;
        LastStep { backend, batch, workspace, caches }
    }
}

impl<B: Backend> Arrears<B> {
    pub(crate) fn new(backend: &B, limits: StepLimits) -> Result<Self, BackendError> {
        Ok(Arrears { taps: LateTaps::new(backend, (LATE_ROWS, limits))?, newest: Vec::new() })
    }

    /// Whether a step goes on where the newest one ended, with nothing in between.
    pub(crate) fn go_on(&self, input: &StepInput<'_>) -> bool {
        let next = |(run, (seq, position)): (&StepRun<'_>, &(SeqId, usize))| {
            run.seq == *seq && run.position == position + 1 && run.tokens.len() == 1
        };
        input.ops.is_empty()
            && input.runs.len() == self.newest.len()
            && input.runs.iter().zip(&self.newest).all(next)
            && self.taps.has_room(input.runs.len())
    }

    /// The draft takes in what is late.
    pub(crate) fn settle(&mut self, draft: &mut dyn Draft<B>, last: LastStep<'_, B>) -> Result<(), BackendError> {
        if self.taps.steps() == 0 {
            return Ok(());
        }
        let positions = self.newest.iter().map(|(_, position)| *position);
        let rows = self.taps.take((last.backend, last.batch), positions)?;
        draft.observe(last.backend, TappedStep { rows, taps: last.workspace.taps(), caches: last.caches })
    }

    /// Before the next step overwrites the newest one's rows.
    pub(crate) fn make_way(&self, last: LastStep<'_, B>) -> Result<(), BackendError> {
        self.taps.make_way((last.backend, self.newest.len()), last.workspace)
    }

    /// After a step: it is late, or the draft takes it in now.
    pub(crate) fn add(
        &mut self,
        draft: &mut dyn Draft<B>,
        (input, proposals): (&StepInput<'_>, &[Proposal]),
        last: LastStep<'_, B>,
    ) -> Result<(), BackendError> {
        let plain = input.runs.iter().all(|run| run.tokens.len() == 1) && proposals.iter().all(|p| p.tokens.is_empty());
        if plain && self.taps.has_room(input.runs.len()) {
            self.taps.add();
            self.newest.clear();
            self.newest.extend(input.runs.iter().map(|run| (run.seq, run.position)));
            return Ok(());
        }
        let LastStep { backend, batch, workspace, caches } = last;
        draft.observe(backend, TappedStep { rows: batch.tapped(), taps: workspace.taps(), caches })
    }
}
