//! Who gives way: checkpoints in the order of their value per length, each with the blocks that only it kept.
//!
//! From the device they go to host memory while its budget holds them, or holds something worth less; from there to disk,
//! where there is such a tier, or for good. Blocks without a checkpoint at or below them serve nobody and go at once.

use crate::tree::{CheckpointId, NodeId, Stored};
use crate::value::{Seen, Value};
use crate::{BlockId, CacheError, CacheManager, CacheOp, HostId, SlotId, UnitKind};

impl CacheManager {
    /// Lends a slot, evicting what is worth less than `below` (`None`: whatever it takes).
    pub(crate) fn lend_slot(&mut self, below: Option<Value>) -> Result<SlotId, CacheError> {
        loop {
            if let Some(slot) = self.arena.lend_slot() {
                return Ok(slot);
            }
            if !self.make_room(UnitKind::Slot) && !self.evict_one(below) {
                return Err(CacheError::OutOfSlots { total: self.arena.shape().max_slots() });
            }
        }
    }

    /// Lends a block, as [`CacheManager::lend_slot`].
    pub(crate) fn lend_block(&mut self, below: Option<Value>) -> Option<BlockId> {
        loop {
            if let Some(block) = self.arena.lend_block() {
                return Some(block);
            }
            if !self.make_room(UnitKind::Block) && !self.evict_one(below) {
                return None;
            }
        }
    }

    /// Moves units so that one more of a kind fits; false where moving does not help.
    fn make_room(&mut self, kind: UnitKind) -> bool {
        let moves = self.arena.make_room(kind);
        self.stats.moves += moves.len() as u64;
        self.ops.extend(moves.iter().map(|m| CacheOp::Copy { kind: m.kind, from: m.from, to: m.to }));
        self.arena.free_now(kind) > 0
    }

    /// Evicts the checkpoint that is worth least; false where there is none, or none that is worth little enough.
    fn evict_one(&mut self, below: Option<Value>) -> bool {
        if let Some((value, id)) = self.least_on_device() {
            if below.is_some_and(|below| value >= below) {
                return false;
            }
            self.on_device.remove(id);
            self.stats.evictions += 1;
            if self.demote(id, value) {
                self.stats.demotions += 1;
            } else {
                self.give_up(id, value);
            }
            return true;
        }
        // Blocks here whose checkpoints are all in host memory. Without such blocks nothing would be had from giving up what
        // is there.
        self.idle_blocks > 0 && self.evict_blocks_of_host(below)
    }

    /// Brings blocks to where their checkpoints are, in host memory; where it has no room for them, the checkpoint that is
    /// worth least goes. False where none is worth little enough.
    fn evict_blocks_of_host(&mut self, below: Option<Value>) -> bool {
        let keeping = self.on_host.items().iter().filter(|id| self.keeps_idle_blocks(**id));
        let mut keeping: Vec<_> = keeping.map(|id| (self.value_of(*id), *id)).collect();
        keeping.retain(|(value, _)| below.is_none_or(|below| *value < below));
        keeping.sort_by(|(a, _), (b, _)| a.total_cmp(b));
        let (idle, changes) = (self.idle_blocks, self.tree.changes);
        for (value, id) in &keeping {
            self.demote_blocks(self.tree.checkpoint(*id).node, *value);
            // Making room there may have dropped any of them.
            if self.idle_blocks < idle || self.tree.changes != changes {
                return true;
            }
        }
        let Some((value, id)) = keeping.first().copied() else { return false };
        self.on_host.remove(id);
        self.stats.host_evictions += 1;
        self.give_up(id, value);
        true
    }

    fn keeps_idle_blocks(&self, id: CheckpointId) -> bool {
        let up = std::iter::successors(Some(self.tree.checkpoint(id).node), |node| self.tree.node(*node).parent);
        let mut idle = up.filter(|node| self.tree.node(*node).locks == 0);
        idle.any(|node| self.device_blocks(node) > 0)
    }

    fn least_on_device(&mut self) -> Option<(Value, CheckpointId)> {
        let mut shelf = std::mem::take(&mut self.on_device);
        let least = shelf.least(|id| self.value_of(id));
        self.on_device = shelf;
        least
    }

    fn least_on_host(&mut self) -> Option<(Value, CheckpointId)> {
        let mut shelf = std::mem::take(&mut self.on_host);
        let least = shelf.least(|id| self.value_of(id));
        self.on_host = shelf;
        least
    }

    /// Saves a checkpoint in host memory, and the blocks that nothing on the device needs without it.
    fn demote(&mut self, id: CheckpointId, value: Value) -> bool {
        let shape = self.arena.shape();
        let tail = self.tree.checkpoint(id).tail_block.is_some();
        let own = self.kept_slot_len + usize::from(tail) * shape.block_len;
        if !self.make_host_room(own, value) {
            return false;
        }
        if let Stored::Device(slot) = self.tree.checkpoint(id).state {
            let to = self.host.book(self.kept_slot_len);
            let from = self.place_of(slot);
            self.ops.push(CacheOp::Save { kind: UnitKind::Slot, from, to });
            self.arena.free_slot(slot);
            self.stored_slots -= 1;
            self.tree.checkpoint_mut(id).state = Stored::Host(to);
        }
        if let Some(Stored::Device(block)) = self.tree.checkpoint(id).tail_block {
            let to = self.save_block(block);
            self.tree.checkpoint_mut(id).tail_block = Some(Stored::Host(to));
        }
        self.on_host.insert(id);
        let node = self.tree.checkpoint(id).node;
        self.demote_blocks(node, value);
        true
    }

