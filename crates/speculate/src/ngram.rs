//! Prompt lookup: what followed the last time the sequence ended as it does now.
//!
//! Needs no model. The longest match wins, the most recent among equals; it is copied as if it went on behind the end,
//! so that a text that repeats itself is continued for as long as it is asked for.

use perilune_backend::{Backend, BackendError};
use perilune_model::{Caches, Kimi};
use perilune_tensor::TokenId;

use crate::{Draft, DraftRequest, Proposal};

/// How prompt lookup searches.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NgramOptions {
    /// Fewest tokens that must agree, at least 1.
    pub min_match: usize,
    /// Tokens of agreement beyond which no longer one is looked for, at least `min_match`.
    pub max_match: usize,
    /// Most tokens proposed at once, at least 1.
    pub max_drafts: usize,
    /// How many of the last tokens are searched.
    pub window: usize,
}

impl Default for NgramOptions {
    fn default() -> Self {
        NgramOptions { min_match: 2, max_match: 5, max_drafts: 7, window: 1 << 16 }
    }
}

/// Prompt lookup as a draft.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct NgramDraft {
    options: NgramOptions,
}

impl NgramDraft {
    /// A draft that searches so.
    pub fn new(options: NgramOptions) -> Self {
        NgramDraft { options }
    }

    /// At most `count` tokens that may follow; none where nothing agrees.
    ///
    /// Reads the searched tokens once, from the last to the first, and stops at an agreement of `max_match`.
    pub fn continuation(&self, history: &[TokenId], count: usize) -> Vec<TokenId> {
        let NgramOptions { min_match, max_match, max_drafts, window } = self.options;
        let text = &history[history.len().saturating_sub(window)..];
        let Some((last, earlier)) = text.split_last() else { return Vec::new() };
        let (mut best, mut best_len) = (None, min_match.max(1) - 1);
        for (end, _) in earlier.iter().enumerate().rev().filter(|(_, token)| *token == last) {
            // `text[..=end]` ends like the whole text does.
            let len = agreement(&text[..=end], text, max_match);
            if len > best_len {
                (best, best_len) = (Some(end + 1), len);
            }
            if best_len >= max_match {
                break;
            }
        }
        let Some(from) = best else { return Vec::new() };
        let period = text.len() - from;
        (0..count.min(max_drafts)).map(|i| text[from + i % period]).collect()
    }
}

/// Tokens at the end of both that agree, at most `most`.
fn agreement(a: &[TokenId], b: &[TokenId], most: usize) -> usize {
    a.iter().rev().zip(b.iter().rev()).take(most).take_while(|(x, y)| x == y).count()
}

impl<B: Backend> Draft<B> for NgramDraft {
    fn max_drafts(&self) -> usize {
        self.options.max_drafts
    }

    fn propose(
        &mut self,
        _: (&B, &Kimi<B>),
        requests: &[DraftRequest<'_>],
        _: &mut Caches<B>,
    ) -> Result<Vec<Proposal>, BackendError> {
        let proposal = |request: &DraftRequest<'_>| Proposal {
            tokens: self.continuation(request.history, request.max_drafts),
            ..Proposal::default()
        };
        Ok(requests.iter().map(proposal).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn continued(options: NgramOptions, history: &[u32], count: usize) -> Vec<u32> {
        let history: Vec<TokenId> = history.iter().map(|id| TokenId(*id)).collect();
        NgramDraft::new(options).continuation(&history, count).iter().map(|id| id.0).collect()
    }

    const OPTIONS: NgramOptions = NgramOptions { min_match: 2, max_match: 3, max_drafts: 5, window: 100 };

    #[test]
    fn the_longest_match_wins_and_the_most_recent_among_equals() {
        // "2 3" came before 9, "1 2 3" before 7.
        assert_eq!(continued(OPTIONS, &[1, 2, 3, 7, 5, 2, 3, 9, 1, 2, 3], 1), [7]);
        assert_eq!(continued(OPTIONS, &[4, 2, 3, 7, 5, 2, 3, 9, 1, 2, 3], 1), [9]);
    }

    #[test]
    fn too_short_a_match_and_too_short_a_text_give_nothing() {
        assert_eq!(continued(OPTIONS, &[1, 3, 8, 2, 3], 3), [0; 0]);
        assert_eq!(continued(NgramOptions { min_match: 1, ..OPTIONS }, &[1, 3, 8, 2, 3], 3), [8, 2, 3]);
        assert_eq!(continued(OPTIONS, &[], 3), [0; 0]);
        assert_eq!(continued(OPTIONS, &[1], 3), [0; 0]);
        assert_eq!(continued(OPTIONS, &[1, 2, 3, 1, 2, 3], 0), [0; 0]);
    }

    #[test]
    fn repetition_goes_on() {
        assert_eq!(continued(OPTIONS, &[5, 1, 2, 1, 2, 1, 2], 5), [1, 2, 1, 2, 1]);
        assert_eq!(continued(OPTIONS, &[4, 4, 4, 4], 9), [4; 5], "no more than max_drafts");
    }

    #[test]
    fn only_the_window_is_searched() {
        let history: Vec<u32> = [1, 2, 3, 7].into_iter().chain(100..190).chain([1, 2, 3]).collect();
        assert_eq!(continued(OPTIONS, &history, 2), [7, 100]);
        assert_eq!(continued(NgramOptions { window: 90, ..OPTIONS }, &history, 2), [0; 0]);
    }

    /// Against all matches written out, over texts of few tokens, in which everything repeats.
    #[test]
    fn equals_an_exhaustive_search() {
        for seed in 0..500_u64 {
            let len = (seed % 40) as usize;
            let text: Vec<u32> = (0..len as u64).map(|i| (perilune_backend::uniform(seed, i) * 3.0) as u32).collect();
            let matches = (1..len).filter_map(|from| {
                let agreed =
                    (1..=OPTIONS.max_match.min(from)).rev().find(|n| text[from - n..from] == text[len - n..])?;
                (agreed >= OPTIONS.min_match).then_some((agreed, from))
            });
            let want = matches.max().map_or(Vec::new(), |(_, from)| vec![text[from]]);
            assert_eq!(continued(OPTIONS, &text, 1), want, "{text:?}");
        }
    }
}
