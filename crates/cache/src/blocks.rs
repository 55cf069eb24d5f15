//! Blocks of the latent cache, each with room for a fixed number of tokens.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// One block of the latent cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BlockId(pub u32);

/// All blocks. Cloning gives another handle on the same pool.
#[derive(Debug, Clone)]
pub struct BlockPool {
    free: Arc<Mutex<Vec<BlockId>>>,
    total: usize,
}

impl BlockPool {
    /// A pool of `total` free blocks, lent lowest id first.
    pub fn new(total: u32) -> Self {
        BlockPool { free: Arc::new(Mutex::new((0..total).rev().map(BlockId).collect())), total: total as usize }
    }

    /// Size of the pool.
    pub fn total(&self) -> usize {
        self.total
    }

    /// Blocks not lent.
    pub fn free(&self) -> usize {
        self.list().len()
    }

    /// Lends a block; `None` where none is free.
    pub fn lease(&self) -> Option<BlockLease> {
        let id = self.list().pop()?;
        Some(BlockLease { id, pool: self.clone() })
    }

    fn list(&self) -> MutexGuard<'_, Vec<BlockId>> {
        self.free.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// One block, lent until dropped.
#[derive(Debug)]
pub struct BlockLease {
    id: BlockId,
    pool: BlockPool,
}

impl BlockLease {
    /// The block.
    pub fn id(&self) -> BlockId {
        self.id
    }
}

impl Drop for BlockLease {
    fn drop(&mut self) {
        self.pool.list().push(self.id);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lends_each_block_once_and_takes_it_back() {
        let pool = BlockPool::new(3);
        let leases: Vec<_> = (0..3).map(|_| pool.lease().expect("a free block")).collect();
        assert_eq!(leases.iter().map(BlockLease::id).collect::<Vec<_>>(), [BlockId(0), BlockId(1), BlockId(2)]);
        assert!(pool.lease().is_none());
        drop(leases);
        assert_eq!((pool.free(), pool.total()), (3, 3));
    }

    #[test]
    fn an_empty_pool_lends_nothing() {
        assert!(BlockPool::new(0).lease().is_none());
    }
}
