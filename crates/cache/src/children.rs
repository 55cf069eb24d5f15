//! The children of a node, found by the tokens of their first block.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::sync::LazyLock;

use perilune_tensor::TokenId;

use crate::tree::NodeId;

/// Different in every process, so that nobody can choose tokens whose digests meet.
static SEED: LazyLock<u64> = LazyLock::new(|| RandomState::new().hash_one(0x5EED_u64) | 1);

/// Children by a digest of their first block. What a digest finds must still be compared.
#[derive(Debug, Default)]
pub(crate) struct Children {
    by_digest: HashMap<u64, Vec<NodeId>>,
    len: usize,
}

impl Children {
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.len == 0
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = NodeId> {
        self.by_digest.values().flatten().copied()
    }

    /// Children whose first block may be this one.
    pub(crate) fn candidates(&self, first: &[TokenId]) -> impl Iterator<Item = NodeId> {
        self.by_digest.get(&digest(first)).into_iter().flatten().copied()
    }

    pub(crate) fn insert(&mut self, first: &[TokenId], child: NodeId) {
        self.by_digest.entry(digest(first)).or_default().push(child);
        self.len += 1;
    }

    pub(crate) fn remove(&mut self, first: &[TokenId], child: NodeId) {
        let digest = digest(first);
        let Some(list) = self.by_digest.get_mut(&digest) else { return };
        let before = list.len();
        list.retain(|other| *other != child);
        self.len -= before - list.len();
        if list.is_empty() {
            self.by_digest.remove(&digest);
        }
    }
}

fn digest(tokens: &[TokenId]) -> u64 {
    let mix = |sum: u64, token: &TokenId| {
        let folded = (sum ^ u64::from(token.0)).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        folded ^ (folded >> 29)
    };
    tokens.iter().fold(*SEED, mix)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_inserted_is_found_until_it_is_removed() {
        let mut children = Children::default();
        let block = |i: u32| [TokenId(i), TokenId(i + 1)];
        (0..100).for_each(|i| children.insert(&block(i), i));
        // Two of one digest: both are candidates.
        children.insert(&block(7), 700);
        assert_eq!(children.candidates(&block(7)).collect::<Vec<_>>(), [7, 700]);
        children.remove(&block(7), 7);
        assert_eq!(children.candidates(&block(7)).collect::<Vec<_>>(), [700]);
        assert_eq!((children.len(), children.iter().count()), (100, 100));
        assert_eq!(children.candidates(&block(100)).count(), 0);
        (0..100).filter(|i| *i != 7).for_each(|i| children.remove(&block(i), i));
        children.remove(&block(7), 700);
        assert!(children.is_empty());
    }
}
