//! A model with its caches, and the steps that measurements take with it.

use std::time::Instant;

use perilune_backend::{Backend, Choice, Penalties, Sample, SampleRow};
use perilune_engine::StateFormat;
use perilune_model::{
    BatchPlan, CacheShape, Caches, Effect, FoldBatch, FoldRun, ForwardBatch, Kimi, LogitRows, Run, StepLimits,
    Workspace,
};
use perilune_tensor::TokenId;

use crate::error::ServerError;
use crate::load::{LoadOptions, server_error};

/// Sizes that a stage has room for.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Room {
    /// Sequences at once.
    pub(crate) sequences: usize,
    /// Tokens of the longest sequence.
    pub(crate) tokens: usize,
    /// Tokens of each of several sequences.
    pub(crate) tokens_each: usize,
    /// Rows of one sequence that have logits in one step.
    pub(crate) verified: usize,
}

/// Tokens of the prompts before [`Stage::decode`].
pub(crate) const SHORT_PROMPT: usize = 16;

/// A model with room for the largest measurement.
pub(crate) struct Stage<B: Backend> {
    pub(crate) backend: B,
    model: Kimi<B>,
    workspace: Workspace<B>,
    batch: ForwardBatch<B>,
    folds: FoldBatch<B>,
    caches: Caches<B>,
    first_blocks: usize,
    blocks_each: usize,
    chunk: usize,
}

impl<B: Backend> Stage<B> {
    /// # Errors
    /// `OutOfMemory`.
    pub(crate) fn new(backend: B, model: Kimi<B>, room: Room, options: &LoadOptions) -> Result<Self, ServerError> {
        let (block_size, chunk) = (options.block_size, options.chunked_prefill_size);
        // The first sequence has the most blocks; the others lie after it.
        let (first_blocks, blocks_each) = (room.tokens.div_ceil(block_size), room.tokens_each.div_ceil(block_size));
        let num_blocks = first_blocks.max(blocks_each) + blocks_each * (room.sequences - 1);
        let limits = StepLimits {
            max_rows: chunk.max(SHORT_PROMPT).max(room.sequences).max(room.verified),
            max_runs: room.sequences,
            max_blocks: num_blocks,
            max_logit_rows: room.sequences.max(room.verified),
            max_snapshots: 1,
            max_verify_rows: room.verified,
        };
        let shape = CacheShape::with_room(model.config(), block_size, (num_blocks, room.sequences));
        let workspace = Workspace::new(&backend, model.config(), limits)?;
        let (batch, folds) = (ForwardBatch::new(&backend, limits)?, FoldBatch::new(&backend, limits)?);
        let caches = Caches::new(&backend, model.config(), shape)?;
        let first_blocks = first_blocks.max(blocks_each);
        Ok(Stage { backend, model, workspace, batch, folds, caches, first_blocks, blocks_each, chunk })
    }

    /// Seconds for one prompt of `len` tokens, in chunks as the server would take it.
    pub(crate) fn prefill(&mut self, len: usize) -> Result<f64, ServerError> {
        let tokens = self.tokens(len);
        let slot = self.slot(0);
        self.caches.zero_slot(&self.backend, slot)?;
        let begin = Instant::now();
        for start in (0..len).step_by(self.chunk) {
            let end = (start + self.chunk).min(len);
            self.step(&[(0, start, &tokens[start..end])])?;
        }
        Ok(begin.elapsed().as_secs_f64())
    }

    /// Seconds for `steps` tokens of each of `sequences`, after a short prompt. No two sequences have the same tokens, as
    /// they would choose the same experts.
    pub(crate) fn decode(&mut self, sequences: usize, steps: usize) -> Result<f64, ServerError> {
        self.begin(sequences)?;
        let begin = Instant::now();
        self.decode_on(sequences, steps)?;
        Ok(begin.elapsed().as_secs_f64())
    }

    /// The short prompts of so many sequences.
    pub(crate) fn begin(&mut self, sequences: usize) -> Result<(), ServerError> {
        let all = self.tokens(sequences * SHORT_PROMPT);
        for (s, tokens) in all.chunks_exact(SHORT_PROMPT).enumerate() {
            let slot = self.slot(s);
            self.caches.zero_slot(&self.backend, slot)?;
            self.step(&[(s, 0, tokens)])?;
        }
        Ok(())
    }

    /// `steps` tokens of each of `sequences` after their short prompts.
    pub(crate) fn decode_on(&mut self, sequences: usize, steps: usize) -> Result<(), ServerError> {
        let all = self.tokens(sequences * steps);
        let tokens: Vec<&[TokenId]> = all.chunks_exact(steps.max(1)).collect();
        for at in 0..steps {
            let runs: Vec<_> =
                tokens.iter().enumerate().map(|(s, tokens)| (s, SHORT_PROMPT + at, &tokens[at..=at])).collect();
            self.step(&runs)?;
        }
        Ok(())
    }