    /// Saves blocks that no checkpoint on the device and no sequence needs, from the end of a node upwards.
    fn demote_blocks(&mut self, node: NodeId, value: Value) {
        let mut at = Some(node);
        while let Some(node) = at {
            let keep = self.needed_on_device(node);
            for i in (keep..self.tree.node(node).blocks.len()).rev() {
                let Stored::Device(block) = self.tree.node(node).blocks[i] else { continue };
                if !self.make_host_room(self.arena.shape().block_len, value) {
                    return;
                }
                // Room may have been made by dropping what this very node kept.
                if !self.tree.contains(node) || self.tree.node(node).blocks.len() <= i {
                    return;
                }
                let to = self.save_block(block);
                self.tree.node_mut(node).blocks[i] = Stored::Host(to);
            }
            at = self.tree.node(node).parent.filter(|_| keep == 0);
        }
    }

    /// How many blocks of a node must stay: for a sequence, for a child with blocks here, for a state here.
    fn needed_on_device(&self, id: NodeId) -> usize {
        let node = self.tree.node(id);
        let child = |id: NodeId| matches!(self.tree.node(id).blocks.first(), Some(Stored::Device(_)));
        if node.locks > 0 || node.children.iter().any(child) {
            return node.blocks.len();
        }
        let here = |id: &&CheckpointId| matches!(self.tree.checkpoint(**id).state, Stored::Device(_));
        let last = node.checkpoints.iter().rev().find(here);
        last.map_or(0, |id| (self.tree.checkpoint(*id).position / self.block_size()).saturating_sub(node.start))
    }

    fn save_block(&mut self, block: BlockId) -> HostId {
        let to = self.host.book(self.arena.shape().block_len);
        let from = self.block_place_of(block);
        self.ops.push(CacheOp::Save { kind: UnitKind::Block, from, to });
        self.arena.free_block(block);
        self.idle_blocks -= 1;
        to
    }

    /// Drops what is worth less from host memory until `len` fits.
    fn make_host_room(&mut self, len: usize, value: Value) -> bool {
        if len > self.host.budget() {
            return false;
        }
        while !self.host.has_room(len) {
            match self.least_on_host() {
                Some((least, id)) if least < value => {
                    self.on_host.remove(id);
                    self.stats.host_evictions += 1;
                    self.give_up(id, least);
                }
                _ => return false,
            }
        }
        true
    }

    /// The last that memory sees of a checkpoint: it goes to disk, where there is one.
    fn give_up(&mut self, id: CheckpointId, value: Value) {
        self.archive(id, value);
        self.drop_unshelved(id);
    }

    /// Removes a checkpoint, and the blocks that it alone kept.
    pub(crate) fn drop_checkpoint(&mut self, id: CheckpointId) {
        self.unshelve(id);
        self.drop_unshelved(id);
    }

    fn drop_unshelved(&mut self, id: CheckpointId) {
        let checkpoint = self.tree.remove_checkpoint(id);
        match checkpoint.state {
            Stored::Device(slot) => {
                self.arena.free_slot(slot);
                self.stored_slots -= 1;
            }
            Stored::Host(host) => self.forget(UnitKind::Slot, host),
        }
        if let Some(block) = checkpoint.tail_block {
            self.free_stored(block);
        }
        self.prune(checkpoint.node);
    }

    /// Frees blocks from a node upwards that nobody needs any more.
    pub(crate) fn prune(&mut self, node: NodeId) {
        for block in self.tree.prune(node) {
            self.free_stored(block);
        }
    }

    fn free_stored(&mut self, block: Stored<BlockId>) {
        match block {
            Stored::Device(block) => {
                self.arena.free_block(block);
                self.idle_blocks -= 1;
            }
            Stored::Host(host) => self.forget(UnitKind::Block, host),
        }
    }

    /// Puts a checkpoint on the shelf of where its state is.
    pub(crate) fn shelve(&mut self, id: CheckpointId) {
        match self.tree.checkpoint(id).state {
            Stored::Device(_) => self.on_device.insert(id),
            Stored::Host(_) => self.on_host.insert(id),
        }
    }

    /// Takes a checkpoint off its shelf.
    pub(crate) fn unshelve(&mut self, id: CheckpointId) {
        match self.tree.checkpoint(id).state {
            Stored::Device(_) => self.on_device.remove(id),
            Stored::Host(_) => self.on_host.remove(id),
        }
    }

    pub(crate) fn value_of(&self, id: CheckpointId) -> Value {
        let (shape, checkpoint) = (self.arena.shape(), self.tree.checkpoint(id));
        let len = shape.slot_len + self.tree.exclusive_blocks(id) * shape.block_len;
        let age = self.clock - checkpoint.last_use;
        let seen = Seen { starts: checkpoint.starts, age, passed: self.tree.is_passed(id) };
        Value::new((self.tree.saved_tokens(id), seen), len)
    }
}
