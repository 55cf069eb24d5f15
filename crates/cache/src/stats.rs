//! Numbers for people and metrics.

/// How much is lent and stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct CacheUsage {
    /// Blocks that running sequences hold, shared ones once.
    pub blocks_used: usize,
    /// Blocks that only stored prefixes hold.
    pub blocks_stored: usize,
    /// Blocks that would fit without slots.
    pub blocks_total: usize,
    /// State slots that running sequences hold.
    pub slots_used: usize,
    /// State slots that stored prefixes hold.
    pub slots_stored: usize,
    /// State slots that would fit without blocks.
    pub slots_total: usize,
    /// Length of the arena that nobody holds.
    pub free_len: usize,
    /// Length of the arena.
    pub arena_len: usize,
    /// Length kept in host memory.
    pub host_used: usize,
    /// Budget of it.
    pub host_len: usize,
    /// Length kept on disk, or on its way there.
    pub disk_used: usize,
    /// Budget of it; 0 without a disk tier.
    pub disk_len: usize,
    /// States on disk, or on their way there.
    pub disk_states: usize,
    /// Nodes of the tree of stored prefixes.
    pub nodes: usize,
    /// Saved states.
    pub checkpoints: usize,
}

/// What has happened. Counters only grow.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct CacheStats {
    /// Tokens of sequences that were looked up when they started, resumed ones included.
    pub queried_tokens: u64,
    /// Those of them that did not have to be computed.
    pub hit_tokens: u64,
    /// Sequences that started from a saved state.
    pub restores: u64,
    /// Saved states that were found, but whose blocks did not fit: their sequences were computed from the start.
    pub failed_restores: u64,
    /// States saved.
    pub checkpoints_stored: u64,
    /// Saved states that gave way to others on the device.
    pub evictions: u64,
    /// Those of them that went to host memory.
    pub demotions: u64,
    /// Saved states that gave way in host memory.
    pub host_evictions: u64,
    /// Blocks that came back from host memory.
    pub promoted_blocks: u64,
    /// States that were sent to disk, with the blocks before them that were not there.
    pub disk_writes: u64,
    /// States that should have gone to disk and did not: no room, too much on its way, or a write that failed.
    pub disk_skips: u64,
    /// States that came back from disk.
    pub disk_restores: u64,
    /// States on disk that gave way to others.
    pub disk_evictions: u64,
    /// Records on disk that were gone or not what they should be when they were read.
    pub disk_losses: u64,
    /// Units moved to make room for units of the other kind.
    pub moves: u64,
}
