//! When a generation ends, on token ids and counts.

use perilune_tensor::TokenId;

use crate::SamplingParams;

/// What a new token means for its sequence.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// More tokens follow.
    Continue,
    /// The token is a stop token; it is the last one.
    Stop(TokenId),
    /// The limit is reached; the token is the last one.
    Length,
}

/// The stop tokens and limits of one sequence.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StopRules {
    /// Sorted, without duplicates.
    stop_ids: Vec<TokenId>,
    min_tokens: usize,
    max_tokens: usize,
}

impl StopRules {
    /// Rules from the caller's parameters, the model's own end tokens, and the most tokens the context has room for
    /// (the caller's `max_tokens` counts where it is smaller).
    pub fn new(params: &SamplingParams, eos_ids: &[TokenId], room: usize) -> Self {
        let mut stop_ids = params.stop_token_ids.clone();
        if !params.ignore_eos {
            stop_ids.extend_from_slice(eos_ids);
        }
        stop_ids.sort_unstable();
        stop_ids.dedup();
        let max_tokens = params.max_tokens.map_or(room, |max| max.min(room));
        StopRules { stop_ids, min_tokens: params.min_tokens, max_tokens }
    }

    /// Most tokens the sequence may generate.
    pub fn max_tokens(&self) -> usize {
        self.max_tokens
    }

    /// Tokens that must not be drawn after `generated` tokens: the stop tokens, while there are fewer than `min_tokens`.
    pub fn banned(&self, generated: usize) -> &[TokenId] {
        if generated < self.min_tokens { &self.stop_ids } else { &[] }
    }

    /// What `token` means, `generated` counting it. A stop token at the limit is a stop.
    pub fn verdict(&self, token: TokenId, generated: usize) -> Verdict {
        if generated > self.min_tokens && self.stop_ids.binary_search(&token).is_ok() {
            Verdict::Stop(token)
        } else if generated >= self.max_tokens {
            Verdict::Length
        } else {
            Verdict::Continue
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const EOS: TokenId = TokenId(2);
    const WORD: TokenId = TokenId(9);

    fn rules(change: impl FnOnce(&mut SamplingParams)) -> StopRules {
        let mut params = SamplingParams { max_tokens: Some(5), ..SamplingParams::default() };
        change(&mut params);
        StopRules::new(&params, &[EOS], 100)
    }

    #[test]
    fn stops_and_limits() {
        let r = rules(|p| p.stop_token_ids = vec![WORD, WORD]);
        assert_eq!(r.verdict(TokenId(1), 4), Verdict::Continue);
        assert_eq!(r.verdict(TokenId(1), 5), Verdict::Length);
        assert_eq!(r.verdict(EOS, 1), Verdict::Stop(EOS));
        assert_eq!(r.verdict(WORD, 5), Verdict::Stop(WORD));
    }

    #[test]
    fn ignore_eos_leaves_the_callers_own_stops() {
        let r = rules(|p| (p.ignore_eos, p.stop_token_ids) = (true, vec![WORD]));
        assert_eq!(r.verdict(EOS, 1), Verdict::Continue);
        assert_eq!(r.verdict(WORD, 1), Verdict::Stop(WORD));
    }

    #[test]
    fn stops_are_banned_until_min_tokens() {
        let r = rules(|p| p.min_tokens = 2);
        assert_eq!([r.banned(0), r.banned(1), r.banned(2)], [&[EOS][..], &[EOS][..], &[][..]]);
        assert_eq!(r.verdict(EOS, 2), Verdict::Continue);
        assert_eq!(r.verdict(EOS, 3), Verdict::Stop(EOS));
    }

    #[test]
    fn the_room_bounds_what_the_caller_may_ask() {
        let open = SamplingParams { max_tokens: None, ..SamplingParams::default() };
        assert_eq!(StopRules::new(&open, &[], 7).max_tokens(), 7);
        assert_eq!(rules(|p| p.max_tokens = Some(1000)).max_tokens(), 100);
    }
}
