//! Which rows of a step belong to which sequence: planned on the host, written into index tensors on the device.

use std::collections::HashSet;
use std::ops::Range;

use perilune_backend::{Backend, BackendError, BlockTables, Segments, Snapshots};
use perilune_tensor::{TensorSpec, TokenId};

use crate::columns::{CopyColumns, RunColumns, RunRows, index_value};
use crate::{ModelError, StepLimits, StepShape, TappedRows};

/// Runs of at most this many tokens take the decode form of the sequence operations; longer ones cannot be verified.
pub const MAX_DECODE_ROWS: usize = 8;

/// Which tokens of a run need logits.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LogitRows {
    /// None: a part of a prompt that is not its end.
    None,
    /// The last token.
    Last,
    /// These, counted from the run's first token.
    Range(Range<usize>),
}

/// The next tokens of one sequence.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Run<'a> {
    /// The tokens, at least one.
    pub tokens: &'a [TokenId],
    /// How many tokens of the sequence came before.
    pub position: usize,
    /// State slot of the sequence; no two runs share one.
    pub slot: u32,
    /// Latent blocks of the sequence, enough for `position + tokens.len()` tokens.
    pub blocks: &'a [u32],
    /// Which logits are wanted.
    pub logits: LogitRows,
    /// Copies of the state to take on the way, in rising order of tokens.
    pub snapshots: &'a [SlotCopy],
    /// What becomes of the state.
    pub effect: Effect,
}

/// What a run does to its sequence's state.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Effect {
    /// The state advances by the run's tokens.
    #[default]
    Advance,
    /// The state stays as it is, until [`crate::Kimi::fold`] advances it by as many of the tokens as are to be kept. Such a
    /// run has at most [`MAX_DECODE_ROWS`] tokens and no snapshots.
    Verify,
}

/// A copy of a run's state.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SlotCopy {
    /// Tokens of the run that it includes, at least 1.
    pub after: usize,
    /// Slot that takes it; no other copy and no run has it.
    pub slot: u32,
}

impl Run<'_> {
    fn wanted(&self) -> Range<usize> {
        match &self.logits {
            LogitRows::None => 0..0,
            LogitRows::Last => self.tokens.len().saturating_sub(1)..self.tokens.len(),
            LogitRows::Range(range) => range.clone(),
        }
    }

    /// What is wrong with the run itself.
    fn check(&self) -> Result<(), String> {
        let (len, wanted) = (self.tokens.len(), self.wanted());
        if len == 0 {
            return Err("it has no tokens".into());
        }
        if wanted.start > wanted.end || wanted.end > len {
            return Err(format!("logits {wanted:?} of {len} tokens"));
        }
        let mut least = 1;
        for copy in self.snapshots {
            if copy.after < least || copy.after > len {
                return Err(format!("a snapshot after {} tokens, not {least} to {len}", copy.after));
            }
            least = copy.after + 1;
        }
        if self.effect == Effect::Verify && (len > MAX_DECODE_ROWS || !self.snapshots.is_empty()) {
            let found = format!("{len} tokens and {} snapshots", self.snapshots.len());
            return Err(format!("a verification of {found}, not of at most {MAX_DECODE_ROWS} tokens and no snapshots"));
        }
        if u32::try_from(self.position.saturating_add(len)).is_err() {
            return Err(format!("{len} tokens from position {} on leave the range of positions", self.position));
        }
        Ok(())
    }
}

/// All runs of a step.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct BatchPlan<'a> {
    /// In any order.
    pub runs: Vec<Run<'a>>,
}

/// A step on the device.
#[derive(Debug)]
pub struct ForwardBatch<B: Backend> {
    pub(crate) rows: usize,
    pub(crate) ids: B::Tensor,
    /// Its rows are the first ones of the step.
    pub(crate) verify: Part<B::Tensor>,
    pub(crate) decode: Part<B::Tensor>,
    pub(crate) prefill: Part<B::Tensor>,
    pub(crate) num_logit_rows: usize,
    pub(crate) logit_index: B::Tensor,
    logit_rows: Vec<Range<usize>>,
    /// First row of each run.
    starts: Vec<usize>,
    limits: StepLimits,
}

/// Runs of one form.
#[derive(Debug)]
pub(crate) struct Part<T> {
    columns: RunColumns<T>,
    offset: T,
    blocks: T,
    copies: CopyColumns<T>,
}

impl<T> Part<T> {
    pub(crate) fn is_empty(&self) -> bool {
        self.columns.count == 0
    }

    pub(crate) fn segments(&self) -> Segments<'_, T> {
        self.columns.segments()
    }

    pub(crate) fn snapshots(&self) -> Option<Snapshots<'_, T>> {
        self.copies.snapshots()
    }

    pub(crate) fn tables(&self) -> BlockTables<'_, T> {
        BlockTables { offset: &self.offset, blocks: &self.blocks }
    }
}

impl<B: Backend> ForwardBatch<B> {
    /// Room for steps within `limits`.
    ///
    /// # Errors
    /// `OutOfMemory`.
    pub fn new(backend: &B, limits: StepLimits) -> Result<Self, BackendError> {
        let u32 = |len: usize| backend.alloc(&TensorSpec::u32([len]));
        let runs = limits.max_runs;
        let part = || {
            Ok::<_, BackendError>(Part {
                columns: RunColumns::new(backend, runs)?,
                offset: u32(runs + 1)?,
                blocks: u32(limits.max_blocks)?,
                copies: CopyColumns::new(backend, limits.max_snapshots)?,
            })
        };
        Ok(ForwardBatch {
            rows: 0,
            ids: u32(limits.max_rows)?,
            verify: part()?,
            decode: part()?,
            prefill: part()?,
            num_logit_rows: 0,
            logit_index: u32(limits.max_logit_rows)?,
            logit_rows: Vec::new(),
            starts: Vec::new(),
            limits,
        })
    }

