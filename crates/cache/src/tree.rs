//! The tree of stored prefixes: whole blocks along its edges, checkpoints anywhere.
//!
//! A node holds a run of whole blocks and their tokens; its children differ in their first block. A checkpoint is a saved
//! state at an exact number of tokens; the tokens after its last whole block, and the block that holds them, are its own.
//! Only structure lives here: who is evicted when is decided by the manager.

use std::collections::HashMap;

use perilune_tensor::TokenId;

use crate::children::Children;
use crate::walk::common_prefix;
use crate::{BlockId, CacheKey, HostId, SlotId};

pub(crate) type NodeId = u32;
pub(crate) type CheckpointId = u32;

/// A unit on the device or in host memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stored<D> {
    Device(D),
    Host(HostId),
}

/// A run of whole blocks.
#[derive(Debug)]
pub(crate) struct Node {
    /// `None` for the root of a key and for a node that was detached.
    pub(crate) parent: Option<NodeId>,
    /// Whole blocks before this node.
    pub(crate) start: usize,
    pub(crate) tokens: Vec<TokenId>,
    pub(crate) blocks: Vec<Stored<BlockId>>,
    pub(crate) children: Children,
    /// In rising order of position.
    pub(crate) checkpoints: Vec<CheckpointId>,
    /// Sequences that use this node or one below it.
    pub(crate) locks: u32,
    /// Not to be found any more; freed when the last lock goes.
    pub(crate) detached: bool,
    /// Of a root, whose it is.
    key: Option<CacheKey>,
}

impl Node {
    fn is_root(&self) -> bool {
        self.key.is_some()
    }
}

/// A saved state.
#[derive(Debug)]
pub(crate) struct Checkpoint {
    pub(crate) node: NodeId,
    /// Tokens it includes.
    pub(crate) position: usize,
    /// Those after the last whole block.
    pub(crate) tail: Box<[TokenId]>,
    /// The block that holds them, where there are any.
    pub(crate) tail_block: Option<Stored<BlockId>>,
    pub(crate) state: Stored<SlotId>,
    /// Sequences that started from it.
    pub(crate) starts: u32,
    /// When it was saved or last used, in sequences started.
    pub(crate) last_use: u64,
}

#[derive(Debug)]
pub(crate) struct PrefixTree {
    pub(crate) block_size: usize,
    nodes: Vec<Option<Node>>,
    spare_nodes: Vec<NodeId>,
    checkpoints: Vec<Option<Checkpoint>>,
    spare_checkpoints: Vec<CheckpointId>,
    /// Checkpoints added and removed so far.
    pub(crate) changes: u64,
    pub(crate) roots: HashMap<CacheKey, NodeId>,
}

impl PrefixTree {
    pub(crate) fn new(block_size: usize) -> Self {
        PrefixTree {
            block_size,
            nodes: Vec::new(),
            spare_nodes: Vec::new(),
            checkpoints: Vec::new(),
            spare_checkpoints: Vec::new(),
            changes: 0,
            roots: HashMap::new(),
        }
    }

    pub(crate) fn contains(&self, id: NodeId) -> bool {
        self.nodes.get(id as usize).is_some_and(Option::is_some)
    }

    #[allow(clippy::expect_used)] // ids are handed out by this tree and dropped with what they name
    pub(crate) fn node(&self, id: NodeId) -> &Node {
        self.nodes[id as usize].as_ref().expect("a node id outlived its node")
    }

    #[allow(clippy::expect_used)] // as above
    pub(crate) fn node_mut(&mut self, id: NodeId) -> &mut Node {
        self.nodes[id as usize].as_mut().expect("a node id outlived its node")
    }

    #[allow(clippy::expect_used)] // as above
    pub(crate) fn checkpoint(&self, id: CheckpointId) -> &Checkpoint {
        self.checkpoints[id as usize].as_ref().expect("a checkpoint id outlived its checkpoint")
    }

    #[allow(clippy::expect_used)] // as above
    pub(crate) fn checkpoint_mut(&mut self, id: CheckpointId) -> &mut Checkpoint {
        self.checkpoints[id as usize].as_mut().expect("a checkpoint id outlived its checkpoint")
    }

