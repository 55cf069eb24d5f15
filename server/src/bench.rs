//! `perilune bench`: tokens per second of prefill and decode, and the share of memory bandwidth that decode reaches.
//!
//! Runs the model's steps in-process, without HTTP and scheduler: what is measured is the device and the model code.
//! Bytes per decode step are those of the weights that the step has to read at least once; for routed experts, as many
//! distinct ones as a batch of random choices would touch on average.

use std::fmt::Write;
use std::time::Instant;

use perilune_backend::{Backend, Choice, Penalties, Sample, SampleRow};
use perilune_config::{FfnKind, ModelConfig};
use perilune_model::{BatchPlan, CacheShape, Caches, ForwardBatch, Kimi, LogitRows, Run, StepLimits, Workspace};
use perilune_tensor::TokenId;
use perilune_weights::{Checkpoint, Layout, SafetensorsDir, expected_tensors};
use serde_json::json;

use crate::backend::{Measured, WithBackend};
use crate::cli::BenchArgs;
use crate::error::ServerError;
use crate::load::{LoadOptions, server_error};
use crate::progress::{LoadProgress, Show};

/// One measurement.
#[derive(Debug, Clone)]
struct Row {
    what: &'static str,
    size: usize,
    tokens_per_s: f64,
    /// Bytes of weights read per second; only for decode.
    gb_per_s: Option<f64>,
}

/// The report, as a table or as JSON.
///
/// # Errors
/// A model that cannot be loaded.
pub fn run(args: &BenchArgs) -> Result<String, ServerError> {
    let options = LoadOptions::from_args(&args.model)?;
    let config = ModelConfig::from_dir(&options.dir)?;
    let (limit, rows) = options.backend.with(options.threads, Measure { args, options: &options, config: &config })?;
    Ok(if args.json { as_json(&rows, limit) } else { as_table(&rows, limit) })
}

struct Measure<'a> {
    args: &'a BenchArgs,
    options: &'a LoadOptions,
    config: &'a ModelConfig,
}

impl WithBackend for Measure<'_> {
    /// The read bandwidth and the measurements.
    type Output = (f64, Vec<Row>);

    fn run<B: Measured>(self, backend: B) -> Result<(f64, Vec<Row>), ServerError> {
        let limit = backend.read_bandwidth_gb_per_s()?;
        let source = SafetensorsDir::open(&self.options.dir)?;
        let checkpoint = Checkpoint::open(&source, self.config)?;
        let mut progress = LoadProgress::new(Show::Stderr);
        let model = Kimi::load(&backend, self.config, &checkpoint, &mut |report| progress.report(report));
        progress.finish();
        let model = model.map_err(server_error)?;
        let reads = WeightReads::of(&checkpoint, self.config)?;
        let batch = self.args.batch.iter().copied().max().unwrap_or(1);
        let prompt = self.args.prompt.iter().copied().max().unwrap_or(1);
        let mut stage = Stage::new(backend, model, (batch, prompt, self.args.decode), self.options)?;
        let mut rows = Vec::new();
        for size in &self.args.prompt {
            let seconds = median(self.args.repeat, || stage.prefill(*size))?;
            rows.push(Row { what: "prefill", size: *size, tokens_per_s: *size as f64 / seconds, gb_per_s: None });
        }
        for size in &self.args.batch {
            let seconds = median(self.args.repeat, || stage.decode(*size, self.args.decode))? / self.args.decode as f64;
            let gb_per_s = Some(reads.bytes(*size) / seconds / 1e9);
            rows.push(Row { what: "decode", size: *size, tokens_per_s: *size as f64 / seconds, gb_per_s });
        }
        Ok((limit, rows))
    }
}

fn median(repeat: usize, mut seconds: impl FnMut() -> Result<f64, ServerError>) -> Result<f64, ServerError> {
    // One run that does not count brings the pages in.
    seconds()?;
    let mut all = (0..repeat).map(|_| seconds()).collect::<Result<Vec<f64>, _>>()?;
    all.sort_by(f64::total_cmp);
    Ok(all[all.len() / 2])
}

/// Bytes of weights that a decode step reads.
struct WeightReads {
    always: f64,
    /// Of one expert of every layer that has them.
    per_expert: f64,
    num_experts: f64,
    top_k: i32,
}

impl WeightReads {
    fn of(checkpoint: &Checkpoint<'_>, config: &ModelConfig) -> Result<Self, ServerError> {
        let (mut always, mut experts) = (0.0, 0.0);
        for expected in expected_tensors(config) {
            match expected.layout {
                // A row of the embedding per token is nothing.
                _ if expected.name.contains("embed_tokens") => {}
                Layout::ExpertMatrix { .. } => experts += checkpoint.matrix(&expected.name)?.size_bytes() as f64,
                Layout::Matrix { .. } => always += checkpoint.matrix(&expected.name)?.size_bytes() as f64,
                _ => always += 4.0 * expected.layout.shape().numel() as f64,
            }
        }
        let has_experts = (0..config.num_layers()).any(|layer| config.ffn(layer) == FfnKind::Moe);
        let moe = config.moe.filter(|_| has_experts);
        let num_experts = moe.map_or(1.0, |moe| moe.num_experts as f64);
        let top_k = moe.map_or(0, |moe| i32::try_from(moe.top_k).unwrap_or(i32::MAX));
        Ok(WeightReads { always, per_expert: experts / num_experts, num_experts, top_k })
    }

