//! What an engine has done and is doing, for metrics and watchdogs.

use std::time::{Duration, Instant};

use perilune_cache::{CacheManager, CacheStats, CacheUsage};

use crate::EngineConfig;

/// How many requests ended, by reason.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct FinishCounts {
    /// With a stop token, or by [`crate::TokenStream::stop`].
    pub stop: u64,
    /// At their limit.
    pub length: u64,
    /// The caller left, or the engine was told to end them.
    pub abort: u64,
    /// With a fault.
    pub failed: u64,
}

/// Places of drafts that are counted apart.
pub const MAX_PLACES: usize = 7;

/// What became of drafts. Counters only grow.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct DraftStats {
    /// Verifications: a sequence with at least one draft in a step.
    pub verifications: u64,
    /// Drafts verified at each place, the first after the last committed token.
    pub drafted: [u64; MAX_PLACES],
    /// Those among them that were accepted.
    pub accepted: [u64; MAX_PLACES],
    /// Time spent on drafting.
    pub drafting: Duration,
}

impl DraftStats {
    /// Mean number of tokens that a verification brought, the one after the drafts included; `None` before the first.
    pub fn accept_length(&self) -> Option<f64> {
        let accepted: u64 = self.accepted.iter().sum();
        (self.verifications > 0).then(|| 1.0 + accepted as f64 / self.verifications as f64)
    }
}

/// A snapshot, as of the beginning or the end of the last step. Counters only grow.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct EngineStats {
    /// Sequences that hold a state slot.
    pub running: usize,
    /// Requests that wait: new ones and preempted ones.
    pub waiting: usize,
    /// Memory for latents and states.
    pub usage: CacheUsage,
    /// What became of stored prefixes.
    pub prefixes: CacheStats,
    /// Steps finished.
    pub steps: u64,
    /// Prompt tokens of accepted requests.
    pub prompt_tokens: u64,
    /// Tokens computed in prefill, recomputed ones included.
    pub prefilled_tokens: u64,
    /// Tokens generated.
    pub generated_tokens: u64,
    /// Times a sequence gave up its memory to an earlier one.
    pub preemptions: u64,
    /// Requests that ended because their logits were not finite.
    pub corrupted_requests: u64,
    /// Speculation.
    pub drafts: DraftStats,
    /// Requests that ended.
    pub finished: FinishCounts,
    /// Time since the last finished step, while there is work to do; `None` when idle. A watchdog compares it with the
    /// longest step it finds believable.
    pub stalled_for: Option<Duration>,
}

/// The numbers as the device thread keeps them, and since when it owes a step.
#[derive(Debug)]
pub(crate) struct Monitor {
    /// As of the last step; `waiting` counts preempted sequences only, `stalled_for` is not set.
    pub(crate) stats: EngineStats,
    owed_since: Option<Instant>,
}

impl Monitor {
    pub(crate) fn new(config: &EngineConfig) -> Self {
        let usage = CacheManager::new(config.cache).usage();
        Monitor { stats: EngineStats { usage, ..EngineStats::default() }, owed_since: None }
    }

    /// Work arrived: if there was none, a step is owed from now on.
    pub(crate) fn begin_work(&mut self) {
        self.owed_since.get_or_insert_with(Instant::now);
    }

    /// A step finished, or nothing needed one.
    pub(crate) fn note_progress(&mut self, more: Work) {
        self.owed_since = (more == Work::Left).then(Instant::now);
    }

    /// The numbers with `queued` requests that had no step yet.
    pub(crate) fn snapshot(&self, queued: usize) -> EngineStats {
        let stalled_for = self.owed_since.map(|since| since.elapsed());
        EngineStats { waiting: self.stats.waiting + queued, stalled_for, ..self.stats }
    }
}

/// Whether anything is left to compute.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Work {
    Left,
    None,
}
