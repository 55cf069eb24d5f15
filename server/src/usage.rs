//! Token counts of a request, from those of its choices.

use perilune_protocol::Usage;
use perilune_tensor::TokenId;

use crate::generation::Counts;

/// The usage of a request: its prompt once, its choices summed.
pub fn total_usage(prompt_tokens: usize, choices: &[Counts]) -> Usage {
    let completion = choices.iter().map(|counts| counts.completion).sum();
    let reasoning = choices.iter().map(|counts| counts.reasoning).sum();
    let mut usage = Usage::new(prompt_tokens, completion, reasoning);
    let cached = choices.iter().map(|counts| counts.cached).max().unwrap_or(0);
    usage.prompt_tokens_details.cached_tokens = cached.min(prompt_tokens);
    let drafted: usize = choices.iter().map(|counts| counts.drafted).sum();
    if drafted > 0 {
        let accepted = choices.iter().map(|counts| counts.accepted).sum();
        usage.completion_tokens_details.accepted_prediction_tokens = Some(accepted);
        usage.completion_tokens_details.rejected_prediction_tokens = Some(drafted - accepted);
    }
    usage
}

/// Ids as plain numbers.
pub fn raw_ids(ids: &[TokenId]) -> Vec<u32> {
    ids.iter().map(|id| id.0).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_prompt_counts_once() {
        let choice = Counts { completion: 5, reasoning: 2, drafted: 4, accepted: 3, ..Counts::default() };
        let usage = total_usage(10, &[choice, Counts { completion: 1, ..Counts::default() }]);
        assert_eq!((usage.prompt_tokens, usage.completion_tokens, usage.total_tokens), (10, 6, 16));
        let details = usage.completion_tokens_details;
        assert_eq!(details.reasoning_tokens, 2);
        assert_eq!((details.accepted_prediction_tokens, details.rejected_prediction_tokens), (Some(3), Some(1)));
    }
}
