//! A disk tier before the engine has it.

use std::sync::mpsc::channel;
use std::time::Duration;

use perilune_cache::{CacheConfig, DiskConfig, Prefixes};
use perilune_disk::{DiskStore, DiskThread, Found};

use crate::EngineError;
use crate::disk_desk::{DiskDesk, OpenDesk};

/// Files for stored prefixes that memory has no room for.
#[derive(Debug)]
pub struct DiskTier {
    /// The directory.
    pub store: DiskStore,
    /// What it held when it was opened.
    pub found: Found,
    /// Sizes, in the arena's unit of length.
    pub config: DiskConfig,
    /// How long it is waited for.
    pub patience: DiskPatience,
}

/// How long an engine waits for its disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DiskPatience {
    /// A request for a prefix that is on disk; then it is computed again.
    pub read: Duration,
    /// The end of the engine for what is stored in memory only; then it is not stored any more.
    pub save: Duration,
}

impl Default for DiskPatience {
    /// Two seconds, and five.
    fn default() -> Self {
        DiskPatience { read: Duration::from_secs(2), save: Duration::from_secs(5) }
    }
}

impl DiskTier {
    /// Length of units on their way to disk that a cache with such units does well with: four states with what belongs to
    /// them, and what a disk writes in a second or so.
    pub fn queue_len(cache: &CacheConfig) -> usize {
        const MIN_ELEMENTS: usize = (256 << 20) / 4;
        (4 * cache.arena.slot_len + 64 * cache.arena.block_len).max(MIN_ELEMENTS)
    }

    pub(crate) fn check(&self, cache: &CacheConfig) -> Result<(), EngineError> {
        if cache.prefixes == Prefixes::Forget {
            return Err(EngineError::Disk("prefixes are not kept at all".into()));
        }
        let least = cache.arena.slot_len + cache.arena.block_len;
        if self.config.len < least {
            let (mib, least) = ((4 * self.config.len) >> 20, (4 * least).div_ceil(1 << 20));
            return Err(EngineError::Disk(format!("{mib} MiB hold no state; one with a block takes {least}")));
        }
        Ok(())
    }

    pub(crate) fn open_desk(self) -> Result<OpenDesk, EngineError> {
        let (send, events) = channel();
        let report = move |event| {
            // An engine that is gone does not want to know.
            let _ = send.send(event);
        };
        let thread = DiskThread::start(self.store, report).map_err(|error| EngineError::Disk(error.to_string()))?;
        let Found { records, removed } = self.found;
        tracing::info!(records = records.len(), removed, "disk cache opened");
        Ok(OpenDesk { desk: DiskDesk::new(thread, events, self.patience), config: self.config, found: records })
    }
}
