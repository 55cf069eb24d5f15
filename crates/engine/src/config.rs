//! Sizes and limits of an engine.

use perilune_tensor::TokenId;

use crate::EngineError;

/// How large an engine's batches, queues and pools are.
///
/// A step computes at most `max_running_requests` decode rows and `chunked_prefill_size` prefill rows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EngineConfig {
    /// Most sequences in one step.
    pub max_running_requests: usize,
    /// Most requests that wait for their first step. One more is refused.
    pub max_queued_requests: usize,
    /// Most prompt tokens in one step.
    pub chunked_prefill_size: usize,
    /// Most prompt positions in one step whose logits are scored for prompt log-probabilities.
    pub max_prompt_logit_rows: usize,
    /// Most tokens of prompt and output together. Where the block pool holds fewer, that counts.
    pub context_length: usize,
    /// Tokens per block of the latent cache.
    pub block_size: usize,
    /// Blocks of the latent cache.
    pub num_blocks: usize,
    /// KDA state slots.
    pub num_slots: usize,
    /// Tokens that end an output unless the caller says `ignore_eos`.
    pub eos_ids: Vec<TokenId>,
}

impl EngineConfig {
    /// Most tokens of prompt and output together that a request may have.
    pub fn effective_context(&self) -> usize {
        self.context_length.min(self.num_blocks.saturating_mul(self.block_size))
    }

    /// Checks that every size is at least 1.
    ///
    /// # Errors
    /// `Config`.
    pub fn validate(&self) -> Result<(), EngineError> {
        let sizes = [
            ("max_running_requests", self.max_running_requests),
            ("max_queued_requests", self.max_queued_requests),
            ("chunked_prefill_size", self.chunked_prefill_size),
            ("max_prompt_logit_rows", self.max_prompt_logit_rows),
            ("context_length", self.context_length),
            ("block_size", self.block_size),
            ("num_blocks", self.num_blocks),
            ("num_slots", self.num_slots),
        ];
        match sizes.into_iter().find(|&(_, value)| value == 0) {
            Some((field, value)) => Err(EngineError::Config { field, value, rule: "must be at least 1".into() }),
            None => Ok(()),
        }
    }
}
