//! Both pools together, and what one sequence holds of them.

use crate::{BlockId, BlockLease, BlockPool, CacheError, SlotId, SlotLease, StateSlots};

/// Sizes of the pools.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CacheSizes {
    /// Tokens per block, at least 1.
    pub block_size: usize,
    /// Number of blocks.
    pub num_blocks: u32,
    /// Number of state slots.
    pub num_slots: u32,
}

/// How much is lent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct CacheUsage {
    /// Blocks lent.
    pub blocks_used: usize,
    /// All blocks.
    pub blocks_total: usize,
    /// State slots lent.
    pub slots_used: usize,
    /// All state slots.
    pub slots_total: usize,
}

/// What one running sequence holds: a state slot, and blocks for its tokens in order. Dropping it returns everything.
#[derive(Debug)]
pub struct SequenceCache {
    slot: SlotLease,
    leases: Vec<BlockLease>,
    ids: Vec<BlockId>,
}

impl SequenceCache {
    /// The state slot.
    pub fn slot(&self) -> SlotId {
        self.slot.id()
    }

    /// The block table: block `b` holds tokens `b * block_size ..`.
    pub fn blocks(&self) -> &[BlockId] {
        &self.ids
    }
}

/// The memory of an engine, in blocks and slots.
#[derive(Debug)]
pub struct CacheManager {
    block_size: usize,
    blocks: BlockPool,
    slots: StateSlots,
}

impl CacheManager {
    /// Free pools of the given sizes. A block size of 0 counts as 1.
    pub fn new(sizes: CacheSizes) -> Self {
        CacheManager {
            block_size: sizes.block_size.max(1),
            blocks: BlockPool::new(sizes.num_blocks),
            slots: StateSlots::new(sizes.num_slots),
        }
    }

    /// Tokens per block.
    pub fn block_size(&self) -> usize {
        self.block_size
    }

    /// Tokens that all blocks together hold.
    pub fn capacity_tokens(&self) -> usize {
        self.blocks.total().saturating_mul(self.block_size)
    }

    /// Blocks that `tokens` tokens need.
    pub fn blocks_for(&self, tokens: usize) -> usize {
        tokens.div_ceil(self.block_size)
    }

    /// Blocks not lent.
    pub fn free_blocks(&self) -> usize {
        self.blocks.free()
    }

    /// State slots not lent.
    pub fn free_slots(&self) -> usize {
        self.slots.free()
    }

    /// How much is lent now.
    pub fn usage(&self) -> CacheUsage {
        CacheUsage {
            blocks_used: self.blocks.total() - self.blocks.free(),
            blocks_total: self.blocks.total(),
            slots_used: self.slots.total() - self.slots.free(),
            slots_total: self.slots.total(),
        }
    }

    /// Whether a sequence of `tokens` tokens fits when nothing else runs.
    ///
    /// # Errors
    /// `NeverFits`, with both numbers.
    pub fn check_fits(&self, tokens: usize) -> Result<(), CacheError> {
        let capacity = if self.slots.total() == 0 { 0 } else { self.capacity_tokens() };
        if tokens > capacity { Err(CacheError::NeverFits { tokens, capacity }) } else { Ok(()) }
    }

    /// Lends a state slot to a new sequence, which has no blocks yet. The slot's state must be zeroed before use.
    ///
    /// # Errors
    /// `OutOfSlots`.
    pub fn open(&self) -> Result<SequenceCache, CacheError> {
        let slot = self.slots.lease().ok_or(CacheError::OutOfSlots { total: self.slots.total() })?;
        Ok(SequenceCache { slot, leases: Vec::new(), ids: Vec::new() })
    }

    /// The most tokens that the sequence can have without anybody giving up blocks.
    pub fn reachable_tokens(&self, cache: &SequenceCache) -> usize {
        (cache.ids.len() + self.free_blocks()).saturating_mul(self.block_size)
    }

    /// Whether the sequence can have `tokens` tokens without anybody giving up blocks.
    pub fn can_grow(&self, cache: &SequenceCache, tokens: usize) -> bool {
        tokens <= self.reachable_tokens(cache)
    }

    /// Gives the sequence the blocks that `tokens` tokens need: all of them, or, on an error, none.
    ///
    /// # Errors
    /// `OutOfBlocks`.
    pub fn grow(&self, cache: &mut SequenceCache, tokens: usize) -> Result<(), CacheError> {
        let needed = self.blocks_for(tokens).saturating_sub(cache.ids.len());
        let out = CacheError::OutOfBlocks { needed, free: self.free_blocks() };
        if needed > self.free_blocks() {
            return Err(out);
        }
        for _ in 0..needed {
            let lease = self.blocks.lease().ok_or(out)?;
            cache.ids.push(lease.id());
            cache.leases.push(lease);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn manager(block_size: usize, num_blocks: u32, num_slots: u32) -> CacheManager {
        CacheManager::new(CacheSizes { block_size, num_blocks, num_slots })
    }

    #[test]
    fn grows_by_whole_blocks_and_only_as_far_as_there_are_any() {
        let cache = manager(4, 3, 2);
        let mut a = cache.open().expect("a slot");
        cache.grow(&mut a, 4).expect("one block");
        assert_eq!(a.blocks().len(), 1);
        cache.grow(&mut a, 5).expect("a second block");
        assert_eq!(a.blocks().len(), 2);
        let mut b = cache.open().expect("a slot");
        assert_eq!(cache.grow(&mut b, 5), Err(CacheError::OutOfBlocks { needed: 2, free: 1 }));
        assert_eq!(b.blocks(), []);
        assert!(cache.can_grow(&b, 4) && !cache.can_grow(&b, 5));
        assert!(cache.can_grow(&a, 12) && !cache.can_grow(&a, 13));
        drop(a);
        cache.grow(&mut b, 12).expect("all blocks");
    }

    #[test]
    fn growing_to_less_changes_nothing() {
        let cache = manager(4, 3, 1);
        let mut a = cache.open().expect("a slot");
        cache.grow(&mut a, 9).expect("three blocks");
        cache.grow(&mut a, 1).expect("nothing to do");
        assert_eq!(a.blocks().len(), 3);
    }

    #[test]
    fn what_never_fits_is_named_with_numbers() {
        let cache = manager(4, 3, 1);
        assert_eq!(cache.check_fits(12), Ok(()));
        let error = cache.check_fits(13).expect_err("too long");
        assert_eq!(error.to_string(), "13 tokens exceed the 12 that all blocks together hold");
        assert_eq!(manager(4, 3, 0).check_fits(1), Err(CacheError::NeverFits { tokens: 1, capacity: 0 }));
    }

    #[test]
    fn slots_bound_the_number_of_sequences() {
        let cache = manager(4, 3, 1);
        let a = cache.open().expect("a slot");
        assert_eq!(cache.open().expect_err("taken"), CacheError::OutOfSlots { total: 1 });
        drop(a);
        assert!(cache.open().is_ok());
    }
}
