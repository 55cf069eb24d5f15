//! The one allocator: what sequences hold, what is stored for later, and who gives way when memory is short.
//!
//! Everything is decided here and nothing is done: copies, saves and zeroing are queued as [`CacheOp`]s, which the device
//! performs in order before the next step. So a unit may be lent again as soon as its copy is queued, and nothing waits
//! for the host.

use std::sync::PoisonError;

use perilune_tensor::TokenId;

use crate::arena::Arena;
use crate::disk::DiskIndex;
use crate::host::HostAccount;
use crate::sequence::{Held, Returns, SequenceCache};
use crate::tree::{Checkpoint, CheckpointId, NodeId, PrefixTree, Stored};
use crate::value::Shelf;
use crate::walk::Walk;
use crate::{
    ArenaShape, BlockId, CacheError, CacheKey, CacheOp, CacheStats, CacheUsage, HostId, Place, SlotId, UnitKind,
};

/// Sizes and rules of a cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CacheConfig {
    /// The arena.
    pub arena: ArenaShape,
    /// Tokens per block, at least 1.
    pub block_size: usize,
    /// Whether prefixes are kept for later sequences.
    pub prefixes: Prefixes,
    /// Length of units that may be kept in host memory; 0 turns the tier off.
    pub host_len: usize,
}

impl CacheConfig {
    /// Tokens that one sequence can have when it is alone.
    pub fn capacity_tokens(&self) -> usize {
        let ArenaShape { len, block_len, slot_len } = self.arena;
        len.saturating_sub(slot_len).checked_div(block_len).unwrap_or(0).saturating_mul(self.block_size)
    }
}

/// Whether prefixes are kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Prefixes {
    /// For as long as memory allows.
    #[default]
    Keep,
    /// Not at all.
    Forget,
}

/// A sequence that starts to run.
#[derive(Debug)]
pub struct Opened {
    /// What it holds.
    pub cache: SequenceCache,
    /// Tokens whose state and latents it already has.
    pub cached: usize,
}

/// What is known of some tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Match {
    /// Tokens that need not be computed.
    pub cached: usize,
    /// Tokens that agree with some stored sequence, a state or not: the place where a state would have helped.
    pub agreeing: usize,
    /// Blocks of the cached tokens that running sequences hold already.
    pub held_blocks: usize,
}

/// What is known of some tokens, to start from: it belongs to just these tokens, so that nobody starts from others' state.
#[derive(Debug, Clone, Copy)]
pub struct Lookup<'t> {
    /// What is known.
    pub found: Match,
    key: &'t CacheKey,
    tokens: &'t [TokenId],
    limit: usize,
    checkpoint: Option<CheckpointId>,
    /// Checkpoints added and removed before it.
    changes: u64,
}

/// The memory of an engine.
#[derive(Debug)]
pub struct CacheManager {
    pub(crate) block_size: usize,
    pub(crate) prefixes: Prefixes,
    pub(crate) arena: Arena,
    pub(crate) tree: PrefixTree,
    /// Checkpoints whose state is on the device, and in host memory.
    pub(crate) on_device: Shelf,
    pub(crate) on_host: Shelf,
    pub(crate) host: HostAccount,
    /// Length of a slot's contents once they have left the device.
    pub(crate) kept_slot_len: usize,
    /// What is on disk, where there is such a tier.
    pub(crate) disk: Option<DiskIndex>,
    /// Blocks on the device that only stored prefixes hold.
    pub(crate) idle_blocks: usize,
    /// Slots that checkpoints hold.
    pub(crate) stored_slots: usize,
    pub(crate) ops: Vec<CacheOp>,
    pub(crate) stats: CacheStats,
    /// Sequences started.
    pub(crate) clock: u64,
    pub(crate) returns: Returns,
}

