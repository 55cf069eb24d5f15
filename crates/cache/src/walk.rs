//! Following tokens down the tree.

use perilune_tensor::TokenId;

use crate::CacheKey;
use crate::tree::{Checkpoint, CheckpointId, PrefixTree};

/// Children that are compared with a rest that is none of them.
const MAX_PARTIAL_CHILDREN: usize = 16;

/// How far tokens are known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Walk {
    /// The deepest checkpoint that may be used.
    pub(crate) checkpoint: Option<CheckpointId>,
    /// Tokens that agree with some stored sequence, whole blocks or not.
    pub(crate) agreeing: usize,
}

impl PrefixTree {
    /// Follows `tokens` down; checkpoints of at most `limit` tokens that `usable` accepts count.
    pub(crate) fn walk(
        &self,
        key: &CacheKey,
        (tokens, limit): (&[TokenId], usize),
        usable: impl Fn(&Checkpoint) -> bool,
    ) -> Walk {
        let mut walk = Walk { checkpoint: None, agreeing: 0 };
        let mut at = self.roots.get(key).copied();
        while let Some(id) = at {
            let node = self.node(id);
            let begin = node.start * self.block_size;
            let rest = &tokens[begin..];
            let agreeing = common_prefix(&node.tokens, rest);
            walk.agreeing = walk.agreeing.max(begin + agreeing);
            let whole = node.start + agreeing / self.block_size;
            for id in &node.checkpoints {
                let checkpoint = self.checkpoint(*id);
                let tail_begin = checkpoint.position - checkpoint.tail.len();
                if tail_begin / self.block_size > whole || checkpoint.position > tokens.len() {
                    break;
                }
                let same = common_prefix(&checkpoint.tail, &tokens[tail_begin..]);
                walk.agreeing = walk.agreeing.max(tail_begin + same);
                if same == checkpoint.tail.len() && checkpoint.position <= limit && usable(checkpoint) {
                    walk.checkpoint = Some(*id);
                }
            }
            if agreeing < node.tokens.len() {
                break;
            }
            at = self.child(id, &rest[agreeing..]).map(|(child, _)| child);
            if at.is_none() {
                // Children that begin like the rest, if only for a part of a block.
                let partly = node.children.iter().take(MAX_PARTIAL_CHILDREN).map(|child| &self.node(child).tokens);
                let longest = partly.map(|tokens| common_prefix(tokens, &rest[agreeing..])).max().unwrap_or(0);
                walk.agreeing = walk.agreeing.max(begin + agreeing + longest);
            }
        }
        walk
    }
}

/// How many elements agree from the start.
pub fn common_prefix(a: &[TokenId], b: &[TokenId]) -> usize {
    const STEP: usize = 64;
    let len = a.len().min(b.len());
    // Long stretches agree as a whole, which compares much faster than element by element.
    let mut at = 0;
    while at + STEP <= len && a[at..at + STEP] == b[at..at + STEP] {
        at += STEP;
    }
    at + a[at..len].iter().zip(&b[at..len]).take_while(|(x, y)| x == y).count()
}
