//! Steps of a real model on a real backend.

use std::borrow::Cow;
use std::collections::HashMap;
use std::ops::Range;
use std::sync::mpsc::{Sender, channel};
use std::time::Instant;

use perilune_backend::{Backend, BackendError, Choice, Download, Sample, SampleRow, SampledRow};
use perilune_cache::{CacheOp, HostId, Place, RecordId, UnitKind};
use perilune_config::ModelConfig;
use perilune_disk::Unit;
use perilune_model::{
    BatchPlan, CacheShape, Caches, Effect, FoldBatch, FoldRun, ForwardBatch, Kimi, LogitRows, ModelError, Run,
    SlotCopy, StepGraphs, StepLimits, Workspace,
};
use perilune_speculate::Proposal;
use perilune_tensor::TokenId;

use crate::arrears::LastStep;
use crate::saved::{Bytes, Saved};
use crate::speculation::{accept_drawn, accept_same, rows_with_drafts, scoring, unscored};
use crate::{
    DrawnDrafts, EngineConfig, HostUnits, Speculation, StateFormat, StepInput, StepOutput, StepRun, StepRunner,
};

/// A model with the memory of its sequences and of a step.
#[derive(Debug)]
pub struct ModelRunner<B: Backend> {
    backend: B,
    model: Kimi<B>,
    workspace: Workspace<B>,
    batch: ForwardBatch<B>,
    caches: Caches<B>,
    graphs: StepGraphs<B>,
    /// Units that are kept in host memory, or on their way there.
    saved: HashMap<HostId, Saved>,
    folds: FoldBatch<B>,
    /// Runs of the last step that were only verified.
    verified: Vec<Verified>,
    speculation: Option<Speculation<B>>,
    /// Those that are to be written to disk.
    archived: Vec<(RecordId, Saved)>,
    /// What states become there.
    format: StateFormat,
    /// Rounds them, so that no step waits for it; `None` where there is nothing to round.
    rounding: Option<Sender<Saved>>,
}

/// A verification whose outcome the states do not include yet.
#[derive(Debug)]
struct Verified {
    /// Its place in the input of its step.
    run: usize,
    first_row: usize,
    slot: u32,
    copies: Vec<SlotCopy>,
}

/// The largest step of an engine.
pub(crate) fn step_limits(config: &EngineConfig) -> StepLimits {
    let max_runs = config.max_running_requests;
    let decode_rows = max_runs * (1 + config.max_drafts);
    let blocks_each = config.effective_context().div_ceil(config.cache.block_size.max(1));
    StepLimits {
        max_rows: config.max_step_rows(),
        max_runs,
        max_blocks: max_runs.saturating_mul(blocks_each),
        max_logit_rows: config.max_prompt_logit_rows + decode_rows,
        // No two are in the same place of the arena.
        max_snapshots: config.cache.arena.max_slots().min(config.chunked_prefill_size + decode_rows),
        max_verify_rows: if config.max_drafts > 0 { decode_rows } else { 0 },
    }
}

impl<B: Backend> ModelRunner<B> {
    /// Allocates everything that steps within `config` need.
    ///
    /// # Errors
    /// `OutOfMemory`.
    pub fn new(backend: B, model: Kimi<B>, config: &EngineConfig) -> Result<Self, BackendError> {
        Self::with_speculation((backend, model), config, None)
    }

    /// The same with a draft.
    ///
    /// # Errors
    /// `OutOfMemory`; `Mismatch` where the configuration's units have no room for the draft's context.
    pub fn with_speculation(
        (backend, model): (B, Kimi<B>),
        config: &EngineConfig,
        mut speculation: Option<Speculation<B>>,
    ) -> Result<Self, BackendError> {
        let limits = step_limits(config);
        let arena = config.cache.arena;
        let context_len = speculation.as_ref().map_or(0, |speculation| speculation.draft().context_len());
        let shape = CacheShape::with_draft(model.config(), (config.cache.block_size, context_len), arena.len * 4);
        if (shape.block_len, shape.slot_len) != (arena.block_len, arena.slot_len) {
            return Err(BackendError::Mismatch {
                op: "ModelRunner::new",
                field: "config.cache.arena",
                found: format!("{arena:?}"),
                expected: format!("units of {} and {} elements", shape.block_len, shape.slot_len),
            });
        }
        let mut workspace = Workspace::new(&backend, model.config(), limits)?;
        if let Some(speculation) = &mut speculation {
            speculation.make_room(&backend, limits)?;
        }
        if let Some(taps) = speculation.as_ref().and_then(|speculation| speculation.draft().taps()) {
            workspace.capture((&backend, model.config()), taps.clone())?;
        }
        Ok(ModelRunner {
            workspace,
            folds: FoldBatch::new(&backend, limits)?,
            verified: Vec::new(),
            speculation,
            batch: ForwardBatch::new(&backend, limits)?,
            caches: Caches::new(&backend, model.config(), shape)?,
            graphs: StepGraphs::default(),
            saved: HashMap::new(),
            archived: Vec::new(),
            format: StateFormat::F32,
            rounding: None,
            model,
            backend,
        })
    }