    /// Replaces the step.
    ///
    /// # Errors
    /// `Limit`, `Run`.
    pub fn fill(&mut self, backend: &B, plan: &BatchPlan<'_>) -> Result<(), ModelError> {
        self.check(plan)?;
        let (verify, advance): (Vec<usize>, Vec<usize>) =
            (0..plan.runs.len()).partition(|i| plan.runs[*i].effect == Effect::Verify);
        let (short, long): (Vec<usize>, Vec<usize>) =
            advance.into_iter().partition(|i| plan.runs[*i].tokens.len() <= MAX_DECODE_ROWS);
        let mut starts = vec![0; plan.runs.len()];
        let mut ids: Vec<u32> = Vec::new();
        for i in verify.iter().chain(&short).chain(&long) {
            starts[*i] = ids.len();
            ids.extend(plan.runs[*i].tokens.iter().map(|id| id.0));
        }
        self.rows = ids.len();
        backend.write_u32(&mut self.ids, &ids)?;
        fill_part(backend, &mut self.verify, (plan, &verify, &starts))?;
        fill_part(backend, &mut self.decode, (plan, &short, &starts))?;
        fill_part(backend, &mut self.prefill, (plan, &long, &starts))?;
        self.logit_rows.clear();
        let mut index = Vec::new();
        for (run, start) in plan.runs.iter().zip(&starts) {
            let first = index.len();
            index.extend(run.wanted().map(|i| index_value(start + i)));
            self.logit_rows.push(first..index.len());
        }
        self.num_logit_rows = index.len();
        self.starts = starts;
        Ok(backend.write_u32(&mut self.logit_index, &index)?)
    }

    /// The shape of a step that a recording can stand for: short runs alone, no copies of states on the way.
    pub fn shape(&self) -> Option<StepShape> {
        let recordable = self.prefill.is_empty() && self.decode.snapshots().is_none() && self.rows > 0;
        let shape = StepShape {
            rows: self.rows,
            verified: self.verify.segments().count,
            runs: self.decode.segments().count,
            logit_rows: self.num_logit_rows,
        };
        recordable.then_some(shape)
    }

    /// Rows of the logits that belong to a run of the plan, in the order of its tokens.
    pub fn logit_rows(&self, run: usize) -> Range<usize> {
        self.logit_rows.get(run).cloned().unwrap_or_default()
    }

    /// First row of a run of the plan in the tensors of the step.
    pub fn first_row(&self, run: usize) -> usize {
        self.starts.get(run).copied().unwrap_or(0)
    }

    /// Token rows of the step.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Runs and block tables of each form that the step has: verifications, short runs, long runs.
    pub fn forms(&self) -> impl Iterator<Item = (Segments<'_, B::Tensor>, BlockTables<'_, B::Tensor>)> {
        let parts = [&self.verify, &self.decode, &self.prefill];
        parts.into_iter().filter(|part| !part.is_empty()).map(|part| (part.segments(), part.tables()))
    }

    /// All rows of the step as a draft takes them in.
    pub fn tapped(&self) -> TappedRows<'_, B::Tensor> {
        TappedRows { count: self.rows, order: None, forms: self.forms().collect() }
    }

    fn check(&self, plan: &BatchPlan<'_>) -> Result<(), ModelError> {
        let verify = |run: &Run<'_>| if run.effect == Effect::Verify { run.tokens.len() } else { 0 };
        let sum = |f: &dyn Fn(&Run<'_>) -> usize| plan.runs.iter().map(f).sum::<usize>();
        let limits = self.limits;
        for (what, found, room) in [
            ("runs", plan.runs.len(), limits.max_runs),
            ("rows", sum(&|run| run.tokens.len()), limits.max_rows),
            ("block table entries", sum(&|run| run.blocks.len()), limits.max_blocks),
            ("snapshots", sum(&|run| run.snapshots.len()), limits.max_snapshots),
            ("rows to verify", sum(&verify), limits.max_verify_rows),
            ("rows of logits", sum(&|run| run.wanted().len()), limits.max_logit_rows),
        ] {
            if found > room {
                return Err(ModelError::Limit { what, found, room });
            }
        }
        let mut slots = HashSet::new();
        for (index, run) in plan.runs.iter().enumerate() {
            run.check().map_err(|problem| ModelError::Run { index, problem })?;
            for slot in run.snapshots.iter().map(|copy| copy.slot).chain([run.slot]) {
                if !slots.insert(slot) {
                    let problem = format!("slot {slot} is used twice");
                    return Err(ModelError::Run { index, problem });
                }
            }
        }
        Ok(())
    }
}

fn fill_part<B: Backend>(
    backend: &B,
    part: &mut Part<B::Tensor>,
    (plan, which, starts): (&BatchPlan<'_>, &[usize], &[usize]),
) -> Result<(), BackendError> {
    let runs = || which.iter().map(|i| (&plan.runs[*i], starts[*i]));
    let rows = |(run, start): (&Run<'_>, usize)| RunRows {
        start,
        len: run.tokens.len(),
        position: run.position,
        slot: run.slot,
    };
    part.columns.fill(backend, runs().map(rows))?;
    let mut offsets = vec![0];
    let mut blocks = Vec::new();
    for (run, _) in runs() {
        blocks.extend_from_slice(run.blocks);
        offsets.push(index_value(blocks.len()));
    }
    part.copies.fill(backend, runs().map(|(run, _)| run.snapshots))?;
    backend.write_u32(&mut part.offset, &offsets)?;
    backend.write_u32(&mut part.blocks, &blocks)
}
