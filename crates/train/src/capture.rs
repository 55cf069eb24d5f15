//! What the target thinks while it reads: its streams and its logits over prompt and answer, from our own model.
//!
//! Nothing is stored. Reading a sequence again costs the target a small part of what a step costs the draft, and streams
//! of a whole training set would fill a disk.

use perilune_backend::Backend;
use perilune_model::{
    BatchPlan, CacheShape, Caches, Effect, ForwardBatch, Kimi, LogitRows, Run, StepLimits, TapSpec, Workspace,
};
use perilune_tensor::TokenId;

use crate::TrainError;
use crate::answers::Answered;
use crate::objective::Spoken;

/// Tokens per latent block.
const BLOCK: usize = 64;

/// A model that reads one sequence at a time, whole.
pub struct Capture<B: Backend> {
    backend: B,
    model: Kimi<B>,
    workspace: Workspace<B>,
    batch: ForwardBatch<B>,
    caches: Caches<B>,
    max_tokens: usize,
}

impl<B: Backend> Capture<B> {
    /// Room for sequences of up to `max_tokens`, and the streams that `taps` names.
    ///
    /// # Errors
    /// `Backend`.
    pub fn new((backend, model): (B, Kimi<B>), taps: TapSpec, max_tokens: usize) -> Result<Self, TrainError> {
        let blocks = max_tokens.div_ceil(BLOCK);
        let limits = StepLimits {
            max_rows: max_tokens,
            max_runs: 1,
            max_blocks: blocks,
            max_logit_rows: max_tokens,
            max_snapshots: 1,
            max_verify_rows: 0,
        };
        let shape = CacheShape::with_room(model.config(), BLOCK, (blocks, 1));
        let mut workspace = Workspace::new(&backend, model.config(), limits)?;
        workspace.capture((&backend, model.config()), taps)?;
        Ok(Capture {
            workspace,
            batch: ForwardBatch::new(&backend, limits)?,
            caches: Caches::new(&backend, model.config(), shape)?,
            max_tokens,
            model,
            backend,
        })
    }

    /// Reads a prompt and its answer; what does not fit is left out at the end.
    ///
    /// # Errors
    /// `Backend`, `Model`.
    pub fn read(&mut self, answered: &Answered) -> Result<Spoken, TrainError> {
        let answer = answered.prompt.tokens.len();
        let mut tokens: Vec<TokenId> = answered.prompt.tokens.iter().chain(&answered.answer).copied().collect();
        tokens.truncate(self.max_tokens);
        let slot = self.caches.shape().slots().count - 1;
        self.caches.zero_slot(&self.backend, slot)?;
        let blocks: Vec<u32> = (0..tokens.len().div_ceil(BLOCK) as u32).collect();
        let wanted = answer.saturating_sub(1).min(tokens.len())..tokens.len();
        let num_wanted = wanted.len();
        let run = Run {
            tokens: &tokens,
            position: 0,
            slot: slot as u32,
            blocks: &blocks,
            logits: LogitRows::Range(wanted),
            snapshots: &[],
            effect: Effect::Advance,
        };
        self.batch.fill(&self.backend, &BatchPlan { runs: vec![run] })?;
        self.model.forward(&self.backend, &mut self.workspace, &self.batch, &mut self.caches)?;
        let mut logits = self.backend.download(self.workspace.logits())?.wait()?.to_f32();
        logits.truncate(num_wanted * self.model.config().vocab_size);
        Ok(Spoken { taps: self.taps(tokens.len())?, tokens, answer, logits })
    }

    /// Token by token, its streams one after the other.
    fn taps(&self, rows: usize) -> Result<Vec<f32>, TrainError> {
        let hidden = self.model.config().hidden_size;
        let streams = self.workspace.taps().iter().map(|tap| Ok(self.backend.download(tap)?.wait()?.to_f32()));
        let streams: Vec<Vec<f32>> = streams.collect::<Result<_, TrainError>>()?;
        let row =
            |row: usize| streams.iter().flat_map(move |stream| &stream[row * hidden..(row + 1) * hidden]).copied();
        Ok((0..rows).flat_map(row).collect())
    }
}
