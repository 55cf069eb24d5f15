//! The conformance list, each check caught and named.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Instant;

use anyhow::{Result, bail};
use perilune_backend::Backend;
use perilune_conformance as conformance;

use crate::options::Size;

type Check<B> = (&'static str, fn(&B));

/// Every check of a backend, those of one row in any batch included. The first few are quick on the emulator, too.
fn all<B: Backend>() -> [Check<B>; 18] {
    [
        ("memory", conformance::check_memory),
        ("embed", conformance::check_embed),
        ("select_rows", conformance::check_select_rows),
        ("rms_norm", conformance::check_rms_norm),
        ("gated_act", conformance::check_gated_act),
        ("linear", conformance::check_linear),
        ("attn_residual", conformance::check_attn_residual),
        ("kda", conformance::check_kda),
        ("kda_batch", conformance::check_kda_batch),
        ("kda_replay", conformance::check_kda_replay),
        ("mla", conformance::check_mla),
        ("mla_splits", conformance::check_mla_splits),
        ("moe_route", conformance::check_moe_route),
        ("moe_experts", conformance::check_moe_experts),
        ("sample_scores", conformance::check_sample_scores),
        ("sample_draws", conformance::check_sample_draws),
        ("bits_of_linear", conformance::check_bits_linear),
        ("bits_of_moe", conformance::check_bits_moe),
    ]
}

/// How many of them a dry run does: the rest is what the emulator's own tests do.
const QUICK: usize = 5;

/// Runs them; fails where one does.
pub(crate) fn run<B: Backend>(backend: &B, size: Size) -> Result<()> {
    let mut failed = Vec::new();
    let list = all::<B>();
    let count = if size == Size::Small { QUICK } else { list.len() };
    for (name, check) in &list[..count] {
        let begin = Instant::now();
        let outcome = catch_unwind(AssertUnwindSafe(|| check(backend)));
        let word = if outcome.is_ok() { "ok" } else { "FAILED" };
        println!("conformance {name:<16} {word} ({:.1} s)", begin.elapsed().as_secs_f64());
        if outcome.is_err() {
            failed.push(*name);
        }
        // After a fault the device is lost, and every further check would only say so.
        if let Err(error) = backend.synchronize() {
            bail!("the device is lost after {name}: {error}");
        }
    }
    if failed.is_empty() { Ok(()) } else { bail!("conformance: {} failed", failed.join(", ")) }
}
