//! What sequences leave for others: whole blocks go to the tree, states become checkpoints, and what is not to be trusted
//! is not found any more.

use perilune_tensor::TokenId;

use crate::sequence::SequenceCache;
use crate::tree::{Checkpoint, CheckpointId, NodeId, Stored};
use crate::value::{Seen, Value};
use crate::walk::common_prefix;
use crate::{BlockId, CacheKey, CacheManager, CacheOp, Prefixes, SlotId, UnitKind};

impl CacheManager {
    /// A slot for a copy of a state that would save `tokens` tokens, if it can be had without giving up what is worth
    /// more.
    pub fn spare_slot(&mut self, tokens: usize) -> Option<SlotId> {
        if self.prefixes == Prefixes::Forget {
            return None;
        }
        // The blocks before it stay for the state that the sequence leaves at its end.
        let value = Value::new((tokens, Seen::NEW), self.arena.shape().slot_len);
        self.lend_slot(Some(value)).ok()
    }

    /// Gives back a slot that [`CacheManager::spare_slot`] lent and nobody wants.
    pub fn return_slot(&mut self, slot: SlotId) {
        self.arena.free_slot(slot);
    }

    /// Stores a running sequence's first tokens with their state, which is (or, once the step planned now has run, will
    /// be) in `slot`. Whole blocks go to the tree and are shared from now on; the sequence goes on.
    pub fn store(&mut self, cache: &mut SequenceCache, key: &CacheKey, tokens: &[TokenId], slot: SlotId) {
        self.take_returns();
        if !self.share(cache, key, tokens) {
            return self.arena.free_slot(slot);
        }
        let tail = tokens.len() % self.block_size;
        let tail_block = if tail == 0 {
            None
        } else {
            // The sequence goes on writing behind these rows; what is stored needs a block of its own.
            let Some(own) = self.lend_block(None) else { return self.arena.free_slot(slot) };
            let Some(source) = cache.blocks().get(tokens.len() / self.block_size).copied() else {
                self.arena.free_block(own);
                return self.arena.free_slot(slot);
            };
            let (from, to) = (self.block_place_of(source), self.block_place_of(own));
            self.ops.push(CacheOp::Copy { kind: UnitKind::Block, from, to });
            Some(own)
        };
        let stored = self.add_checkpoint(cache.held().node, tokens, (slot, tail_block));
        self.stats.checkpoints_stored += u64::from(stored.is_some());
    }

    /// Ends a sequence whose computed tokens these are, and keeps what it computed: nothing is copied.
    pub fn donate(&mut self, mut cache: SequenceCache, key: &CacheKey, tokens: &[TokenId]) {
        self.take_returns();
        if self.prefixes == Prefixes::Forget || tokens.is_empty() || !self.share(&mut cache, key, tokens) {
            return drop(cache);
        }
        let Some(mut held) = cache.held.take() else { return };
        let whole = tokens.len() / self.block_size;
        let tail = !tokens.len().is_multiple_of(self.block_size);
        let tail_block = (tail && held.table.len() > whole).then(|| held.table.remove(whole));
        if tail && tail_block.is_none() {
            return self.release(held);
        }
        let stored = self.add_checkpoint(held.node, tokens, (held.slot, tail_block));
        self.stats.checkpoints_stored += u64::from(stored.is_some());
        for block in held.table.split_off(whole) {
            self.arena.free_block(block);
        }
        self.unlock(held.node);
    }

    /// Ends a sequence whose results are not to be trusted: what it stored is not found any more.
    pub fn discard(&mut self, cache: SequenceCache, key: &CacheKey, stored: &[TokenId]) {
        self.take_returns();
        drop(cache);
        self.take_returns();
        if let Some(disk) = &mut self.disk {
            disk.discard(key, stored);
        }
        let root = self.tree.root(key);
        // Short prefixes hang on the root itself.
        for id in self.tree.node(root).checkpoints.clone() {
            let checkpoint = self.tree.checkpoint(id);
            if common_prefix(&checkpoint.tail, stored) == checkpoint.tail.len() {
                self.drop_checkpoint(id);
            }
        }
        let child = self.tree.contains(root).then(|| self.tree.child(root, stored)).flatten();
        match child {
            Some((child, _)) => self.detach(child),
            None if self.tree.contains(root) => self.prune(root),
            None => {}
        }
    }

