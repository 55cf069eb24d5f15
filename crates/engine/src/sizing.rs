//! How large the pools of an engine can be in a given amount of memory.

use perilune_config::ModelConfig;
use perilune_model::CacheShape;

use crate::EngineError;

/// What is known before the pools are sized.
#[derive(Debug, Clone, Copy)]
pub struct PoolRequest<'a> {
    /// The model.
    pub model: &'a ModelConfig,
    /// Bytes for caches.
    pub budget_bytes: usize,
    /// Tokens per block, at least 1.
    pub block_size: usize,
    /// Most tokens of one request.
    pub context_length: usize,
    /// Most requests that run at once, at least 1.
    pub max_running_requests: usize,
}

/// Sizes that fit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PoolSizes {
    /// Latent blocks.
    pub num_blocks: usize,
    /// State slots.
    pub num_slots: usize,
    /// Bytes that both take.
    pub bytes: usize,
}

/// As many slots as requests may run (fewer where memory is short), and blocks for all of them at full length if there is
/// room, else for as many tokens as there is room for. One request at full length always fits.
///
/// # Errors
/// `NoRoom`, with the numbers, where it does not.
pub fn size_pools(request: PoolRequest<'_>) -> Result<PoolSizes, EngineError> {
    let PoolRequest { model, budget_bytes, block_size, context_length, max_running_requests } = request;
    let shape = CacheShape::new(model, block_size, 0);
    let (slot, block) = (shape.slot_bytes(), shape.block_bytes());
    let blocks_each = context_length.div_ceil(block_size.max(1)).max(1);
    let needed_bytes = slot.saturating_add(block.saturating_mul(blocks_each));
    if needed_bytes > budget_bytes {
        return Err(EngineError::NoRoom { budget_bytes, context: context_length, needed_bytes });
    }
    // One full-length request has its blocks; slots may take up to half of what is left.
    let left = budget_bytes - needed_bytes;
    let more_slots = (left / 2).checked_div(slot).unwrap_or(usize::MAX).min(max_running_requests.saturating_sub(1));
    let num_slots = 1 + more_slots;
    let left = budget_bytes - slot * num_slots;
    let all = blocks_each.saturating_mul(num_slots);
    let num_blocks = left.checked_div(block).unwrap_or(usize::MAX).min(all);
    Ok(PoolSizes { num_blocks, num_slots, bytes: slot * num_slots + block * num_blocks })
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    const CONTEXT: usize = 1000;
    const BLOCK: usize = 16;

    struct Demo {
        model: ModelConfig,
        slot: usize,
        block: usize,
    }

    impl Demo {
        fn new() -> Self {
            let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models/demo");
            let model = ModelConfig::from_dir(&dir).unwrap();
            let shape = CacheShape::new(&model, BLOCK, 0);
            let (slot, block) = (shape.slot_bytes(), shape.block_bytes());
            assert!(slot > 0 && block > 0, "the demo has both kinds of layers");
            Demo { model, slot, block }
        }

        /// Bytes of one request at full length.
        fn one(&self) -> usize {
            self.slot + self.block * CONTEXT.div_ceil(BLOCK)
        }

        fn size(&self, budget_bytes: usize) -> Result<PoolSizes, EngineError> {
            let model = &self.model;
            let (block_size, context_length, max_running_requests) = (BLOCK, CONTEXT, 8);
            size_pools(PoolRequest { model, budget_bytes, block_size, context_length, max_running_requests })
        }
    }

    #[test]
    fn one_byte_too_few_is_an_error_with_the_numbers() {
        let demo = Demo::new();
        let sizes = demo.size(demo.one()).unwrap();
        assert_eq!((sizes.num_slots, sizes.num_blocks, sizes.bytes), (1, CONTEXT.div_ceil(BLOCK), demo.one()));
        let error = demo.size(demo.one() - 1).unwrap_err();
        let EngineError::NoRoom { budget_bytes, context, needed_bytes } = error else { panic!("{error}") };
        assert_eq!((budget_bytes, context, needed_bytes), (demo.one() - 1, CONTEXT, demo.one()));
        assert!(error.to_string().contains("not even one request fits"));
    }

    #[test]
    fn any_budget_is_kept_and_holds_one_full_request() {
        let demo = Demo::new();
        let mut before = PoolSizes { num_blocks: 0, num_slots: 0, bytes: 0 };
        for budget in (demo.one()..12 * demo.one()).step_by(demo.one() / 7) {
            let sizes = demo.size(budget).unwrap();
            assert_eq!(sizes.bytes, demo.slot * sizes.num_slots + demo.block * sizes.num_blocks);
            assert!(sizes.bytes <= budget, "{sizes:?} in {budget}");
            assert!(sizes.num_blocks * BLOCK >= CONTEXT && (1..=8).contains(&sizes.num_slots), "{sizes:?}");
            assert!(sizes.num_slots >= before.num_slots, "more memory, fewer slots: {sizes:?} after {before:?}");
            before = sizes;
        }
        let plenty = demo.size(usize::MAX / 2).unwrap();
        assert_eq!((plenty.num_slots, plenty.num_blocks), (8, 8 * CONTEXT.div_ceil(BLOCK)), "no more than is of use");
    }
}