    pub(crate) fn num_checkpoints(&self) -> usize {
        self.checkpoints.len() - self.spare_checkpoints.len()
    }

    pub(crate) fn num_nodes(&self) -> usize {
        self.nodes.len() - self.spare_nodes.len()
    }

    pub(crate) fn roots(&self) -> impl Iterator<Item = (&CacheKey, NodeId)> {
        self.roots.iter().map(|(key, id)| (key, *id))
    }

    /// The root of a key, made where there is none.
    pub(crate) fn root(&mut self, key: &CacheKey) -> NodeId {
        if let Some(root) = self.roots.get(key) {
            return *root;
        }
        let root = self.add_node(Node {
            parent: None,
            start: 0,
            tokens: Vec::new(),
            blocks: Vec::new(),
            children: Children::default(),
            checkpoints: Vec::new(),
            locks: 0,
            detached: false,
            key: Some(key.clone()),
        });
        self.roots.insert(key.clone(), root);
        root
    }

    /// Cuts a node so that one ends after `whole` blocks from the root; returns that one.
    pub(crate) fn split(&mut self, id: NodeId, whole: usize) -> NodeId {
        let node = self.node_mut(id);
        let keep = whole - node.start;
        if keep == node.blocks.len() {
            return id;
        }
        let block_size = self.block_size;
        let node = self.node_mut(id);
        let lower_tokens = node.tokens.split_off(keep * block_size);
        let lower_blocks = node.blocks.split_off(keep);
        let upper = Node {
            parent: node.parent,
            start: node.start,
            tokens: std::mem::replace(&mut node.tokens, lower_tokens),
            blocks: std::mem::replace(&mut node.blocks, lower_blocks),
            children: Children::default(),
            checkpoints: Vec::new(),
            locks: node.locks,
            detached: node.detached,
            key: None,
        };
        node.start = whole;
        let lower_first: Box<[TokenId]> = node.tokens[..block_size].into();
        let all = std::mem::take(&mut node.checkpoints);
        let (mine, theirs): (Vec<_>, Vec<_>) =
            all.into_iter().partition(|c| self.checkpoint(*c).position / block_size <= whole);
        self.node_mut(id).checkpoints = theirs;
        let (parent, upper_first): (_, Box<[TokenId]>) = (upper.parent, upper.tokens[..block_size].into());
        let upper_id = self.add_node(upper);
        for checkpoint in &mine {
            self.checkpoint_mut(*checkpoint).node = upper_id;
        }
        let upper = self.node_mut(upper_id);
        upper.checkpoints = mine;
        upper.children.insert(&lower_first, id);
        self.node_mut(id).parent = Some(upper_id);
        if let Some(parent) = parent {
            let siblings = &mut self.node_mut(parent).children;
            siblings.remove(&upper_first, id);
            siblings.insert(&upper_first, upper_id);
        }
        upper_id
    }

    /// Adds a child with whole blocks.
    pub(crate) fn add_child(&mut self, parent: NodeId, tokens: &[TokenId], blocks: Vec<Stored<BlockId>>) -> NodeId {
        let above = self.node(parent);
        let node = Node {
            parent: Some(parent),
            start: above.start + above.blocks.len(),
            tokens: tokens.to_vec(),
            blocks,
            children: Children::default(),
            checkpoints: Vec::new(),
            locks: 0,
            detached: above.detached,
            key: None,
        };
        let id = self.add_node(node);
        let first = &tokens[..self.block_size];
        self.node_mut(parent).children.insert(first, id);
        id
    }

    /// The child of a node that begins with these tokens, at least a block of them, and how many whole blocks agree.
    pub(crate) fn child(&self, parent: NodeId, tokens: &[TokenId]) -> Option<(NodeId, usize)> {
        let first = tokens.get(..self.block_size)?;
        let same = |id: &NodeId| self.node(*id).tokens.starts_with(first);
        let id = self.node(parent).children.candidates(first).find(same)?;
        Some((id, common_prefix(&self.node(id).tokens, tokens) / self.block_size))
    }

