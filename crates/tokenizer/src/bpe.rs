//! Byte pair encoding of one pre-token by ranks.
//!
//! What: tiktoken's rule. A pre-token that is a token is emitted whole; otherwise the adjacent pair whose joined bytes
//! have the lowest rank (the leftmost of equals) is merged, until no pair joins to a token. A heap of candidate pairs
//! over a linked list of parts makes it O(n log n) for n bytes, so a pre-token of 100 kB costs milliseconds.
//! What not: splitting text into pre-tokens (`pre_tokenizer`).
//!
//! Why our own: `docs/adr/0006-own-bpe.md`.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use perilune_tensor::TokenId;

use crate::Vocabulary;

/// Appends the tokens of `piece` to `out`.
pub(crate) fn encode(vocabulary: &Vocabulary, piece: &[u8], out: &mut Vec<TokenId>) {
    match vocabulary.rank(piece) {
        Some(rank) => out.push(TokenId(rank)),
        None if piece.is_empty() => {}
        None => Merging::new(vocabulary, piece).run(out),
    }
}

/// A run of bytes that is one token by now. Parts are named by the offset of their first byte.
#[derive(Clone, Copy)]
struct Part {
    /// Where the part before begins; unused for the first.
    prev: u32,
    /// Where this part ends and the next begins; 0 once the part was merged into the one before it.
    end: u32,
    rank: u32,
}

/// `(rank of the joined bytes, left part, end of the right part)`: ordered by rank, then from left to right.
type Candidate = Reverse<(u32, u32, u32)>;

struct Merging<'a> {
    vocabulary: &'a Vocabulary,
    piece: &'a [u8],
    parts: Vec<Part>,
    heap: BinaryHeap<Candidate>,
}

impl<'a> Merging<'a> {
    fn new(vocabulary: &'a Vocabulary, piece: &'a [u8]) -> Self {
        let part = |at: usize| Part {
            prev: at.saturating_sub(1) as u32,
            end: at as u32 + 1,
            rank: vocabulary.rank(&piece[at..at + 1]).unwrap_or_default(),
        };
        let parts = (0..piece.len()).map(part).collect();
        let mut merging = Self { vocabulary, piece, parts, heap: BinaryHeap::with_capacity(piece.len()) };
        for left in 0..piece.len() as u32 {
            merging.propose(left);
        }
        merging
    }

    fn run(mut self, out: &mut Vec<TokenId>) {
        while let Some(Reverse((rank, left, end))) = self.heap.pop() {
            if self.pair_end(left) == Some(end) {
                self.merge(left, rank);
            }
        }
        let mut at = 0;
        while let Some(part) = self.parts.get(at) {
            out.push(TokenId(part.rank));
            at = part.end as usize;
        }
    }

    /// Where the pair that begins at `left` ends. A candidate is stale exactly when this has changed: parts only grow.
    fn pair_end(&self, left: u32) -> Option<u32> {
        let end = self.parts[left as usize].end;
        let right = self.parts.get(end as usize)?;
        (end != 0).then_some(right.end)
    }

    fn merge(&mut self, left: u32, rank: u32) {
        let right = self.parts[left as usize].end;
        let end = self.parts[right as usize].end;
        self.parts[right as usize].end = 0;
        self.parts[left as usize].end = end;
        self.parts[left as usize].rank = rank;
        if let Some(next) = self.parts.get_mut(end as usize) {
            next.prev = left;
        }
        self.propose(left);
        if left > 0 {
            self.propose(self.parts[left as usize].prev);
        }
    }

    fn propose(&mut self, left: u32) {
        let Some(end) = self.pair_end(left) else { return };
        if let Some(rank) = self.vocabulary.rank(&self.piece[left as usize..end as usize]) {
            self.heap.push(Reverse((rank, left, end)));
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::tokenizer::tests::fixed_cases;
    use crate::vocabulary::tests::small;

    /// The rule as it is told: look at all pairs, merge the best, start over.
    fn naive(vocabulary: &Vocabulary, piece: &[u8]) -> Vec<TokenId> {
        let mut parts: Vec<Vec<u8>> = piece.iter().map(|byte| vec![*byte]).collect();
        if let Some(rank) = vocabulary.rank(piece) {
            return vec![TokenId(rank)];
        }
        loop {
            let joined = parts.windows(2).map(|pair| vocabulary.rank(&pair.concat())).enumerate();
            let best = joined.filter_map(|(at, rank)| rank.map(|rank| (rank, at))).min();
            let Some((_, at)) = best else { break };
            let right = parts.remove(at + 1);
            parts[at].extend(right);
        }
        parts.iter().map(|part| TokenId(vocabulary.rank(part).unwrap())).collect()
    }

    fn encoded(vocabulary: &Vocabulary, piece: &[u8]) -> Vec<TokenId> {
        let mut out = Vec::new();
        encode(vocabulary, piece, &mut out);
        out
    }

    #[test]
    fn the_lowest_rank_wins_not_the_longest_or_leftmost() {
        let vocabulary = small(&["bc", "ab", "cd", "abcd"]);
        assert_eq!(encoded(&vocabulary, b"xabc"), [120, 97, 256].map(TokenId));
        // unreachable by merging (`bc` goes first), but the whole piece is a token
        assert_eq!(encoded(&vocabulary, b"abcd"), [TokenId(259)]);
        assert_eq!(encoded(&vocabulary, b"abcde"), [97, 256, 100, 101].map(TokenId));
        assert_eq!(encoded(&vocabulary, b""), []);
    }

    #[test]
    fn a_long_piece_is_encoded_in_one_go() {
        let vocabulary = small(&["aa", "aaaa", "aaaaaaaa"]);
        let tokens = encoded(&vocabulary, &[b'a'; 400_003]);
        assert_eq!(tokens.len(), 50_000 + 2);
        assert_eq!(tokens[49_999..], [258, 256, 97].map(TokenId));
    }

    proptest! {
        #![proptest_config(fixed_cases(400))]
        #[test]
        fn equals_the_naive_rule(merges in proptest::collection::btree_set("[abc]{2,6}", 0..40), piece in "[abcd]{0,60}") {
            let merges: Vec<&str> = merges.iter().map(String::as_str).collect();
            // a set iterates in sorted order; ranks should not follow the alphabet
            let mut shuffled = merges.clone();
            shuffled.sort_by_key(|merge| merge.bytes().fold(7u32, |hash, byte| hash.wrapping_mul(31) ^ u32::from(byte) << 3));
            let vocabulary = small(&shuffled);
            prop_assert_eq!(encoded(&vocabulary, piece.as_bytes()), naive(&vocabulary, piece.as_bytes()));
        }
    }
}
