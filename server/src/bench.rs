//! `perilune bench`: tokens per second of prefill and decode, and the share of memory bandwidth that decode reaches.
//!
//! Runs the model's steps in-process, without HTTP and scheduler: what is measured is the device and the model code.
//! The machine's limits are measured in the same run. `--ops` adds where the time of a step goes, `--quantize` and
//! `--cache-state-dtype` what rounding weights or a stored state costs.
//! Bytes per decode step are those of the weights that the step has to read at least once; for routed experts, as many
//! distinct ones as a batch of random choices would touch on average. Operations of prefill are those of the products with
//! weight matrices; recurrence and attention come on top and are not counted.

use std::fmt::Write;

use perilune_backend::Backend;
use perilune_config::{FfnKind, ModelConfig};
use perilune_cpu::CpuLimits;
use perilune_engine::StateFormat;
use perilune_model::Kimi;
use perilune_weights::{Checkpoint, Layout, SafetensorsDir, expected_tensors};
use serde_json::json;

use crate::backend::{Measured, WithBackend};
use crate::bench_loss::{Loss, measure_loss};
use crate::bench_ops::{OpTable, Timed};
use crate::bench_stage::{Room, SHORT_PROMPT, Stage};
use crate::cli::BenchArgs;
use crate::error::ServerError;
use crate::load::{LoadOptions, open_checkpoint, server_error};
use crate::progress::{LoadProgress, Show};

/// One measurement.
#[derive(Debug, Clone)]
struct Row {
    what: &'static str,
    size: usize,
    tokens_per_s: f64,
    reached: Reached,
}

/// What the device did per second.
#[derive(Debug, Clone, Copy)]
enum Reached {
    /// GB of weights read.
    Read(f64),
    /// GFLOP of products with weights.
    Computed(f64),
}

/// The report, as a table or as JSON.
///
/// # Errors
/// A model that cannot be loaded.
pub fn run(args: &BenchArgs) -> Result<String, ServerError> {
    let options = LoadOptions::from_args(&args.model)?;
    let config = ModelConfig::from_dir(&options.dir)?;
    let measure = Measure { args, options: &options, config: &config };
    let (limits, report) = options.backend.with(options.device(), measure)?;
    let rounds = options.quantize.is_some() || options.state_format != StateFormat::F32;
    let loss = rounds.then(|| measure_loss(&options, &config)).transpose()?;
    Ok(if args.json { report.as_json(limits, loss) } else { report.as_table(limits, loss) })
}

/// All measurements of a model.
struct Report {
    rows: Vec<Row>,
    ops: Vec<OpTable>,
}

struct Measure<'a> {
    args: &'a BenchArgs,
    options: &'a LoadOptions,
    config: &'a ModelConfig,
}

impl WithBackend for Measure<'_> {
    /// The limits of the machine and the measurements.
    type Output = (CpuLimits, Report);

    fn run<B: Measured>(self, backend: B) -> Result<(CpuLimits, Report), ServerError> {
        let limits = backend.limits()?;
        let source = SafetensorsDir::open(&self.options.dir)?;
        let checkpoint = open_checkpoint(&source, self.config, (self.options.quantize, backend.info()))?;
        let backend = Timed::new(backend);
        let mut progress = LoadProgress::new(Show::Stderr);
        let model = Kimi::load(&backend, self.config, &checkpoint, &mut |report| progress.report(report));
        progress.finish();
        let model = model.map_err(server_error)?;
        let reads = WeightReads::of(&checkpoint, self.config)?;
        let largest = |sizes: &[usize]| sizes.iter().copied().max().unwrap_or(1);
        let verified = largest(&self.args.verify);
        let tokens = largest(&self.args.prompt).max(largest(&self.args.context)) + self.args.decode * verified + 1;
        let tokens_each = SHORT_PROMPT + self.args.decode + 1;
        let room = Room { sequences: largest(&self.args.batch), tokens, tokens_each, verified };
        let mut stage = Stage::new(backend, model, room, self.options)?;
        let rows = self.rows(&mut stage, &reads)?;
        let ops = if self.args.ops { self.ops(&mut stage)? } else { Vec::new() };
        Ok((limits, Report { rows, ops }))
    }
}

