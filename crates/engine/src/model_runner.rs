//! Steps of a real model on a real backend.

use std::collections::HashMap;
use std::ops::Range;

use perilune_backend::{Backend, BackendError, Download, Sample, SampleRow};
use perilune_cache::{CacheOp, HostId, Place, UnitKind};
use perilune_config::ModelConfig;
use perilune_model::{
    BatchPlan, CacheShape, Caches, ForwardBatch, Kimi, LogitRows, ModelError, Run, SlotCopy, StepLimits, Workspace,
};

use crate::{EngineConfig, StepInput, StepOutput, StepRun, StepRunner};

/// A model with the memory of its sequences and of a step.
#[derive(Debug)]
pub struct ModelRunner<B: Backend> {
    backend: B,
    model: Kimi<B>,
    workspace: Workspace<B>,
    batch: ForwardBatch<B>,
    caches: Caches<B>,
    /// Units that are kept in host memory, or on their way there.
    saved: HashMap<HostId, Saved>,
}

enum Saved {
    Coming(Download<Vec<u8>>),
    Here(Vec<u8>),
}

impl std::fmt::Debug for Saved {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Saved::Coming(_) => f.write_str("Coming"),
            Saved::Here(bytes) => write!(f, "Here({} bytes)", bytes.len()),
        }
    }
}

/// The largest step of an engine.
pub(crate) fn step_limits(config: &EngineConfig) -> StepLimits {
    let max_runs = config.max_running_requests;
    let blocks_each = config.effective_context().div_ceil(config.cache.block_size.max(1));
    StepLimits {
        max_rows: config.chunked_prefill_size + max_runs,
        max_runs,
        max_blocks: max_runs.saturating_mul(blocks_each),
        max_logit_rows: config.max_prompt_logit_rows + max_runs,
        // No two are in the same place of the arena.
        max_snapshots: config.cache.arena.max_slots().min(config.chunked_prefill_size + max_runs),
    }
}

impl<B: Backend> ModelRunner<B> {
    /// Allocates everything that steps within `config` need.
    ///
    /// # Errors
    /// `OutOfMemory`.
    pub fn new(backend: B, model: Kimi<B>, config: &EngineConfig) -> Result<Self, BackendError> {
        let limits = step_limits(config);
        let arena = config.cache.arena;
        let shape = CacheShape::new(model.config(), config.cache.block_size, arena.len * 4);
        if (shape.block_len, shape.slot_len) != (arena.block_len, arena.slot_len) {
            return Err(BackendError::Mismatch {
                op: "ModelRunner::new",
                field: "config.cache.arena",
                found: format!("{arena:?}"),
                expected: format!("units of {} and {} elements", shape.block_len, shape.slot_len),
            });
        }
        Ok(ModelRunner {
            workspace: Workspace::new(&backend, model.config(), limits)?,
            batch: ForwardBatch::new(&backend, limits)?,
            caches: Caches::new(&backend, model.config(), shape)?,
            saved: HashMap::new(),
            model,
            backend,
        })
    }

    /// The model's configuration.
    pub fn model_config(&self) -> &ModelConfig {
        self.model.config()
    }

    fn forward(&mut self, input: &StepInput<'_>) -> Result<(), ModelError> {
        for op in &input.ops {
            self.perform(*op)?;
        }
        let copies: Vec<Vec<SlotCopy>> = input.runs.iter().map(copies).collect();
        let runs = input.runs.iter().zip(&copies).map(|(run, snapshots)| Run {
            tokens: run.tokens,
            position: run.position,
            slot: run.slot,
            blocks: &run.blocks,
            logits: wanted(run),
            snapshots,
        });
        self.batch.fill(&self.backend, &BatchPlan { runs: runs.collect() })?;
        Ok(self.model.forward(&self.backend, &mut self.workspace, &self.batch, &mut self.caches)?)
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
                self.saved.insert(to, Saved::Coming(bytes));
                Ok(())
            }
            CacheOp::Load { kind, from, to } => {
                let bytes = match self.saved.remove(&from) {
                    Some(Saved::Coming(bytes)) => bytes.wait()?,
                    Some(Saved::Here(bytes)) => bytes,
                    None => return Err(BackendError::Device(format!("{from:?} is not in host memory"))),
                };
                let at = self.elements(kind, to).start;
                self.caches.write(&self.backend, at, &bytes)?;
                self.saved.insert(from, Saved::Here(bytes));
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

fn copies(run: &StepRun<'_>) -> Vec<SlotCopy> {
    run.snapshots.iter().map(|copy| SlotCopy { after: copy.after, slot: copy.slot }).collect()
}

/// From the first row asked for to the last one; they are consecutive.
fn wanted(run: &StepRun<'_>) -> LogitRows {
    match (run.rows.first(), run.rows.last()) {
        (Some(first), Some(last)) => LogitRows::Range(first.row..last.row + 1),
        _ => LogitRows::None,
    }
}

impl<B: Backend> StepRunner for ModelRunner<B> {
    fn vocab_size(&self) -> usize {
        self.model.config().vocab_size
    }

    fn run(&mut self, input: &StepInput<'_>) -> Result<StepOutput, BackendError> {
        self.forward(input).map_err(|error| match error {
            ModelError::Backend(error) => error,
            other => BackendError::Device(other.to_string()),
        })?;
        let mut rows: Vec<SampleRow> = Vec::new();
        for (index, run) in input.runs.iter().enumerate() {
            let logits = self.batch.logit_rows(index);
            let first = run.rows.first().map_or(0, |row| row.row);
            let masked = run.masked_rows();
            rows.extend(masked.into_iter().map(|row| SampleRow { row: logits.start + row.row - first, ..row }));
        }
        let sampled = self.backend.sample(Sample { logits: self.workspace.logits(), rows: &rows })?.wait()?;
        let mut sampled = sampled.into_iter();
        let runs = input.runs.iter().map(|run| sampled.by_ref().take(run.rows.len()).collect()).collect();
        Ok(StepOutput { runs })
    }
}
