//! `perilune simulate-cache`: a request trace against the real cache, without a model.
//!
//! Requests run through [`perilune_engine::CacheManager`] as a scheduler would drive it, with sizes of a real model: what
//! is hit, what is evicted, how memory fragments, and how fast decisions are made. Beside it runs a second policy of the
//! kind other engines use ([`blind`]), with the same memory.

mod blind;
mod generate;
mod kept;
mod report;
mod trace;

use std::path::Path;
use std::time::Instant;

use perilune_config::ModelConfig;
use perilune_model::CacheShape;

use crate::cli::SimulateArgs;
use crate::error::ServerError;
use report::Row;

pub use generate::TraceKind;

/// Sizes that both policies work with, in bytes.
#[derive(Debug, Clone, Copy)]
struct Sizes {
    /// Memory for states and latents.
    memory: usize,
    /// A state with its convolution tail.
    slot: usize,
    /// A block of latents.
    block: usize,
    /// Tokens of a block.
    block_size: usize,
    /// Host memory.
    host: usize,
    /// Requests under way at once.
    concurrency: usize,
}

/// What a policy made of a trace.
#[derive(Debug, Clone, Copy, Default)]
struct Outcome {
    requests: usize,
    prompt_tokens: u64,
    hit_tokens: u64,
    evictions: u64,
    /// Requests that did not fit at all.
    refused: usize,
    /// Largest share of free memory that could not be lent without moving something.
    worst_fragmentation: f64,
    moves: u64,
    nodes: usize,
}

/// Runs the simulation; a table.
///
/// # Errors
/// A trace or configuration that cannot be read, or sizes that do not fit one request.
pub fn run(args: &SimulateArgs) -> Result<String, ServerError> {
    let sizes = sizes(args)?;
    let requests = match &args.trace {
        Some(path) => trace::read(Path::new(path), sizes.block_size)?,
        None => generate::generate(args.generate, args.requests, args.seed),
    };
    let begin = Instant::now();
    let kept = kept::run(&requests, sizes);
    let seconds = begin.elapsed().as_secs_f64();
    let rows = [
        Row { policy: "planned states, one queue by value", outcome: kept, seconds: Some(seconds) },
        Row { policy: "state every 256 tokens, two LRUs", outcome: blind::run(&requests, sizes), seconds: None },
    ];
    Ok(report::table(&rows, sizes))
}

/// Bytes of K3's units on a rank that holds one part in `--split` of the attention heads: `F32` states, bf16 latents.
fn sizes(args: &SimulateArgs) -> Result<Sizes, ServerError> {
    let config = match &args.config {
        Some(path) => ModelConfig::from_file(path)?,
        None => ModelConfig::from_json_str(include_str!("../../../tests/data/configs/kimi-k3.json"))?,
    };
    let shape = CacheShape::new(&config, args.block_size, 0);
    let sizes = Sizes {
        memory: (args.memory_gib * f64::from(1 << 30)) as usize,
        slot: shape.slot_bytes() / args.split,
        block: shape.block_bytes() / 2,
        block_size: args.block_size,
        host: (args.host_gib * f64::from(1 << 30)) as usize,
        concurrency: args.concurrency,
    };
    if sizes.memory < 2 * sizes.slot + sizes.block {
        let (memory, slot) = (sizes.memory >> 20, sizes.slot >> 20);
        let message = format!("--memory-gib: {memory} MiB do not hold two states of {slot} MiB");
        return Err(ServerError::Answer(message));
    }
    Ok(sizes)
}