impl Measure<'_> {
    fn rows<B: Backend>(&self, stage: &mut Stage<B>, reads: &WeightReads) -> Result<Vec<Row>, ServerError> {
        let (repeat, steps) = (self.args.repeat, self.args.decode);
        let mut rows = Vec::new();
        for size in &self.args.prompt {
            let seconds = median(repeat, || stage.prefill(*size))?;
            let reached = Reached::Computed(reads.operations(*size) / seconds / 1e9);
            rows.push(Row { what: "prefill", size: *size, tokens_per_s: *size as f64 / seconds, reached });
        }
        for size in &self.args.batch {
            let seconds = median(repeat, || stage.decode(*size, steps))? / steps as f64;
            let reached = Reached::Read(reads.bytes(*size) / seconds / 1e9);
            rows.push(Row { what: "decode", size: *size, tokens_per_s: *size as f64 / seconds, reached });
        }
        for size in &self.args.context {
            stage.prefill(*size)?;
            let seconds = median(repeat, || stage.decode_after(*size, steps))? / steps as f64;
            let reached = Reached::Read(reads.bytes(1) / seconds / 1e9);
            rows.push(Row { what: "context", size: *size, tokens_per_s: 1.0 / seconds, reached });
        }
        for size in &self.args.verify {
            stage.prefill(1)?;
            let seconds = median(repeat, || stage.rows_after(1, (*size, steps)))? / steps as f64;
            let reached = Reached::Read(reads.bytes(*size) / seconds / 1e9);
            rows.push(Row { what: "verify", size: *size, tokens_per_s: *size as f64 / seconds, reached });
        }
        Ok(rows)
    }

    /// Where the time goes in decode at every batch size, in verification and in prefill.
    fn ops<B: Backend>(&self, stage: &mut Stage<Timed<B>>) -> Result<Vec<OpTable>, ServerError> {
        let (steps, mut tables) = (self.args.decode, Vec::new());
        for size in &self.args.batch {
            stage.begin(*size)?;
            stage.backend.clear();
            stage.decode_on(*size, steps)?;
            tables.push(stage.backend.take(format!("decode, batch {size}, {steps} steps")));
        }
        for size in &self.args.verify {
            stage.prefill(1)?;
            stage.backend.clear();
            stage.rows_after(1, (*size, steps))?;
            tables.push(stage.backend.take(format!("verify, {size} rows, {steps} steps")));
        }
        let prompt = self.args.prompt.iter().copied().max().unwrap_or(1);
        stage.backend.clear();
        stage.prefill(prompt)?;
        tables.push(stage.backend.take(format!("prefill, {prompt} tokens")));
        Ok(tables)
    }
}

fn median(repeat: usize, mut seconds: impl FnMut() -> Result<f64, ServerError>) -> Result<f64, ServerError> {
    // One run that does not count brings the pages in.
    seconds()?;
    let mut all = (0..repeat).map(|_| seconds()).collect::<Result<Vec<f64>, _>>()?;
    all.sort_by(f64::total_cmp);
    Ok(all[all.len() / 2])
}

/// What weights cost a step.
struct WeightReads {
    /// Bytes that every step reads.
    always: f64,
    /// Bytes of one expert of every layer that has them.
    per_expert: f64,
    num_experts: f64,
    top_k: i32,
    /// Operations of products per token, those of the vocabulary's matrix apart.
    per_token: f64,
    /// Operations per row of logits.
    per_logits: f64,
}

