//! The table.

use std::fmt::Write;

use super::{Outcome, Sizes};

/// A policy's line.
pub(super) struct Row {
    pub(super) policy: &'static str,
    pub(super) outcome: Outcome,
    /// Time that its decisions took, where it is the one that serves.
    pub(super) seconds: Option<f64>,
}

pub(super) fn table(rows: &[Row], sizes: Sizes) -> String {
    let mib = |bytes: usize| bytes as f64 / f64::from(1 << 20);
    let mut text = format!(
        "memory {:.0} MiB, host {:.0} MiB (first policy); a state {:.1} MiB, a block of {} tokens {:.2} MiB; {} requests at once\n",
        mib(sizes.memory),
        mib(sizes.host),
        mib(sizes.slot),
        sizes.block_size,
        mib(sizes.block),
        sizes.concurrency,
    );
    text.push_str("policy                                  requests   prompt tokens      hit   computed   evictions\n");
    for row in rows {
        let Outcome { requests, prompt_tokens, hit_tokens, evictions, .. } = row.outcome;
        let hit = 100.0 * hit_tokens as f64 / prompt_tokens.max(1) as f64;
        let computed = prompt_tokens - hit_tokens;
        // Writing to a String cannot fail.
        let _ = writeln!(
            text,
            "{:<40}{requests:>8}{prompt_tokens:>16}{hit:>8.1}%{computed:>11}{evictions:>12}",
            row.policy
        );
    }
    if let [ours, theirs, ..] = rows {
        let ratio = ours.outcome.hit_tokens as f64 / theirs.outcome.hit_tokens.max(1) as f64;
        let _ = writeln!(text, "hit tokens, first to second: {ratio:.2}");
        let Outcome { requests, nodes, moves, worst_fragmentation, refused, .. } = ours.outcome;
        let per_s = requests as f64 / ours.seconds.unwrap_or(f64::NAN);
        let _ = writeln!(
            text,
            "first policy: {per_s:.0} admissions/s on one core, {nodes} nodes at most, {moves} units moved, \
             {:.1} % of memory free but not lendable at worst, {refused} requests too large",
            100.0 * worst_fragmentation
        );
    }
    text
}