    /// The same, but states that leave the device are kept in another format.
    ///
    /// # Errors
    /// `Device` where there is no thread to be had.
    pub fn with_state_format(mut self, format: StateFormat) -> Result<Self, BackendError> {
        self.format = format;
        if format == StateFormat::F32 {
            return Ok(self);
        }
        let (rounding, inbox) = channel::<Saved>();
        let round = move || {
            for saved in inbox {
                // A unit that did not arrive is found out by whoever needs it.
                let _ = saved.with(|_| ());
            }
        };
        let thread = std::thread::Builder::new().name("perilune-round".into()).spawn(round);
        thread.map_err(|error| BackendError::Device(format!("cannot start a thread: {error}")))?;
        self.rounding = Some(rounding);
        Ok(self)
    }

    /// The model's configuration.
    pub fn model_config(&self) -> &ModelConfig {
        self.model.config()
    }

    /// The states take in what was kept of the last step's verifications.
    fn fold(&mut self, kept: &[usize]) -> Result<(), ModelError> {
        let mut verified = std::mem::take(&mut self.verified);
        let rows = |verified: &Verified| kept.get(verified.run).copied().unwrap_or(0);
        verified.retain(|verified| rows(verified) > 0);
        if verified.is_empty() {
            return Ok(());
        }
        verified.iter_mut().for_each(|verified| {
            let rows = rows(verified);
            verified.copies.retain(|copy| copy.after <= rows);
        });
        let folds: Vec<FoldRun<'_>> = verified
            .iter()
            .map(|verified| {
                let Verified { first_row, slot, copies, .. } = verified;
                FoldRun { first_row: *first_row, rows: rows(verified), slot: *slot, snapshots: copies }
            })
            .collect();
        self.folds.fill(&self.backend, &folds)?;
        Ok(self.model.fold(&self.backend, &self.workspace, &self.folds, &mut self.caches)?)
    }

    fn forward(&mut self, input: &StepInput<'_>, proposals: &[Proposal]) -> Result<(), ModelError> {
        let planned: Vec<PlannedTokens<'_>> =
            input.runs.iter().zip(proposals).map(|(run, proposal)| PlannedTokens::new(run, proposal)).collect();
        let runs = input.runs.iter().zip(&planned).map(|(run, planned)| Run {
            tokens: &planned.tokens,
            position: run.position,
            slot: run.slot,
            blocks: &run.blocks,
            logits: wanted(run, planned.tokens.len()),
            snapshots: if planned.effect == Effect::Verify { &[] } else { &planned.copies },
            effect: planned.effect,
        });
        self.batch.fill(&self.backend, &BatchPlan { runs: runs.collect() })?;
        for (index, (run, planned)) in input.runs.iter().zip(planned).enumerate() {
            if planned.effect == Effect::Verify {
                let first_row = self.batch.first_row(index);
                self.verified.push(Verified { run: index, first_row, slot: run.slot, copies: planned.copies });
            }
        }
        let ModelRunner { backend, model, workspace, batch, caches, graphs, .. } = self;
        let step = || model.forward(backend, workspace, batch, caches);
        Ok(graphs.run((backend, batch.shape()), step)?)
    }

    fn perform(&mut self, op: CacheOp) -> Result<(), BackendError> {
        match op {
            CacheOp::ZeroSlot(slot) => self.caches.zero_slot(&self.backend, slot as usize),
            CacheOp::Copy { kind, from, to } => {
                let (from, to) = (self.elements(kind, from), self.elements(kind, to));
                self.caches.copy(&self.backend, from, to.start)
            }
            CacheOp::Save { kind, from, to } => {
                // Enqueued like everything else: nobody waits for the host here.
                let bytes = self.caches.read(&self.backend, self.elements(kind, from))?;
                let saved = Saved::new(Bytes::Coming(match (kind, self.format) {
                    (UnitKind::Block, _) | (_, StateFormat::F32) => bytes,
                    (UnitKind::Slot, format) => Download::pending(move || Ok(format.encode(&bytes.wait()?))),
                }));
                if let (UnitKind::Slot, Some(rounding)) = (kind, &self.rounding) {
                    // Without the thread it is rounded when it is needed.
                    let _ = rounding.send(saved.clone());
                }
                self.saved.insert(to, saved);
                Ok(())
            }
            CacheOp::Load { kind, from, to } => {
                let at = self.elements(kind, to).start;
                let saved = self.saved.get(&from);
                let saved = saved.ok_or_else(|| BackendError::Device(format!("{from:?} is not in host memory")))?;
                saved.with(|bytes| match (kind, self.format) {
                    (UnitKind::Block, _) | (_, StateFormat::F32) => self.caches.write(&self.backend, at, bytes),
                    (UnitKind::Slot, format) => self.caches.write(&self.backend, at, &format.decode(bytes)),
                })?
            }
            CacheOp::Archive { from, to } => {
                self.archived.extend(self.saved.get(&from).map(|saved| (to, saved.clone())));
                Ok(())
            }
            CacheOp::Forget(id) => {
                self.saved.remove(&id);
                Ok(())
            }
        }
    }

