//! The range of every sampling parameter.

use std::collections::BTreeSet;
use std::fmt::Display;
use std::ops::RangeInclusive;

use perilune_tensor::TokenId;

use crate::{SamplingError, SamplingParams};

/// Most alternatives that `logprobs` and `prompt_logprobs` may ask for.
pub const MAX_TOP_LOGPROBS: usize = 20;

/// Biases beyond ± this are clamped; minus this bans the token.
pub const MAX_LOGIT_BIAS: f32 = 100.0;

/// What a model and a server allow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Token ids are below this.
    pub vocab_size: usize,
    /// Most alternatives per position, usually [`MAX_TOP_LOGPROBS`].
    pub max_top_logprobs: usize,
}

impl Limits {
    /// The usual limits for a vocabulary of `vocab_size` tokens.
    pub fn for_vocab(vocab_size: usize) -> Self {
        Limits { vocab_size, max_top_logprobs: MAX_TOP_LOGPROBS }
    }

    fn top_logprobs(&self, field: &'static str, value: Option<usize>) -> Result<(), SamplingError> {
        let max = self.max_top_logprobs.min(self.vocab_size);
        let bad = value.filter(|&n| n > max);
        bad.map_or(Ok(()), |n| refuse(field, n, format!("must be between 0 and {max}")))
    }

    fn id(&self, field: &'static str, id: TokenId) -> Result<(), SamplingError> {
        if id.index() < self.vocab_size {
            return Ok(());
        }
        refuse(field, id, format!("token ids must be below the vocabulary size, {}", self.vocab_size))
    }
}

impl SamplingParams {
    /// Checks every parameter against its range.
    ///
    /// `temperature` 0 to 2 · `top_k` -1, 0 or positive · `top_p` above 0, at most 1 · `min_p` 0 to 1 ·
    /// `repetition_penalty` above 0 · `presence_penalty`, `frequency_penalty` -2 to 2 · `logit_bias` values finite ·
    /// all token ids below the vocabulary size · `min_tokens` at most `max_tokens` · log-probabilities 0 to the limit.
    /// NaN and infinities are in no range.
    ///
    /// # Errors
    /// The first parameter outside its range, with its value and the rule.
    pub fn validate(&self, limits: &Limits) -> Result<(), SamplingError> {
        within("temperature", self.temperature, 0.0..=2.0)?;
        if self.top_k < -1 {
            return refuse("top_k", self.top_k, "must be positive, or -1 or 0 for off");
        }
        if !(self.top_p > 0.0 && self.top_p <= 1.0) {
            return refuse("top_p", self.top_p, "must be above 0 and at most 1");
        }
        within("min_p", self.min_p, 0.0..=1.0)?;
        if !(self.repetition_penalty > 0.0 && self.repetition_penalty.is_finite()) {
            return refuse("repetition_penalty", self.repetition_penalty, "must be finite and above 0");
        }
        within("presence_penalty", self.presence_penalty, -2.0..=2.0)?;
        within("frequency_penalty", self.frequency_penalty, -2.0..=2.0)?;
        if let Some(max) = self.max_tokens.filter(|&max| self.min_tokens > max) {
            return refuse("min_tokens", self.min_tokens, format!("must be at most max_tokens, {max}"));
        }
        limits.top_logprobs("logprobs", self.logprobs)?;
        limits.top_logprobs("prompt_logprobs", self.prompt_logprobs)?;
        self.validate_ids(limits)
    }

    fn validate_ids(&self, limits: &Limits) -> Result<(), SamplingError> {
        for &(id, bias) in &self.logit_bias {
            limits.id("logit_bias", id)?;
            if !bias.is_finite() {
                return refuse("logit_bias", format!("{bias} for token {id}"), "must be finite");
            }
        }
        for &id in &self.stop_token_ids {
            limits.id("stop_token_ids", id)?;
        }
        let banned = self.split_bias().banned;
        let excluded: BTreeSet<_> = banned.iter().chain(&self.stop_token_ids).collect();
        if !banned.is_empty() && excluded.len() >= limits.vocab_size {
            return refuse("logit_bias", format!("{} bans", banned.len()), "must leave a token that may be sampled");
        }
        Ok(())
    }
}

fn within(field: &'static str, value: f32, range: RangeInclusive<f32>) -> Result<(), SamplingError> {
    if range.contains(&value) {
        return Ok(());
    }
    refuse(field, value, format!("must be between {} and {}", range.start(), range.end()))
}