impl WeightReads {
    fn of(checkpoint: &Checkpoint<'_>, config: &ModelConfig) -> Result<Self, ServerError> {
        let has_experts = (0..config.num_layers()).any(|layer| config.ffn(layer) == FfnKind::Moe);
        let moe = config.moe.filter(|_| has_experts);
        let num_experts = moe.map_or(1.0, |moe| moe.num_experts as f64);
        let top_k = moe.map_or(0, |moe| i32::try_from(moe.top_k).unwrap_or(i32::MAX));
        let (always, per_expert, per_token, per_logits) = (0.0, 0.0, 0.0, 0.0);
        let mut reads = WeightReads { always, per_expert, num_experts, top_k, per_token, per_logits };
        for expected in expected_tensors(config) {
            let operations = 2.0 * expected.layout.shape().numel() as f64;
            match expected.layout {
                // A row of the embedding per token is nothing.
                _ if expected.name.contains("embed_tokens") => {}
                Layout::ExpertMatrix { .. } => {
                    reads.per_expert += checkpoint.matrix(&expected.name)?.size_bytes() as f64 / num_experts;
                    reads.per_token += operations * f64::from(top_k) / num_experts;
                }
                Layout::Matrix { .. } => {
                    reads.always += checkpoint.matrix(&expected.name)?.size_bytes() as f64;
                    let of_logits = expected.name.contains("lm_head");
                    *(if of_logits { &mut reads.per_logits } else { &mut reads.per_token }) += operations;
                }
                _ => reads.always += 2.0 * operations,
            }
        }
        Ok(reads)
    }

    /// Of a prompt: logits for its last token.
    fn operations(&self, tokens: usize) -> f64 {
        tokens as f64 * self.per_token + self.per_logits
    }

    /// With `batch` tokens, an expert is chosen by none of them with probability `(1 - K/E)^batch`.
    fn bytes(&self, batch: usize) -> f64 {
        let missed = (1.0 - f64::from(self.top_k) / self.num_experts).powi(i32::try_from(batch).unwrap_or(i32::MAX));
        self.always + self.per_expert * self.num_experts * (1.0 - missed)
    }
}

impl Report {
    fn as_table(&self, limits: CpuLimits, loss: Option<Loss>) -> String {
        let CpuLimits { read_gb, f32_gflop, byte_gop, tile_gflop } = limits;
        // Writing to a String cannot fail, here and below.
        let mut text = format!("read {read_gb:.1} GB/s, f32 {f32_gflop:.0} GFLOP/s, bytes {byte_gop:.0} Gop/s");
        let _ = tile_gflop.map(|tiles| write!(text, ", bfloat16 tiles {tiles:.0} GFLOP/s"));
        text.push_str("; measured in the same run\n");
        text.push_str("work       size      tokens/s   of weights      of the limit\n");
        for row in &self.rows {
            let (reached, unit, limit) = match row.reached {
                Reached::Read(gb) => (gb, "GB/s", read_gb),
                Reached::Computed(gflop) => (gflop, "GFLOP/s", f32_gflop),
            };
            let share = 100.0 * reached / limit;
            let _ = writeln!(
                text,
                "{:<8}{:>7}  {:>12.1}   {reached:6.1} {unit:<7}   {share:4.0}%",
                row.what, row.size, row.tokens_per_s
            );
        }
        self.ops.iter().for_each(|table| text.push_str(&table.as_text(limits)));
        if let Some(loss) = loss {
            let _ = writeln!(text, "{loss}");
        }
        text
    }

    fn as_json(&self, limits: CpuLimits, loss: Option<Loss>) -> String {
        let row = |row: &Row| {
            let (gb, gflop, share) = match row.reached {
                Reached::Read(gb) => (Some(gb), None, gb / limits.read_gb),
                Reached::Computed(gflop) => (None, Some(gflop), gflop / limits.f32_gflop),
            };
            json!({"work": row.what, "size": row.size, "tokens_per_s": row.tokens_per_s, "gb_per_s": gb,
                   "gflop_per_s": gflop, "share_of_limit": share})
        };
        let report = json!({
            "read_bandwidth_gb_per_s": limits.read_gb,
            "f32_gflop_per_s": limits.f32_gflop,
            "byte_gop_per_s": limits.byte_gop,
            "tile_gflop_per_s": limits.tile_gflop,
            "rows": self.rows.iter().map(row).collect::<Vec<_>>(),
            "ops": self.ops.iter().map(|table| table.as_json(limits)).collect::<Vec<_>>(),
            "loss": loss.map(|loss| loss.as_json()),
        });
        format!("{report}\n")
    }
}
