//! The pools against a model that keeps plain sets: random operations, and after each the same answers and numbers.
#![allow(clippy::expect_used, reason = "test code")]

use std::collections::{BTreeMap, BTreeSet};

use perilune_cache::{BlockId, CacheManager, CacheSizes, SequenceCache, SlotId};
use proptest::prelude::*;
use proptest::test_runner::RngSeed;

#[derive(Debug, Clone)]
enum Op {
    Open,
    Grow { which: usize, tokens: usize },
    Close { which: usize },
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        2 => Just(Op::Open),
        5 => (any::<usize>(), 0usize..120).prop_map(|(which, tokens)| Op::Grow { which, tokens }),
        1 => any::<usize>().prop_map(|which| Op::Close { which }),
    ]
}

/// What the model knows of one sequence.
struct Held {
    cache: SequenceCache,
    blocks: usize,
}

/// The numbers of blocks and slots lent, worked out from what each sequence asked for.
struct Naive {
    sizes: CacheSizes,
    held: BTreeMap<u64, Held>,
    next: u64,
    seen: BTreeSet<SlotId>,
}

impl Naive {
    fn used(&self) -> usize {
        self.held.values().map(|h| h.blocks).sum()
    }

    fn pick(&self, which: usize) -> Option<u64> {
        let keys: Vec<_> = self.held.keys().copied().collect();
        (!keys.is_empty()).then(|| keys[which % keys.len()])
    }

    fn apply(&mut self, manager: &CacheManager, op: &Op) {
        match *op {
            Op::Open => {
                let expected = self.held.len() < self.sizes.num_slots as usize;
                let opened = manager.open();
                assert_eq!(opened.is_ok(), expected);
                if let Ok(cache) = opened {
                    assert!(self.seen.insert(cache.slot()), "a slot was lent twice in one generation");
                    self.held.insert(self.next, Held { cache, blocks: 0 });
                    self.next += 1;
                }
            }
            Op::Grow { which, tokens } => {
                let Some(key) = self.pick(which) else { return };
                let used = self.used();
                let held = self.held.get_mut(&key).expect("picked from the keys");
                let wanted = tokens.div_ceil(self.sizes.block_size).max(held.blocks);
                let fits = used - held.blocks + wanted <= self.sizes.num_blocks as usize;
                assert_eq!(manager.can_grow(&held.cache, tokens), fits);
                assert_eq!(manager.grow(&mut held.cache, tokens).is_ok(), fits);
                held.blocks = if fits { wanted } else { held.blocks };
            }
            Op::Close { which } => {
                let Some(key) = self.pick(which) else { return };
                self.held.remove(&key);
            }
        }
    }

    fn check(&self, manager: &CacheManager) {
        let mut all = BTreeSet::<BlockId>::new();
        let mut slots = BTreeSet::new();
        for held in self.held.values() {
            assert_eq!(held.cache.blocks().len(), held.blocks);
            assert!(held.cache.blocks().iter().all(|&b| b.0 < self.sizes.num_blocks && all.insert(b)), "overlap");
            assert!(held.cache.slot().index < self.sizes.num_slots && slots.insert(held.cache.slot().index), "overlap");
        }
        let usage = manager.usage();
        assert_eq!((usage.blocks_used, usage.slots_used), (self.used(), self.held.len()));
        assert_eq!(manager.free_blocks(), self.sizes.num_blocks as usize - self.used());
    }
}

fn run(sizes: CacheSizes, ops: &[Op]) {
    let manager = CacheManager::new(sizes);
    let mut naive = Naive { sizes, held: BTreeMap::new(), next: 0, seen: BTreeSet::new() };
    for op in ops {
        naive.apply(&manager, op);
        naive.check(&manager);
    }
    naive.held.clear();
    let usage = manager.usage();
    assert_eq!((usage.blocks_used, usage.slots_used), (0, 0), "something was not returned");
}

proptest! {
    // 250 runs of 400 to 600 operations: at least 100,000.
    #![proptest_config(ProptestConfig {
        cases: 250,
        failure_persistence: None,
        rng_seed: RngSeed::Fixed(1),
        ..ProptestConfig::default()
    })]

    #[test]
    fn pools_agree_with_the_naive_model(
        block_size in 1usize..9,
        num_blocks in 0u32..40,
        num_slots in 0u32..6,
        ops in prop::collection::vec(op(), 400..600),
    ) {
        run(CacheSizes { block_size, num_blocks, num_slots }, &ops);
    }
}
