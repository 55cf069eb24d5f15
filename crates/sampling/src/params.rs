//! The parameters of one generation.

use perilune_tensor::TokenId;

use crate::MAX_LOGIT_BIAS;

/// Below this a temperature counts as 0: dividing by it would leave nothing but the largest logit anyway.
const MIN_TEMPERATURE: f32 = 1e-5;

/// What a caller asks of the sampler. The default is plain sampling: temperature 1, everything else off.
///
/// Ranges are in [`SamplingParams::validate`]; the order in which they act is that of `perilune_backend::Sample`.
#[derive(Debug, Clone, PartialEq)]
pub struct SamplingParams {
    /// 0 is greedy.
    pub temperature: f32,
    /// Keep the `top_k` most likely tokens; -1 or 0 is off.
    pub top_k: i64,
    /// Keep the smallest set of tokens of this probability mass; 1 is off.
    pub top_p: f32,
    /// Keep tokens of at least this fraction of the largest probability; 0 is off.
    pub min_p: f32,
    /// Divides positive and multiplies negative logits of tokens in prompt or output; 1 is off.
    pub repetition_penalty: f32,
    /// Subtracted once from logits of tokens in the output; 0 is off.
    pub presence_penalty: f32,
    /// Subtracted from logits of tokens in the output, per occurrence; 0 is off.
    pub frequency_penalty: f32,
    /// Added to logits. Clamped to ±100; -100 bans the token.
    pub logit_bias: Vec<(TokenId, f32)>,
    /// With the prompt, fixes the tokens, whatever else runs. `None`: the engine picks one.
    pub seed: Option<u64>,
    /// Most tokens to generate; 0 only scores the prompt. `None`: up to the end of the context.
    pub max_tokens: Option<usize>,
    /// Stop tokens are banned until this many tokens are generated.
    pub min_tokens: usize,
    /// Tokens that end the output, besides the model's own end tokens.
    pub stop_token_ids: Vec<TokenId>,
    /// The model's own end tokens are ordinary tokens.
    pub ignore_eos: bool,
    /// Report the log-probability of each output token, and this many of the most likely ones.
    pub logprobs: Option<usize>,
    /// The same for each prompt token but the first.
    pub prompt_logprobs: Option<usize>,
    /// Most tokens that may be drafted ahead in a step, where the engine speculates; 0 turns that off. `None`: as many as
    /// the engine sees fit. Never changes what is generated, only how fast.
    pub max_drafts: Option<usize>,
}

impl Default for SamplingParams {
    fn default() -> Self {
        SamplingParams {
            temperature: 1.0,
            top_k: 0,
            top_p: 1.0,
            min_p: 0.0,
            repetition_penalty: 1.0,
            presence_penalty: 0.0,
            frequency_penalty: 0.0,
            logit_bias: Vec::new(),
            seed: None,
            max_tokens: None,
            min_tokens: 0,
            stop_token_ids: Vec::new(),
            ignore_eos: false,
            logprobs: None,
            prompt_logprobs: None,
            max_drafts: None,
        }
    }
}

/// `logit_bias`, clamped and parted into what is added and what is forbidden.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct BiasSplit {
    /// Added to logits, each above -100 and at most 100.
    pub added: Vec<(TokenId, f32)>,
    /// Never sampled.
    pub banned: Vec<TokenId>,
}

impl SamplingParams {
    /// Greedy sampling of at most `max_tokens` tokens.
    pub fn greedy(max_tokens: usize) -> Self {
        SamplingParams { temperature: 0.0, max_tokens: Some(max_tokens), ..Self::default() }
    }

    /// The temperature to divide by; 0 where the request is greedy.
    pub fn effective_temperature(&self) -> f32 {
        if self.temperature < MIN_TEMPERATURE { 0.0 } else { self.temperature }
    }

    /// `top_k` with 0 for off.
    pub fn effective_top_k(&self) -> u32 {
        u32::try_from(self.top_k.max(0)).unwrap_or(u32::MAX)
    }

    /// Whether any penalty is on, so that occurrences of tokens must be counted.
    pub fn has_penalties(&self) -> bool {
        self.repetition_penalty != 1.0 || self.presence_penalty != 0.0 || self.frequency_penalty != 0.0
    }

    /// Parts `logit_bias` into additions and bans. Of several entries for one token the last counts.
    pub fn split_bias(&self) -> BiasSplit {
        let last: std::collections::BTreeMap<TokenId, f32> = self.logit_bias.iter().copied().collect();
        let mut split = BiasSplit::default();
        for (id, bias) in last {
            if bias <= -MAX_LOGIT_BIAS {
                split.banned.push(id);
            } else if bias != 0.0 {
                split.added.push((id, bias.min(MAX_LOGIT_BIAS)));
            }
        }
        split
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bias_is_clamped_and_minus_hundred_bans() {
        let bias = vec![(TokenId(7), 250.0), (TokenId(3), -100.0), (TokenId(5), -1e30), (TokenId(1), 0.5)];
        let split = SamplingParams { logit_bias: bias, ..SamplingParams::default() }.split_bias();
        assert_eq!(split.added, [(TokenId(1), 0.5), (TokenId(7), 100.0)]);
        assert_eq!(split.banned, [TokenId(3), TokenId(5)]);
    }

    #[test]
    fn the_last_bias_of_a_token_counts() {
        let bias = vec![(TokenId(7), -100.0), (TokenId(7), 2.0)];
        let split = SamplingParams { logit_bias: bias, ..SamplingParams::default() }.split_bias();
        assert_eq!((split.added, split.banned), (vec![(TokenId(7), 2.0)], vec![]));
    }

    #[test]
    fn off_values() {
        let with_k = |top_k| SamplingParams { top_k, ..SamplingParams::default() }.effective_top_k();
        assert_eq!([with_k(-1), with_k(0), with_k(40), with_k(i64::MAX)], [0, 0, 40, u32::MAX]);
        let with_t = |temperature| SamplingParams { temperature, ..SamplingParams::default() }.effective_temperature();
        assert_eq!([with_t(0.0), with_t(1e-40), with_t(0.7)], [0.0, 0.0, 0.7]);
        assert!(!SamplingParams::default().has_penalties());
        assert!(SamplingParams { frequency_penalty: -0.1, ..SamplingParams::default() }.has_penalties());
    }
}