    /// Puts a checkpoint in its place among those of its node.
    pub(crate) fn add_checkpoint(&mut self, checkpoint: Checkpoint) -> CheckpointId {
        let (node, position) = (checkpoint.node, checkpoint.position);
        self.changes += 1;
        let id = match self.spare_checkpoints.pop() {
            Some(id) => {
                self.checkpoints[id as usize] = Some(checkpoint);
                id
            }
            None => {
                self.checkpoints.push(Some(checkpoint));
                self.checkpoints.len() as CheckpointId - 1
            }
        };
        let place = self.node(node).checkpoints.partition_point(|other| self.checkpoint(*other).position <= position);
        self.node_mut(node).checkpoints.insert(place, id);
        id
    }

    /// The checkpoint of a node with exactly these tokens after its whole blocks.
    pub(crate) fn find_checkpoint(&self, node: NodeId, (position, tail): (usize, &[TokenId])) -> Option<CheckpointId> {
        let same = |id: &&CheckpointId| {
            let other = self.checkpoint(**id);
            other.position == position && *other.tail == *tail
        };
        self.node(node).checkpoints.iter().find(same).copied()
    }

    #[allow(clippy::expect_used)] // as in `node`
    pub(crate) fn remove_checkpoint(&mut self, id: CheckpointId) -> Checkpoint {
        let checkpoint = self.checkpoints[id as usize].take().expect("a checkpoint id outlived its checkpoint");
        self.changes += 1;
        self.spare_checkpoints.push(id);
        self.node_mut(checkpoint.node).checkpoints.retain(|other| *other != id);
        checkpoint
    }

    /// Tokens from the nearest checkpoint above, or from the start, to this one.
    pub(crate) fn saved_tokens(&self, id: CheckpointId) -> usize {
        let checkpoint = self.checkpoint(id);
        let mut at = Some(checkpoint.node);
        while let Some(node) = at {
            let before = self.node(node).checkpoints.iter().rev();
            let mut before = before.map(|other| self.checkpoint(*other).position);
            if let Some(nearest) = before.find(|position| *position < checkpoint.position) {
                return checkpoint.position - nearest;
            }
            at = self.node(node).parent;
        }
        checkpoint.position
    }

    /// Whether another state lies below this one.
    pub(crate) fn is_passed(&self, id: CheckpointId) -> bool {
        let checkpoint = self.checkpoint(id);
        let node = self.node(checkpoint.node);
        // A node whose children are gone has none; what is below a child always leads to a state, or to a sequence.
        !node.children.is_empty() || node.checkpoints.last() != Some(&id)
    }

    /// Blocks that no sequence and no other checkpoint needs once this one is gone.
    pub(crate) fn exclusive_blocks(&self, id: CheckpointId) -> usize {
        let checkpoint = self.checkpoint(id);
        let mut at = checkpoint.node;
        let mut blocks = usize::from(checkpoint.tail_block.is_some());
        loop {
            let node = self.node(at);
            let below = if at == checkpoint.node { 0 } else { 1 };
            if node.is_root() || node.locks > 0 || node.children.len() > below {
                return blocks;
            }
            let others = node.checkpoints.iter().filter(|other| **other != id);
            let keep = others.map(|other| self.checkpoint(*other).position / self.block_size).max().unwrap_or(0);
            blocks += node.blocks.len() - keep.saturating_sub(node.start).min(node.blocks.len());
            match node.parent {
                Some(parent) if keep <= node.start => at = parent,
                _ => return blocks,
            }
        }
    }

