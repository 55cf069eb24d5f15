//! How large the arena of an engine can be in a given amount of memory.

use perilune_cache::ArenaShape;
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
    /// Bytes beyond which the arena does not grow unless one request needs them.
    pub wanted_bytes: usize,
    /// Tokens per block, at least 1.
    pub block_size: usize,
    /// `F32` elements that a draft keeps per token; 0 without one.
    pub draft_len: usize,
    /// Most tokens of one request.
    pub context_length: usize,
    /// Most requests that run at once, at least 1.
    pub max_running_requests: usize,
}

/// An arena that fits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PoolSizes {
    /// Its shape, in `F32` elements.
    pub arena: ArenaShape,
    /// Requests at full length that it holds at once, at least 1.
    pub full_requests: usize,
    /// Bytes that it takes.
    pub bytes: usize,
}

/// Room for all running requests at full length, and as much again for stored prefixes, as far as is wanted and the budget
/// reaches. One request at full length always fits.
///
/// # Errors
/// `NoRoom`, with the numbers, where it does not.
pub fn size_pools(request: PoolRequest<'_>) -> Result<PoolSizes, EngineError> {
    let PoolRequest { model, budget_bytes, wanted_bytes, block_size, context_length, max_running_requests, .. } =
        request;
    let shape = CacheShape::with_draft(model, (block_size, request.draft_len), 0);
    let blocks_each = context_length.div_ceil(block_size.max(1)).max(1);
    let one = shape.slot_bytes().saturating_add(shape.block_bytes().saturating_mul(blocks_each));
    if one > budget_bytes {
        return Err(EngineError::NoRoom { budget_bytes, context: context_length, needed_bytes: one });
    }
    let useful = one.saturating_mul(max_running_requests).saturating_mul(2).min(wanted_bytes).max(one);
    let bytes = useful.min(budget_bytes) / 4 * 4;
    let (block_len, slot_len) = (shape.block_len, shape.slot_len);
    let arena = ArenaShape { len: bytes / 4, block_len, slot_len };
    Ok(PoolSizes { arena, full_requests: (bytes / one).max(1), bytes })
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    const CONTEXT: usize = 1000;
    const BLOCK: usize = 16;

    struct Demo {
        model: ModelConfig,
        /// Bytes of one request at full length.
        one: usize,
    }

    impl Demo {
        fn new() -> Self {
            let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models/demo");
            let model = ModelConfig::from_dir(&dir).unwrap();
            let shape = CacheShape::with_room(&model, BLOCK, (CONTEXT.div_ceil(BLOCK), 1));
            assert!(shape.slot_len > 16 && shape.block_len > 16, "the demo has both kinds of layers");
            Demo { model, one: 4 * shape.arena_len }
        }

        fn size(&self, budget_bytes: usize) -> Result<PoolSizes, EngineError> {
            self.size_wanted(budget_bytes, usize::MAX)
        }

        fn size_wanted(&self, budget_bytes: usize, wanted_bytes: usize) -> Result<PoolSizes, EngineError> {
            let model = &self.model;
            let (block_size, context_length, max_running_requests) = (BLOCK, CONTEXT, 8);
            size_pools(PoolRequest {
                model,
                budget_bytes,
                wanted_bytes,
                block_size,
                draft_len: 0,
                context_length,
                max_running_requests,
            })
        }
    }

    #[test]
    fn no_more_than_is_wanted_but_enough_for_one() {
        let demo = Demo::new();
        assert_eq!(demo.size_wanted(9 * demo.one, 3 * demo.one).unwrap().bytes, 3 * demo.one);
        assert_eq!(demo.size_wanted(9 * demo.one, 0).unwrap().bytes, demo.one);
        assert!(demo.size_wanted(demo.one - 1, 0).is_err());
    }

    #[test]
    fn one_byte_too_few_is_an_error_with_the_numbers() {
        let demo = Demo::new();
        let sizes = demo.size(demo.one).unwrap();
        assert_eq!((sizes.full_requests, sizes.bytes, sizes.arena.len), (1, demo.one, demo.one / 4));
        let error = demo.size(demo.one - 1).unwrap_err();
        let EngineError::NoRoom { budget_bytes, context, needed_bytes } = error else { panic!("{error}") };
        assert_eq!((budget_bytes, context, needed_bytes), (demo.one - 1, CONTEXT, demo.one));
        assert!(error.to_string().contains("not even one request fits"));
    }

    #[test]
    fn any_budget_is_kept_and_more_than_is_of_use_is_left_alone() {
        let demo = Demo::new();
        for budget in (demo.one..12 * demo.one).step_by(demo.one / 7) {
            let sizes = demo.size(budget).unwrap();
            assert!(sizes.bytes <= budget && sizes.bytes > budget - 4, "{sizes:?} in {budget}");
            assert_eq!(sizes.full_requests, budget / demo.one);
        }
        assert_eq!(demo.size(usize::MAX / 2).unwrap().bytes, 16 * demo.one);
    }
}
