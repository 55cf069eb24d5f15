//! `GET /cache`: what is stored for later requests. Tokens are not shown.

use schemars::JsonSchema;
use serde::Serialize;

/// Sizes, events, and the tree of stored prefixes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct CachePage {
    /// Sizes now.
    pub usage: CacheSizes,
    /// Counts since the start.
    pub events: CacheEvents,
    /// Nodes of the tree, parents before children.
    pub prefixes: Vec<CachedPrefix>,
}

/// Sizes, in bytes where they say so.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct CacheSizes {
    /// Memory for latents and states.
    pub arena_bytes: usize,
    /// What nobody holds of it.
    pub free_bytes: usize,
    /// Latent blocks that running sequences hold.
    pub blocks_used: usize,
    /// Latent blocks that only stored prefixes hold.
    pub blocks_stored: usize,
    /// State slots that running sequences hold.
    pub slots_used: usize,
    /// State slots that stored prefixes hold.
    pub slots_stored: usize,
    /// Host memory for stored prefixes.
    pub host_bytes: usize,
    /// What is taken of it.
    pub host_used_bytes: usize,
    /// Room on disk for stored prefixes.
    pub disk_bytes: usize,
    /// What is taken of it.
    pub disk_used_bytes: usize,
    /// States on disk.
    pub disk_states: usize,
    /// Nodes of the tree.
    pub nodes: usize,
    /// States saved.
    pub states: usize,
}

/// Counts since the start.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct CacheEvents {
    /// Tokens looked up.
    pub queried_tokens: u64,
    /// Those found.
    pub hit_tokens: u64,
    /// Sequences that started from a saved state.
    pub restores: u64,
    /// Saved states whose blocks did not fit.
    pub failed_restores: u64,
    /// States saved.
    pub states_stored: u64,
    /// Saved states that gave way on the device.
    pub evictions: u64,
    /// Those that went to host memory.
    pub demotions: u64,
    /// Saved states that gave way in host memory.
    pub host_evictions: u64,
    /// Blocks that came back to the device.
    pub promoted_blocks: u64,
    /// Units moved to make room for the other kind.
    pub moves: u64,
    /// Saved states sent to disk.
    pub disk_writes: u64,
    /// Those that did not get there.
    pub disk_skips: u64,
    /// Saved states that came back from disk.
    pub disk_restores: u64,
    /// Saved states that gave way on disk.
    pub disk_evictions: u64,
    /// Records that were gone or not whole.
    pub disk_losses: u64,
}

/// A node of the tree.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct CachedPrefix {
    /// Distance from the root.
    pub level: usize,
    /// Its first token.
    pub from: usize,
    /// The token after its last.
    pub to: usize,
    /// Its blocks on the device.
    pub device_blocks: usize,
    /// Its blocks in host memory.
    pub host_blocks: usize,
    /// Sequences that hold it.
    pub sequences: u32,
    /// States saved in it.
    pub states: Vec<CachedState>,
}

/// A saved state.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct CachedState {
    /// Tokens before it.
    pub position: usize,
    /// Sequences that started from it.
    pub starts: u32,
    /// `device` or `host`.
    pub tier: &'static str,
}
