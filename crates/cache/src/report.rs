//! What is stored, for people: sizes and places, never tokens.

use crate::tree::{NodeId, Stored};
use crate::{CacheManager, CacheStats, CacheUsage};

/// Everything that is stored, as of now.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct CacheReport {
    /// How much is lent and stored.
    pub usage: CacheUsage,
    /// What has happened so far.
    pub stats: CacheStats,
    /// Stored prefixes, each followed by those that continue it.
    pub prefixes: Vec<PrefixReport>,
}

/// A stretch of tokens that has no branch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PrefixReport {
    /// How many stretches come before it.
    pub level: usize,
    /// Tokens before it, and up to its end.
    pub tokens: std::ops::Range<usize>,
    /// Its blocks on the device.
    pub device_blocks: usize,
    /// Its blocks in host memory.
    pub host_blocks: usize,
    /// Running sequences that use it.
    pub sequences: u32,
    /// States saved within it, in rising order.
    pub states: Vec<StateReport>,
}

/// A saved state.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StateReport {
    /// Tokens that it includes.
    pub position: usize,
    /// Sequences that started from it.
    pub starts: u32,
    /// Where it is.
    pub tier: Tier,
}

/// A kind of memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Tier {
    /// The device's.
    Device,
    /// The host's.
    Host,
}

impl CacheManager {
    /// Everything that is stored.
    pub fn report(&mut self) -> CacheReport {
        let (usage, stats) = (self.usage(), self.stats());
        let mut prefixes = Vec::new();
        let mut open: Vec<(NodeId, usize)> = self.tree.roots().map(|(_, root)| (root, 0)).collect();
        while let Some((id, level)) = open.pop() {
            let node = self.tree.node(id);
            let host_blocks = node.blocks.iter().filter(|block| matches!(block, Stored::Host(_))).count();
            let states = node.checkpoints.iter().map(|id| {
                let checkpoint = self.tree.checkpoint(*id);
                let tier = if matches!(checkpoint.state, Stored::Device(_)) { Tier::Device } else { Tier::Host };
                StateReport { position: checkpoint.position, starts: checkpoint.starts, tier }
            });
            prefixes.push(PrefixReport {
                level,
                tokens: node.start * self.block_size()..(node.start + node.blocks.len()) * self.block_size(),
                device_blocks: node.blocks.len() - host_blocks,
                host_blocks,
                sequences: node.locks,
                states: states.collect(),
            });
            open.extend(node.children.iter().map(|child| (child, level + 1)));
        }
        CacheReport { usage, stats, prefixes }
    }
}