fn refuse(field: &'static str, value: impl Display, rule: impl Into<String>) -> Result<(), SamplingError> {
    Err(SamplingError { field, value: value.to_string(), rule: rule.into() })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(change: impl FnOnce(&mut SamplingParams)) -> Result<(), SamplingError> {
        let mut params = SamplingParams::default();
        change(&mut params);
        params.validate(&Limits::for_vocab(100))
    }

    fn refused(change: impl FnOnce(&mut SamplingParams)) -> &'static str {
        check(change).expect_err("must be refused").field
    }

    #[test]
    fn edges_of_every_range_are_accepted() {
        assert_eq!(check(|_| ()), Ok(()));
        for t in [0.0, 2.0] {
            assert_eq!(check(|p| p.temperature = t), Ok(()));
        }
        for k in [-1, 0, 1, 1_000_000] {
            assert_eq!(check(|p| p.top_k = k), Ok(()));
        }
        assert_eq!(check(|p| (p.top_p, p.min_p) = (1e-6, 1.0)), Ok(()));
        assert_eq!(check(|p| (p.presence_penalty, p.frequency_penalty) = (-2.0, 2.0)), Ok(()));
        assert_eq!(check(|p| (p.logprobs, p.prompt_logprobs) = (Some(20), Some(0))), Ok(()));
        assert_eq!(check(|p| (p.min_tokens, p.max_tokens) = (4, Some(4))), Ok(()));
        assert_eq!(check(|p| p.max_tokens = Some(0)), Ok(()));
        assert_eq!(check(|p| p.logit_bias = vec![(TokenId(99), 1e30)]), Ok(()));
        assert_eq!(check(|p| p.stop_token_ids = (0..100).map(TokenId).collect()), Ok(()));
    }

    #[test]
    fn non_finite_values_are_refused_everywhere() {
        for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            assert_eq!(refused(|p| p.temperature = bad), "temperature");
            assert_eq!(refused(|p| p.top_p = bad), "top_p");
            assert_eq!(refused(|p| p.min_p = bad), "min_p");
            assert_eq!(refused(|p| p.repetition_penalty = bad), "repetition_penalty");
            assert_eq!(refused(|p| p.presence_penalty = bad), "presence_penalty");
            assert_eq!(refused(|p| p.frequency_penalty = bad), "frequency_penalty");
            assert_eq!(refused(|p| p.logit_bias = vec![(TokenId(1), bad)]), "logit_bias");
        }
    }

    #[test]
    fn values_outside_their_range_are_refused() {
        assert_eq!(refused(|p| p.temperature = -0.1), "temperature");
        assert_eq!(refused(|p| p.temperature = 2.001), "temperature");
        assert_eq!(refused(|p| p.top_k = -2), "top_k");
        assert_eq!(refused(|p| p.top_p = 0.0), "top_p");
        assert_eq!(refused(|p| p.min_p = 1.1), "min_p");
        assert_eq!(refused(|p| p.repetition_penalty = 0.0), "repetition_penalty");
        assert_eq!(refused(|p| p.presence_penalty = 2.1), "presence_penalty");
        assert_eq!(refused(|p| p.frequency_penalty = -2.1), "frequency_penalty");
        assert_eq!(refused(|p| p.logprobs = Some(21)), "logprobs");
        assert_eq!(refused(|p| p.prompt_logprobs = Some(1_000_000)), "prompt_logprobs");
        assert_eq!(refused(|p| (p.min_tokens, p.max_tokens) = (5, Some(4))), "min_tokens");
        assert_eq!(refused(|p| p.logit_bias = vec![(TokenId(100), 1.0)]), "logit_bias");
        assert_eq!(refused(|p| p.stop_token_ids = vec![TokenId(u32::MAX)]), "stop_token_ids");
        let all_banned = (0..100).map(|i| (TokenId(i), -100.0)).collect();
        assert_eq!(refused(|p| p.logit_bias = all_banned), "logit_bias");
    }

    #[test]
    fn the_error_names_field_value_and_rule() {
        let error = check(|p| p.logprobs = Some(1_000_000)).expect_err("must be refused");
        assert_eq!(error.to_string(), "`logprobs` is 1000000: must be between 0 and 20");
    }
}