    /// Forgets every stored prefix, on disk as well; running sequences keep what they hold.
    pub fn flush(&mut self) {
        self.take_returns();
        if let Some(disk) = &mut self.disk {
            disk.clear();
        }
        let roots: Vec<NodeId> = self.tree.roots().map(|(_, id)| id).collect();
        for root in roots {
            let children: Vec<NodeId> = self.tree.node(root).children.iter().collect();
            children.into_iter().for_each(|child| self.detach(child));
            if self.tree.contains(root) {
                self.tree.node(root).checkpoints.clone().into_iter().for_each(|id| self.drop_checkpoint(id));
            }
            if self.tree.contains(root) {
                self.prune(root);
            }
        }
    }

    /// Takes a node and what is below it out of reach. Sequences that use it keep it until they end; those above it are
    /// not theirs to hold any more.
    fn detach(&mut self, node: NodeId) {
        let above = self.tree.node(node).parent;
        for node in self.tree.release_above(node) {
            self.idle_blocks += self.device_blocks(node);
        }
        let all = self.tree.detach(node);
        for node in &all {
            self.tree.node(*node).checkpoints.clone().into_iter().for_each(|id| self.drop_checkpoint(id));
        }
        // Pruning a leaf may have freed those above it.
        for node in all.into_iter().rev().chain(above) {
            if self.tree.contains(node) {
                self.prune(node);
            }
        }
    }

    /// Moves a sequence's own whole blocks under `tokens` into the tree, or takes those that are there already; its lock
    /// moves along. False where nothing is to be stored.
    fn share(&mut self, cache: &mut SequenceCache, key: &CacheKey, tokens: &[TokenId]) -> bool {
        let whole = tokens.len() / self.block_size;
        let held = cache.held_mut();
        let (from, mut shared) = (held.node, held.shared);
        if self.tree.node(from).detached || held.table.len() < whole {
            return false;
        }
        // The lock may be that of an empty path under another key's root only if the caller mixes keys up.
        if shared == 0 && self.tree.root(key) != from {
            return false;
        }
        if shared >= whole {
            return shared == whole;
        }
        let mut at = from;
        while shared < whole {
            let rest = &tokens[shared * self.block_size..whole * self.block_size];
            match self.tree.child(at, rest) {
                Some((child, agreeing)) => {
                    at = self.tree.split(child, shared + agreeing);
                    self.take_shared(&mut held.table, at);
                    shared += agreeing;
                }
                None => {
                    let blocks = held.table[shared..whole].iter().map(|block| Stored::Device(*block)).collect();
                    at = self.tree.add_child(at, rest, blocks);
                    self.idle_blocks += whole - shared;
                    shared = whole;
                }
            }
        }
        (held.node, held.shared) = (at, whole);
        self.lock(at);
        self.unlock(from);
        true
    }

    /// A node that a sequence has computed, too: the sequence uses the stored blocks and gives its own back. A block that
    /// is only in host memory is replaced by the sequence's own.
    fn take_shared(&mut self, table: &mut [BlockId], node: NodeId) {
        let (start, len) = (self.tree.node(node).start, self.tree.node(node).blocks.len());
        let locked = self.tree.node(node).locks > 0;
        for i in 0..len {
            let own = table[start + i];
            match self.tree.node(node).blocks[i] {
                Stored::Device(stored) => {
                    if stored != own {
                        self.arena.free_block(own);
                    }
                    table[start + i] = stored;
                }
                Stored::Host(id) => {
                    self.tree.node_mut(node).blocks[i] = Stored::Device(own);
                    self.idle_blocks += usize::from(!locked);
                    self.forget(UnitKind::Block, id);
                }
            }
        }
    }

    /// Stores a state, unless there is one at that place: its units are given back then.
    pub(crate) fn add_checkpoint(
        &mut self,
        node: NodeId,
        tokens: &[TokenId],
        (slot, tail_block): (SlotId, Option<BlockId>),
    ) -> Option<CheckpointId> {
        let tail = &tokens[tokens.len() / self.block_size * self.block_size..];
        if let Some(known) = self.tree.find_checkpoint(node, (tokens.len(), tail)) {
            if self.is_whole(self.tree.checkpoint(known)) {
                self.arena.free_slot(slot);
                tail_block.into_iter().for_each(|block| self.arena.free_block(block));
                return None;
            }
            self.drop_checkpoint(known);
        }
        self.stored_slots += 1;
        self.idle_blocks += usize::from(tail_block.is_some());
        let id = self.tree.add_checkpoint(Checkpoint {
            node,
            position: tokens.len(),
            tail: tail.into(),
            tail_block: tail_block.map(Stored::Device),
            state: Stored::Device(slot),
            starts: 0,
            last_use: self.clock,
        });
        self.shelve(id);
        Some(id)
    }
}
