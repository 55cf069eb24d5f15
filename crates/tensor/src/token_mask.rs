//! A set of vocabulary entries, one bit each: which tokens may come next.

use std::sync::Arc;

use crate::TokenId;

const BITS: usize = u32::BITS as usize;

/// Tokens that may come next. Cheap to clone; ids beyond its words are not in it.
#[derive(Clone, PartialEq, Eq)]
pub struct TokenMask(Arc<[u32]>);

impl TokenMask {
    /// From words of 32 bits, the lowest bit of the first one for token 0.
    pub fn from_words(words: Vec<u32>) -> Self {
        TokenMask(words.into())
    }

    /// The tokens given, of a vocabulary of `vocab_size`.
    pub fn of(ids: &[TokenId], vocab_size: usize) -> Self {
        let mut words = vec![0; vocab_size.div_ceil(BITS)];
        for id in ids.iter().filter(|id| id.index() < vocab_size) {
            words[id.index() / BITS] |= 1 << (id.index() % BITS);
        }
        TokenMask(words.into())
    }

    /// All tokens of a vocabulary of `vocab_size` but those given.
    pub fn all_but(ids: &[TokenId], vocab_size: usize) -> Self {
        let mut words = vec![u32::MAX; vocab_size.div_ceil(BITS)];
        if !vocab_size.is_multiple_of(BITS)
            && let Some(last) = words.last_mut()
        {
            *last = (1 << (vocab_size % BITS)) - 1;
        }
        for id in ids.iter().filter(|id| id.index() < vocab_size) {
            words[id.index() / BITS] &= !(1 << (id.index() % BITS));
        }
        TokenMask(words.into())
    }

    /// Whether a token is in the set.
    pub fn allows(&self, id: TokenId) -> bool {
        self.0.get(id.index() / BITS).is_some_and(|word| word >> (id.index() % BITS) & 1 == 1)
    }

    /// Whether any token of the set is not among `banned`.
    pub fn leaves(&self, banned: &[TokenId]) -> bool {
        let mut distinct: Vec<TokenId> = banned.iter().copied().filter(|id| self.allows(*id)).collect();
        distinct.sort_unstable();
        distinct.dedup();
        self.len() > distinct.len()
    }

    /// Number of tokens in the set.
    pub fn len(&self) -> usize {
        self.0.iter().map(|word| word.count_ones() as usize).sum()
    }

    /// Whether no token is in the set.
    pub fn is_empty(&self) -> bool {
        self.0.iter().all(|word| *word == 0)
    }

    /// Sets the logits of all tokens that are not in the set to minus infinity.
    pub fn apply(&self, logits: &mut [f32]) {
        for (i, logits) in logits.chunks_mut(BITS).enumerate() {
            match self.0.get(i).copied().unwrap_or(0) {
                u32::MAX => {}
                0 => logits.fill(f32::NEG_INFINITY),
                word => {
                    let out = logits.iter_mut().enumerate().filter(|(bit, _)| word >> bit & 1 == 0);
                    out.for_each(|(_, logit)| *logit = f32::NEG_INFINITY);
                }
            }
        }
    }
}

impl std::fmt::Debug for TokenMask {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "TokenMask({} tokens)", self.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sets_and_their_complements() {
        for size in [1, 31, 32, 33, 100] {
            let ids = [TokenId(0), TokenId(size as u32 / 2), TokenId(size as u32 + 7)];
            let (these, others) = (TokenMask::of(&ids, size), TokenMask::all_but(&ids, size));
            for id in (0..size as u32 + 64).map(TokenId) {
                let known = id.index() < size;
                assert_eq!(these.allows(id), known && ids.contains(&id), "{size} {id}");
                assert_eq!(others.allows(id), known && !ids.contains(&id), "{size} {id}");
            }
            assert_eq!(these.len() + others.len(), size);
            assert_eq!(others.is_empty(), size == 1);
        }
    }

    #[test]
    fn application_leaves_what_is_allowed() {
        let mask = TokenMask::of(&[TokenId(2), TokenId(40)], 41);
        let mut logits = vec![1.5; 70];
        mask.apply(&mut logits);
        let left: Vec<usize> = (0..70).filter(|i| logits[*i].is_finite()).collect();
        assert_eq!(left, [2, 40]);
        assert!(mask.leaves(&[TokenId(2), TokenId(2), TokenId(7)]));
        assert!(!mask.leaves(&[TokenId(2), TokenId(40)]));
    }
}