    /// With `batch` tokens, an expert is chosen by none of them with probability `(1 - K/E)^batch`.
    fn bytes(&self, batch: usize) -> f64 {
        let missed = (1.0 - f64::from(self.top_k) / self.num_experts).powi(i32::try_from(batch).unwrap_or(i32::MAX));
        self.always + self.per_expert * self.num_experts * (1.0 - missed)
    }
}

/// A model with room for the largest measurement.
struct Stage<B: Backend> {
    backend: B,
    model: Kimi<B>,
    workspace: Workspace<B>,
    batch: ForwardBatch<B>,
    caches: Caches<B>,
    block_size: usize,
    blocks_each: usize,
    chunk: usize,
}

impl<B: Backend> Stage<B> {
    fn new(
        backend: B,
        model: Kimi<B>,
        (sequences, prompt, decode): (usize, usize, usize),
        options: &LoadOptions,
    ) -> Result<Self, ServerError> {
        let (block_size, chunk) = (options.block_size, options.chunked_prefill_size);
        let blocks_each = (prompt + decode + 1).div_ceil(block_size);
        let limits = StepLimits {
            max_rows: chunk.max(sequences),
            max_runs: sequences,
            max_blocks: blocks_each * sequences,
            max_logit_rows: sequences,
            max_snapshots: 1,
        };
        let shape = CacheShape::with_room(model.config(), block_size, (blocks_each * sequences, sequences));
        let workspace = Workspace::new(&backend, model.config(), limits)?;
        let batch = ForwardBatch::new(&backend, limits)?;
        let caches = Caches::new(&backend, model.config(), shape)?;
        Ok(Stage { backend, model, workspace, batch, caches, block_size, blocks_each, chunk })
    }

    /// Seconds for one prompt of `len` tokens, in chunks as the server would take it.
    fn prefill(&mut self, len: usize) -> Result<f64, ServerError> {
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

    /// Seconds for `steps` tokens of each of `sequences`, after a short prompt.
    fn decode(&mut self, sequences: usize, steps: usize) -> Result<f64, ServerError> {
        let prompt = self.tokens(self.block_size.min(16));
        for s in 0..sequences {
            let slot = self.slot(s);
            self.caches.zero_slot(&self.backend, slot)?;
            self.step(&[(s, 0, &prompt)])?;
        }
        let tokens = self.tokens(steps);
        let begin = Instant::now();
        for (i, token) in tokens.iter().enumerate() {
            let one = std::slice::from_ref(token);
            let runs: Vec<_> = (0..sequences).map(|s| (s, prompt.len() + i, one)).collect();
            self.step(&runs)?;
        }
        Ok(begin.elapsed().as_secs_f64())
    }

    /// One step with greedy sampling, as a server does it.
    fn step(&mut self, runs: &[(usize, usize, &[TokenId])]) -> Result<(), ServerError> {
        let table = |s: usize| (s * self.blocks_each..(s + 1) * self.blocks_each).map(|b| b as u32).collect();
        let blocks: Vec<Vec<u32>> = runs.iter().map(|(s, ..)| table(*s)).collect();
        let runs = runs.iter().zip(&blocks).map(|((s, position, tokens), blocks)| Run {
            tokens,
            position: *position,
            slot: self.slot(*s) as u32,
            blocks,
            logits: LogitRows::Last,
            snapshots: &[],
        });
        let plan = BatchPlan { runs: runs.collect() };
        self.batch.fill(&self.backend, &plan).map_err(server_error)?;
        self.model.forward(&self.backend, &mut self.workspace, &self.batch, &mut self.caches)?;
        let rows: Vec<SampleRow> = (0..plan.runs.len()).map(greedy).collect();
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
        penalties: Penalties { repetition: 1.0, presence: 0.0, frequency: 0.0 },
        counts: Vec::new(),
        top_logprobs: None,
    }
}

fn as_table(rows: &[Row], limit: f64) -> String {
    let mut text = format!("read bandwidth {limit:.1} GB/s, measured in the same run\n");
    text.push_str("work      size      tokens/s   GB/s of weights   of bandwidth\n");
    for row in rows {
        let bandwidth = row.gb_per_s.map_or(String::new(), |gb| format!("{gb:17.2}   {:11.0}%", 100.0 * gb / limit));
        // Writing to a String cannot fail.
        let _ = writeln!(text, "{:<8}{:>6}  {:>12.1}{bandwidth}", row.what, row.size, row.tokens_per_s);
    }
    text
}

fn as_json(rows: &[Row], limit: f64) -> String {
    let rows: Vec<_> = rows
        .iter()
        .map(|r| json!({"work": r.what, "size": r.size, "tokens_per_s": r.tokens_per_s, "gb_per_s": r.gb_per_s}))
        .collect();
    format!("{}\n", json!({"read_bandwidth_gb_per_s": limit, "rows": rows}))
}
