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
    let slot = CacheShape::slot_bytes(model);
    let block = CacheShape::block_bytes(model, block_size);
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
