//! Steps of a real model on a real backend.

use perilune_backend::{Backend, BackendError, Sample, SampleRow};
use perilune_config::ModelConfig;
use perilune_model::{
    BatchPlan, CacheShape, Caches, ForwardBatch, Kimi, LogitRows, ModelError, Run, StepLimits, Workspace,
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
}

/// The largest step of an engine.
pub(crate) fn step_limits(config: &EngineConfig) -> StepLimits {
    let max_runs = config.max_running_requests;
    let blocks_each = config.effective_context().div_ceil(config.block_size.max(1));
    StepLimits {
        max_rows: config.chunked_prefill_size + max_runs,
        max_runs,
        // Blocks are not shared between sequences, so all tables together have at most every block once.
        max_blocks: config.num_blocks.min(max_runs.saturating_mul(blocks_each)),
        max_logit_rows: config.max_prompt_logit_rows + max_runs,
        max_snapshots: 1,
    }
}

impl<B: Backend> ModelRunner<B> {
    /// Allocates everything that steps within `config` need.
    ///
    /// # Errors
    /// `OutOfMemory`.
    pub fn new(backend: B, model: Kimi<B>, config: &EngineConfig) -> Result<Self, BackendError> {
        let limits = step_limits(config);
        let room = (config.num_blocks, config.num_slots);
        let shape = CacheShape::with_room(model.config(), config.block_size, room);
        Ok(ModelRunner {
            workspace: Workspace::new(&backend, model.config(), limits)?,
            batch: ForwardBatch::new(&backend, limits)?,
            caches: Caches::new(&backend, model.config(), shape)?,
            model,
            backend,
        })
    }

    /// The model's configuration.
    pub fn model_config(&self) -> &ModelConfig {
        self.model.config()
    }

    fn forward(&mut self, input: &StepInput<'_>) -> Result<(), ModelError> {
        let last = self.caches.shape().slots().count - 1;
        for slot in &input.fresh_slots {
            self.caches.zero_slot(&self.backend, last - slot.index as usize)?;
        }
        let blocks: Vec<Vec<u32>> =
            input.runs.iter().map(|run| run.blocks.iter().map(|block| block.0).collect()).collect();
        let runs = input.runs.iter().zip(&blocks).map(|(run, blocks)| Run {
            tokens: run.tokens,
            position: run.position,
            slot: last as u32 - run.slot.index,
            blocks,
            logits: wanted(run),
            snapshots: &[],
        });
        self.batch.fill(&self.backend, &BatchPlan { runs: runs.collect() })?;
        Ok(self.model.forward(&self.backend, &mut self.workspace, &self.batch, &mut self.caches)?)
    }
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
            rows.extend(run.rows.iter().map(|row| SampleRow { row: logits.start + row.row - first, ..row.clone() }));
        }
        let sampled = self.backend.sample(Sample { logits: self.workspace.logits(), rows: &rows })?.wait()?;
        let mut sampled = sampled.into_iter();
        let runs = input.runs.iter().map(|run| sampled.by_ref().take(run.rows.len()).collect()).collect();
        Ok(StepOutput { runs })
    }
}