    fn elements(&self, kind: UnitKind, place: Place) -> Range<usize> {
        match kind {
            UnitKind::Block => self.caches.block(place as usize),
            UnitKind::Slot => self.caches.slot(place as usize),
        }
    }
}

/// What a run computes once it is known what was drafted for it.
struct PlannedTokens<'a> {
    tokens: Cow<'a, [TokenId]>,
    /// Those of its snapshots that may come about.
    copies: Vec<SlotCopy>,
    effect: Effect,
}

impl<'a> PlannedTokens<'a> {
    fn new(run: &StepRun<'a>, proposal: &Proposal) -> Self {
        let (tokens, effect) = if proposal.tokens.is_empty() {
            (Cow::Borrowed(run.tokens), Effect::Advance)
        } else {
            (Cow::Owned([run.tokens, &proposal.tokens].concat()), Effect::Verify)
        };
        let within = run.snapshots.iter().filter(|copy| copy.after <= tokens.len());
        let copies = within.map(|copy| SlotCopy { after: copy.after, slot: copy.slot }).collect();
        PlannedTokens { tokens, copies, effect }
    }
}

/// From the first row asked for to the last one that is computed; they are consecutive.
fn wanted(run: &StepRun<'_>, len: usize) -> LogitRows {
    match (run.rows.first(), run.rows.last()) {
        (Some(first), Some(last)) => LogitRows::Range(first.row..(last.row + 1).min(len)),
        _ => LogitRows::None,
    }
}

impl<B: Backend> StepRunner for ModelRunner<B> {
    fn vocab_size(&self) -> usize {
        self.model.config().vocab_size
    }

    fn run(&mut self, input: &StepInput<'_>) -> Result<StepOutput, BackendError> {
        self.fold(&input.kept).map_err(device_error)?;
        let ModelRunner { speculation, backend, batch, workspace, caches, .. } = self;
        if let Some(speculation) = speculation {
            speculation.begin(input, LastStep { backend, batch, workspace, caches })?;
        }
        for op in &input.ops {
            self.perform(*op)?;
        }
        if input.runs.is_empty() {
            return Ok(StepOutput::default());
        }
        let Some(mut speculation) = self.speculation.take() else {
            let none = vec![Proposal::default(); input.runs.len()];
            self.forward(input, &none).map_err(device_error)?;
            return Ok(StepOutput { runs: self.sample(input, &none)?, ..StepOutput::default() });
        };
        let output = self.run_speculating(&mut speculation, input);
        self.speculation = Some(speculation);
        output
    }

    fn kept_slot_len(&self, slot_len: usize) -> usize {
        self.format.size_bytes(slot_len).div_ceil(4)
    }

    fn host_units(&mut self) -> Option<&mut dyn HostUnits> {
        Some(self)
    }
}

