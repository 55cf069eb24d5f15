//! Sizes and limits of an engine.

use perilune_cache::CacheConfig;
use perilune_scheduler::CheckpointRules;
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
    /// Most tokens of prompt and output together. Where the arena holds fewer, that counts.
    pub context_length: usize,
    /// Memory for latents and states.
    pub cache: CacheConfig,
    /// Most tokens that are drafted for a sequence in a step, at most 7; 0 without speculation.
    pub max_drafts: usize,
    /// When states are saved for later requests.
    pub checkpoints: CheckpointRules,
    /// Tokens that end an output unless the caller says `ignore_eos`.
    pub eos_ids: Vec<TokenId>,
    /// Where the seeds of requests without one come from; the system's randomness where absent.
    pub random_seed: Option<u64>,
}

impl EngineConfig {
    /// Most tokens of prompt and output together that a request may have.
    pub fn effective_context(&self) -> usize {
        self.context_length.min(self.cache.capacity_tokens())
    }

    /// Most token rows of a step.
    pub fn max_step_rows(&self) -> usize {
        self.chunked_prefill_size + self.max_running_requests * (1 + self.max_drafts)
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
            ("cache.block_size", self.cache.block_size),
            ("cache.arena.block_len", self.cache.arena.block_len),
            ("cache.arena.slot_len", self.cache.arena.slot_len),
            ("cache.capacity_tokens", self.cache.capacity_tokens()),
        ];
        if self.max_drafts >= perilune_model::MAX_DECODE_ROWS {
            let rule = format!("must be below {}, the most rows of a verification", perilune_model::MAX_DECODE_ROWS);
            return Err(EngineError::Config { field: "max_drafts", value: self.max_drafts, rule });
        }
        match sizes.into_iter().find(|&(_, value)| value == 0) {
            Some((field, value)) => Err(EngineError::Config { field, value, rule: "must be at least 1".into() }),
            None => Ok(()),
        }
    }
}