    /// Seconds for `steps` tokens of one sequence after `context` others, which [`Stage::prefill`] has computed.
    pub(crate) fn decode_after(&mut self, context: usize, steps: usize) -> Result<f64, ServerError> {
        let tokens = self.tokens(steps);
        let begin = Instant::now();
        for (i, token) in tokens.iter().enumerate() {
            self.step(&[(0, context + i, std::slice::from_ref(token))])?;
        }
        Ok(begin.elapsed().as_secs_f64())
    }

    /// Seconds for `steps` steps of `rows` tokens each of one sequence, all with logits, after `context` others: several
    /// tokens are verified, and all of them kept, as with a draft that knows.
    pub(crate) fn rows_after(&mut self, context: usize, (rows, steps): (usize, usize)) -> Result<f64, ServerError> {
        let tokens = self.tokens(rows * steps);
        let begin = Instant::now();
        for (i, tokens) in tokens.chunks_exact(rows).enumerate() {
            let effect = if rows > 1 { Effect::Verify } else { Effect::Advance };
            self.step_with(&[(0, context + i * rows, tokens)], (LogitRows::Range(0..rows), effect))?;
            if effect == Effect::Verify {
                let fold = FoldRun { first_row: 0, rows, slot: self.slot(0) as u32, snapshots: &[] };
                self.folds.fill(&self.backend, &[fold]).map_err(server_error)?;
                self.model.fold(&self.backend, &self.workspace, &self.folds, &mut self.caches)?;
            }
        }
        Ok(begin.elapsed().as_secs_f64())
    }

    /// Takes the next token of the first sequence, at `position`; returns the logits after it.
    pub(crate) fn logits_after(&mut self, token: TokenId, position: usize) -> Result<Vec<f32>, ServerError> {
        if position == 0 {
            let slot = self.slot(0);
            self.caches.zero_slot(&self.backend, slot)?;
        }
        self.step(&[(0, position, &[token])])?;
        let vocabulary = self.model.config().vocab_size;
        let mut logits = self.backend.download(self.workspace.logits())?.wait()?.to_f32();
        logits.truncate(vocabulary);
        Ok(logits)
    }

    /// Rounds the first sequence's state as if it had been kept in `format` and restored.
    pub(crate) fn round_state(&mut self, format: StateFormat) -> Result<(), ServerError> {
        let elements = self.caches.slot(self.slot(0));
        let state = self.caches.read(&self.backend, elements.clone())?.wait()?;
        let rounded = format.decode(&format.encode(&state));
        Ok(self.caches.write(&self.backend, elements.start, &rounded)?)
    }

    /// One step with greedy sampling, as a server does it.
    fn step(&mut self, runs: &[(usize, usize, &[TokenId])]) -> Result<(), ServerError> {
        self.step_with(runs, (LogitRows::Last, Effect::Advance))
    }

    fn step_with(
        &mut self,
        runs: &[(usize, usize, &[TokenId])],
        (wanted, effect): (LogitRows, Effect),
    ) -> Result<(), ServerError> {
        let table = |s: usize| match s {
            0 => (0..self.first_blocks as u32).collect(),
            s => {
                let first = self.first_blocks + (s - 1) * self.blocks_each;
                (first..first + self.blocks_each).map(|b| b as u32).collect()
            }
        };
        let blocks: Vec<Vec<u32>> = runs.iter().map(|(s, ..)| table(*s)).collect();
        let runs = runs.iter().zip(&blocks).map(|((s, position, tokens), blocks)| Run {
            tokens,
            position: *position,
            slot: self.slot(*s) as u32,
            blocks,
            logits: wanted.clone(),
            snapshots: &[],
            effect,
        });
        let plan = BatchPlan { runs: runs.collect() };
        self.batch.fill(&self.backend, &plan).map_err(server_error)?;
        self.model.forward(&self.backend, &mut self.workspace, &self.batch, &mut self.caches)?;
        let num_rows = if let LogitRows::Range(rows) = &wanted { rows.len() } else { plan.runs.len() };
        let rows: Vec<SampleRow> = (0..num_rows).map(greedy).collect();
        self.backend.sample(Sample { logits: self.workspace.logits(), rows: &rows })?.wait()?;
        Ok(())
    }

    /// Slots lie at the end of the arena.
    fn slot(&self, sequence: usize) -> usize {
        self.caches.shape().slots().count - 1 - sequence
    }

    fn tokens(&self, len: usize) -> Vec<TokenId> {
        let vocabulary = self.model.config().vocab_size as u32;
        (0..len as u32).map(|i| TokenId((i.wrapping_mul(2_654_435_761) >> 8) % vocabulary)).collect()
    }
}

fn greedy(row: usize) -> SampleRow {
    SampleRow {
        row,
        choice: Choice::Draw { temperature: 0.0, top_k: 0, top_p: 1.0, min_p: 0.0, seed: 0, step: 0 },
        bias: Vec::new(),
        banned: Vec::new(),
        allowed: None,
        penalties: Penalties { repetition: 1.0, presence: 0.0, frequency: 0.0 },
        counts: Vec::new(),
        top_logprobs: None,
    }
}