impl CacheManager {
    /// An empty cache. A block size of 0 counts as 1.
    pub fn new(config: CacheConfig) -> Self {
        let block_size = config.block_size.max(1);
        CacheManager {
            block_size,
            prefixes: config.prefixes,
            arena: Arena::new(config.arena),
            tree: PrefixTree::new(block_size),
            on_device: Shelf::default(),
            on_host: Shelf::default(),
            host: HostAccount::new(config.host_len),
            kept_slot_len: config.arena.slot_len,
            disk: None,
            idle_blocks: 0,
            stored_slots: 0,
            ops: Vec::new(),
            stats: CacheStats::default(),
            clock: 0,
            returns: Returns::default(),
        }
    }

    /// States take another length once they have left the device: to be said before anything is stored.
    pub fn set_kept_slot_len(&mut self, len: usize) {
        self.kept_slot_len = len.max(1);
    }

    /// Tokens per block.
    pub fn block_size(&self) -> usize {
        self.block_size
    }

    /// Blocks that `tokens` tokens need.
    pub fn blocks_for(&self, tokens: usize) -> usize {
        tokens.div_ceil(self.block_size)
    }

    /// Units of a kind that can be lent now without moving or evicting anything.
    pub fn lendable(&self, kind: UnitKind) -> usize {
        self.arena.free_now(kind)
    }

    /// Where a block lies on the device; `None` where it is not lent.
    pub fn block_place(&self, id: BlockId) -> Option<Place> {
        self.arena.block_place(id)
    }

    /// Where a slot lies on the device; `None` where this lending has ended.
    pub fn slot_place(&self, id: SlotId) -> Option<Place> {
        self.arena.slot_place(id)
    }

    /// What is to be done on the device before the next step, in order.
    pub fn take_ops(&mut self) -> Vec<CacheOp> {
        self.take_returns();
        std::mem::take(&mut self.ops)
    }

    /// How much is lent and stored now.
    pub fn usage(&mut self) -> CacheUsage {
        self.take_returns();
        let shape = self.arena.shape();
        CacheUsage {
            blocks_used: self.arena.blocks_used() - self.idle_blocks,
            blocks_stored: self.idle_blocks,
            blocks_total: shape.max_blocks(),
            slots_used: self.arena.slots_used() - self.stored_slots,
            slots_stored: self.stored_slots,
            slots_total: shape.max_slots(),
            free_len: self.arena.free_len(),
            arena_len: shape.len,
            host_used: self.host.used(),
            host_len: self.host.budget(),
            disk_used: self.disk.as_ref().map_or(0, DiskIndex::used),
            disk_len: self.disk.as_ref().map_or(0, DiskIndex::limit),
            disk_states: self.disk.as_ref().map_or(0, DiskIndex::num_states),
            nodes: self.tree.num_nodes(),
            checkpoints: self.tree.num_checkpoints(),
        }
    }

    /// What has happened so far.
    pub fn stats(&self) -> CacheStats {
        CacheStats { disk_evictions: self.disk.as_ref().map_or(0, |disk| disk.evictions), ..self.stats }
    }

    /// Length that can be had by evicting everything that no running sequence uses.
    fn available_len(&self) -> usize {
        let shape = self.arena.shape();
        self.arena.free_len() + self.idle_blocks * shape.block_len + self.stored_slots * shape.slot_len
    }

    /// Blocks that can be had, evictable ones included.
    pub fn available_blocks(&mut self) -> usize {
        self.take_returns();
        self.available_len() / self.arena.shape().block_len
    }

    /// Whether a sequence that starts with what `found` says and comes to `tokens` tokens can be had beside `promised`
    /// blocks for others.
    pub fn has_room(&mut self, found: Match, (tokens, promised): (usize, usize)) -> bool {
        self.take_returns();
        let shape = self.arena.shape();
        let blocks = self.blocks_for(tokens) - found.held_blocks.min(self.blocks_for(tokens));
        shape.slot_len + (blocks + promised) * shape.block_len <= self.available_len()
    }

    /// Looks up tokens without touching anything; states of at most `limit` tokens count. Whoever wants logits after the last
    /// token must leave that one to compute. What is on disk counts as agreeing, not as cached.
    pub fn lookup<'t>(&self, key: &'t CacheKey, tokens: &'t [TokenId], limit: usize) -> Lookup<'t> {
        let mut lookup = self.lookup_memory(key, tokens, limit);
        let on_disk = self.disk.as_ref().map_or(0, |disk| disk.agreeing(key, tokens));
        lookup.found.agreeing = lookup.found.agreeing.max(on_disk);
        lookup
    }