    /// Cuts off whole blocks that no checkpoint and no sequence needs, from a node upwards; returns what held them.
    pub(crate) fn prune(&mut self, id: NodeId) -> Vec<Stored<BlockId>> {
        let mut freed = Vec::new();
        let mut at = id;
        loop {
            let node = self.node(at);
            if node.locks > 0 || !node.children.is_empty() {
                return freed;
            }
            if let Some(key) = &node.key {
                if node.checkpoints.is_empty() {
                    self.roots.remove(&key.clone());
                    self.nodes[at as usize] = None;
                    self.spare_nodes.push(at);
                }
                return freed;
            }
            let keep = node
                .checkpoints
                .last()
                .map_or(0, |last| (self.checkpoint(*last).position / self.block_size).saturating_sub(node.start));
            let block_size = self.block_size;
            let node = self.node_mut(at);
            freed.extend(node.blocks.drain(keep..));
            if keep > 0 {
                node.tokens.truncate(keep * block_size);
                return freed;
            }
            let (parent, first): (_, Box<[TokenId]>) = (node.parent, node.tokens[..block_size].into());
            self.nodes[at as usize] = None;
            self.spare_nodes.push(at);
            let Some(parent) = parent else { return freed };
            self.node_mut(parent).children.remove(&first, at);
            at = parent;
        }
    }

    /// Takes a node and everything below it out of reach; what is not locked is freed by pruning its leaves.
    pub(crate) fn detach(&mut self, id: NodeId) -> Vec<NodeId> {
        if let Some(parent) = self.node_mut(id).parent.take() {
            let first: Box<[TokenId]> = self.node(id).tokens[..self.block_size].into();
            self.node_mut(parent).children.remove(&first, id);
        }
        let mut all = vec![id];
        let mut next = 0;
        while next < all.len() {
            let node = self.node_mut(all[next]);
            node.detached = true;
            all.extend(node.children.iter());
            next += 1;
        }
        all
    }

    /// Takes the locks that a node's sequences hold on those above it away; returns those that nobody locks any more.
    pub(crate) fn release_above(&mut self, id: NodeId) -> Vec<NodeId> {
        match self.node(id).locks {
            0 => Vec::new(),
            locks => self.give_back(self.node(id).parent, locks),
        }
    }

    /// Locks the path from a node up to the root; returns the nodes that were not locked before.
    pub(crate) fn lock(&mut self, id: NodeId) -> Vec<NodeId> {
        let mut newly = Vec::new();
        let mut at = Some(id);
        while let Some(id) = at {
            let node = self.node_mut(id);
            node.locks += 1;
            if node.locks == 1 {
                newly.push(id);
            }
            at = node.parent;
        }
        newly
    }

    /// Gives one lock of a path back; returns the nodes that nobody locks any more, deepest first.
    pub(crate) fn unlock(&mut self, id: NodeId) -> Vec<NodeId> {
        self.give_back(Some(id), 1)
    }

    /// Gives `locks` locks back, at least 1, from a node up to the root; returns those that nobody locks any more.
    fn give_back(&mut self, mut at: Option<NodeId>, locks: u32) -> Vec<NodeId> {
        let mut freed = Vec::new();
        while let Some(id) = at {
            let node = self.node_mut(id);
            node.locks -= locks;
            if node.locks == 0 {
                freed.push(id);
            }
            at = node.parent;
        }
        freed
    }

    /// Whose a node's prefixes are, and all tokens of a checkpoint; `None` for what was detached.
    pub(crate) fn prefix(&self, id: CheckpointId) -> Option<(CacheKey, Vec<TokenId>)> {
        let checkpoint = self.checkpoint(id);
        let path = self.path(checkpoint.node);
        let key = self.node(*path.first()?).key.clone()?;
        let mut tokens: Vec<TokenId> = path.iter().flat_map(|node| &self.node(*node).tokens).copied().collect();
        // A node may go on after its checkpoint.
        tokens.truncate(checkpoint.position / self.block_size * self.block_size);
        tokens.extend_from_slice(&checkpoint.tail);
        Some((key, tokens))
    }

    /// The path to a node, root first.
    pub(crate) fn path(&self, id: NodeId) -> Vec<NodeId> {
        let mut path: Vec<NodeId> = std::iter::successors(Some(id), |id| self.node(*id).parent).collect();
        path.reverse();
        path
    }

    fn add_node(&mut self, node: Node) -> NodeId {
        match self.spare_nodes.pop() {
            Some(id) => {
                self.nodes[id as usize] = Some(node);
                id
            }
            None => {
                self.nodes.push(Some(node));
                self.nodes.len() as NodeId - 1
            }
        }
    }
}