impl<B: Backend> ModelRunner<B> {
    fn last_step(&mut self) -> LastStep<'_, B> {
        let ModelRunner { backend, batch, workspace, caches, .. } = self;
        LastStep { backend, batch, workspace, caches }
    }

    fn run_speculating(
        &mut self,
        speculation: &mut Speculation<B>,
        input: &StepInput<'_>,
    ) -> Result<StepOutput, BackendError> {
        let ModelRunner { backend, model, batch, workspace, caches, .. } = self;
        let drafts = speculation.propose(model, input, LastStep { backend, batch, workspace, caches })?;
        let started = Instant::now();
        for (run, proposal) in input.runs.iter().zip(&drafts.proposals).filter(|(_, p)| !p.tokens.is_empty()) {
            if let Some(masks) = &run.masks {
                masks.draft(proposal.tokens.clone());
            }
        }
        self.forward(input, &drafts.proposals).map_err(device_error)?;
        speculation.observe((input, &drafts.proposals), self.last_step())?;
        let runs = self.sample(input, &drafts.proposals)?;
        speculation.learn(input, &drafts, (&runs, started.elapsed()));
        let drafted = drafts.proposals.iter().map(|proposal| proposal.tokens.len()).collect();
        Ok(StepOutput { runs, drafted, drafting: drafts.drafting })
    }

    /// The rows asked for, run by run; of drafts, those that stand and one token more.
    fn sample(&self, input: &StepInput<'_>, proposals: &[Proposal]) -> Result<Vec<Vec<SampledRow>>, BackendError> {
        let asked: Vec<Vec<SampleRow>> =
            (0..input.runs.len()).map(|run| self.logit_rows(run, &input.runs[run], &proposals[run])).collect();
        let by_chance = |run: usize| {
            let first = asked[run].first();
            let drawn =
                first.is_some_and(|row| matches!(row.choice, Choice::Draw { temperature, .. } if temperature > 0.0));
            let may_differ = input.runs[run].drawn_drafts == DrawnDrafts::KeepDistribution;
            drawn && may_differ && !proposals[run].tokens.is_empty()
        };
        let (drawn, plain): (Vec<usize>, Vec<usize>) = (0..input.runs.len()).partition(|run| by_chance(*run));
        let mut runs: Vec<Vec<SampledRow>> = vec![Vec::new(); input.runs.len()];
        for (run, rows) in plain.iter().zip(self.sample_each(plain.iter().map(|run| asked[*run].clone()).collect())?) {
            let drafts = &proposals[*run].tokens;
            runs[*run] = if drafts.is_empty() { rows } else { accept_same(drafts, rows) };
        }
        if drawn.is_empty() {
            return Ok(runs);
        }
        let rows: Vec<SampleRow> = drawn.iter().flat_map(|run| asked[*run].clone()).collect();
        let mut laws =
            self.backend.distributions(Sample { logits: self.workspace.logits(), rows: &rows })?.wait()?.into_iter();
        let mut to_score = Vec::new();
        for run in drawn {
            let laws = laws.by_ref().take(asked[run].len()).collect();
            match accept_drawn(&proposals[run], &asked[run], laws)? {
                None => runs[run] = vec![SampledRow::NonFinite],
                Some(tokens) if input.runs[run].rows.iter().all(|row| row.top_logprobs.is_none()) => {
                    runs[run] = unscored(tokens);
                }
                Some(tokens) => to_score.push((run, scoring(&asked[run], &tokens))),
            }
        }
        let scored = self.sample_each(to_score.iter().map(|(_, rows)| rows.clone()).collect())?;
        to_score.iter().zip(scored).for_each(|((run, _), rows)| runs[*run] = rows);
        Ok(runs)
    }

    /// The rows of a run in terms of the step's logits.
    fn logit_rows(&self, index: usize, run: &StepRun<'_>, proposal: &Proposal) -> Vec<SampleRow> {
        let logits = self.batch.logit_rows(index);
        let first = run.rows.first().map_or(0, |row| row.row);
        let placed = |row: SampleRow| SampleRow { row: logits.start + row.row - first, ..row };
        if proposal.tokens.is_empty() {
            return run.masked_rows().into_iter().filter(|row| row.row < run.tokens.len()).map(placed).collect();
        }
        let rows = run.masked_rows();
        // A draft that the grammar does not allow is the last that matters, and the row after it is never reached.
        let masked = rows.iter().filter(|row| row.allowed.is_some()).count();
        let most = if run.masks.is_some() { masked.max(1) } else { proposal.tokens.len() };
        let drafts = &proposal.tokens[..most.min(proposal.tokens.len())];
        rows_with_drafts(&rows, drafts).into_iter().map(placed).collect()
    }

    /// Samples several lists of rows at once.
    fn sample_each(&self, lists: Vec<Vec<SampleRow>>) -> Result<Vec<Vec<SampledRow>>, BackendError> {
        let lengths: Vec<usize> = lists.iter().map(Vec::len).collect();
        let rows: Vec<SampleRow> = lists.into_iter().flatten().collect();
        let sampled = self.backend.sample(Sample { logits: self.workspace.logits(), rows: &rows })?.wait()?;
        let mut sampled = sampled.into_iter();
        Ok(lengths.into_iter().map(|len| sampled.by_ref().take(len).collect()).collect())
    }
}

fn device_error(error: ModelError) -> BackendError {
    match error {
        ModelError::Backend(error) => error,
        other => BackendError::Device(other.to_string()),
    }
}

impl<B: Backend> HostUnits for ModelRunner<B> {
    fn put(&mut self, id: HostId, bytes: Vec<u8>) {
        self.saved.insert(id, Saved::new(Bytes::Here(bytes)));
    }

    fn take_archived(&mut self) -> Vec<(RecordId, Unit)> {
        let unit = |saved: Saved| -> Unit { Box::new(move || saved.with(<[u8]>::to_vec).ok()) };
        self.archived.drain(..).map(|(record, saved)| (record, unit(saved))).collect()
    }
}