    pub(crate) fn lookup_memory<'t>(&self, key: &'t CacheKey, tokens: &'t [TokenId], limit: usize) -> Lookup<'t> {
        let Walk { checkpoint, agreeing } = self.walk(key, (tokens, limit));
        let mut found = Match { agreeing, ..Match::default() };
        if let Some(checkpoint) = checkpoint.map(|id| self.tree.checkpoint(id)) {
            let shared = checkpoint.position / self.block_size;
            let held = |id: NodeId| {
                let node = self.tree.node(id);
                if node.locks > 0 { node.blocks.len().min(shared.saturating_sub(node.start)) } else { 0 }
            };
            found.cached = checkpoint.position;
            found.held_blocks = self.tree.path(checkpoint.node).into_iter().map(held).sum();
        }
        Lookup { found, key, tokens, limit, checkpoint, changes: self.tree.changes }
    }

    fn walk(&self, key: &CacheKey, (tokens, limit): (&[TokenId], usize)) -> Walk {
        self.tree.walk(key, (tokens, limit), |checkpoint| self.is_whole(checkpoint))
    }

    /// Whether a checkpoint's state is where it is said to be. One whose slot was lent to somebody else is no hit.
    pub(crate) fn is_whole(&self, checkpoint: &Checkpoint) -> bool {
        match checkpoint.state {
            Stored::Device(slot) => self.arena.slot_place(slot).is_some(),
            Stored::Host(_) => true,
        }
    }

    /// Lends memory to a sequence with the tokens that were looked up, starting from the deepest stored state.
    ///
    /// # Errors
    /// `OutOfSlots` where there is no room for a state.
    pub fn open(&mut self, lookup: Lookup<'_>) -> Result<Opened, CacheError> {
        let Lookup { key, tokens, limit, .. } = lookup;
        self.take_returns();
        let same = |id: &CheckpointId| self.is_whole(self.tree.checkpoint(*id));
        let checkpoint = match lookup.checkpoint {
            known if lookup.changes == self.tree.changes && known.as_ref().is_none_or(same) => known,
            // Something was stored or has gone since.
            _ => self.walk(key, (tokens, limit)).checkpoint,
        };
        self.clock += 1;
        if let Some(checkpoint) = checkpoint {
            match self.restore(checkpoint) {
                Some(opened) => {
                    self.stats.hit_tokens += opened.cached as u64;
                    self.stats.restores += 1;
                    self.count_query(tokens);
                    return Ok(opened);
                }
                None => self.stats.failed_restores += 1,
            }
        }
        let slot = self.lend_slot(None)?;
        self.count_query(tokens);
        let place = self.place_of(slot);
        self.ops.push(CacheOp::ZeroSlot(place));
        let node = self.tree.root(key);
        self.lock(node);
        Ok(self.opened(Held { slot, node, shared: 0, table: Vec::new() }, 0))
    }

    /// Counts a sequence that starts; one that has to try again counts once.
    fn count_query(&mut self, tokens: &[TokenId]) {
        if self.prefixes == Prefixes::Keep {
            self.stats.queried_tokens += tokens.len() as u64;
        }
    }

    pub(crate) fn opened(&self, held: Held, cached: usize) -> Opened {
        Opened { cache: SequenceCache { held: Some(held), returns: self.returns.clone() }, cached }
    }

    /// Length that the sequence alone holds: what would be had if it gave way.
    pub fn own_len(&self, cache: &SequenceCache) -> usize {
        let (shape, held) = (self.arena.shape(), cache.held());
        shape.slot_len + (held.table.len() - held.shared) * shape.block_len
    }

    /// The most tokens that the sequence can have without anybody running giving up blocks.
    pub fn reachable_tokens(&mut self, cache: &SequenceCache) -> usize {
        (cache.blocks().len() + self.available_blocks()).saturating_mul(self.block_size)
    }

    /// Gives the sequence the blocks that `tokens` tokens need: all of them, or, on an error, none.
    ///
    /// # Errors
    /// `OutOfBlocks`.
    pub fn grow(&mut self, cache: &mut SequenceCache, tokens: usize) -> Result<(), CacheError> {
        let needed = self.blocks_for(tokens).saturating_sub(cache.blocks().len());
        let available = self.available_blocks();
        if needed > available {
            return Err(CacheError::OutOfBlocks { needed, free: available });
        }
        let before = cache.blocks().len();
        for _ in 0..needed {
            match self.lend_block(None) {
                Some(block) => cache.held_mut().table.push(block),
                None => {
                    let lent = cache.held_mut().table.split_off(before);
                    lent.into_iter().for_each(|block| self.arena.free_block(block));
                    return Err(CacheError::OutOfBlocks { needed, free: self.arena.free_now(UnitKind::Block) });
                }
            }
        }
        Ok(())
    }

    pub(crate) fn lock(&mut self, node: NodeId) {
        for node in self.tree.lock(node) {
            self.idle_blocks -= self.device_blocks(node);
        }
    }

    pub(crate) fn unlock(&mut self, node: NodeId) {
        let freed = self.tree.unlock(node);
        for node in &freed {
            self.idle_blocks += self.device_blocks(*node);
        }
        if let Some(deepest) = freed.first() {
            self.prune(*deepest);
        }
    }

    pub(crate) fn device_blocks(&self, node: NodeId) -> usize {
        self.tree.node(node).blocks.iter().filter(|block| matches!(block, Stored::Device(_))).count()
    }

    /// Takes back what dropped sequences held.
    pub(crate) fn take_returns(&mut self) {
        let returned = std::mem::take(&mut *self.returns.lock().unwrap_or_else(PoisonError::into_inner));
        returned.into_iter().for_each(|held| self.release(held));
    }

    pub(crate) fn release(&mut self, held: Held) {
        self.arena.free_slot(held.slot);
        for block in &held.table[held.shared..] {
            self.arena.free_block(*block);
        }
        self.unlock(held.node);
    }

    pub(crate) fn place_of(&self, slot: SlotId) -> Place {
        self.arena.slot_place(slot).unwrap_or(Place::MAX)
    }

    pub(crate) fn block_place_of(&self, block: BlockId) -> Place {
        self.arena.block_place(block).unwrap_or(Place::MAX)
    }

    pub(crate) fn forget(&mut self, kind: UnitKind, id: HostId) {
        let shape = self.arena.shape();
        self.host.release(if kind == UnitKind::Block { shape.block_len } else { self.kept_slot_len });
        self.ops.push(CacheOp::Forget(id));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A stored prefix whose state was lent to somebody else, as if it had leaked.
    #[test]
    fn a_prefix_without_its_state_is_no_hit() {
        let arena = ArenaShape { len: 100, block_len: 1, slot_len: 10 };
        let config = CacheConfig { arena, block_size: 4, prefixes: Prefixes::Keep, host_len: 0 };
        let mut cache = CacheManager::new(config);
        let (key, tokens): (_, Vec<TokenId>) = (CacheKey::default(), (0..20).map(TokenId).collect());
        for taken in [true, false] {
            let mut opened = cache.open(cache.lookup(&key, &tokens, 19)).expect("room");
            assert_eq!(opened.cached, 0);
            cache.grow(&mut opened.cache, 12).expect("room");
            let slot = opened.cache.slot();
            cache.donate(opened.cache, &key, &tokens[..12]);
            assert_eq!(cache.lookup(&key, &tokens, 19).found.cached, 12);
            cache.arena.free_slot(slot);
            let other = taken.then(|| cache.arena.lend_slot().expect("room"));
            assert_ne!(other, Some(slot));
            assert_eq!(cache.lookup(&key, &tokens, 19).found.cached, 0, "half a hit");
            other.into_iter().for_each(|slot| cache.arena.free_slot(slot));
        }
    }
}
