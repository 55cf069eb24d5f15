//! How a sequence starts from a stored prefix: a state of its own, copied; blocks shared; nothing written that others
//! read.

use crate::manager::Opened;
use crate::sequence::Held;
use crate::tree::{CheckpointId, NodeId, Stored};
use crate::{BlockId, CacheManager, CacheOp, SlotId, UnitKind};

impl CacheManager {
    /// A sequence that goes on from a checkpoint: its path locked, its state copied to a slot of the sequence's own.
    /// `None` where there is not enough room for that.
    pub(crate) fn restore(&mut self, id: CheckpointId) -> Option<Opened> {
        let (node, position) = (self.tree.checkpoint(id).node, self.tree.checkpoint(id).position);
        let shared = position / self.block_size;
        let node = if shared == 0 { node } else { self.tree.split(node, shared) };
        self.lock(node);
        // Taken off the shelf, so that making room does not evict it.
        self.unshelve(id);
        let copied = self.bring_back(node).then(|| self.copy_of(id)).flatten();
        let (slot, tail) = match copied {
            Some(own) => {
                let clock = self.clock;
                let checkpoint = self.tree.checkpoint_mut(id);
                (checkpoint.starts, checkpoint.last_use) = (checkpoint.starts + 1, clock);
                self.shelve(id);
                own
            }
            None => match self.take_over(id, node) {
                Some(own) => own,
                None => {
                    self.shelve(id);
                    self.unlock(node);
                    return None;
                }
            },
        };
        let blocks = self.tree.path(node).into_iter().flat_map(|node| &self.tree.node(node).blocks);
        let on_device = blocks.filter_map(|block| match block {
            Stored::Device(block) => Some(*block),
            Stored::Host(_) => None,
        });
        let table = on_device.chain(tail).collect();
        Some(self.opened(Held { slot, node, shared, table }, position))
    }

    /// A slot and, where the checkpoint has a tail, a block, with what it saved.
    fn copy_of(&mut self, id: CheckpointId) -> Option<(SlotId, Option<BlockId>)> {
        let own = match self.tree.checkpoint(id).tail_block {
            Some(_) => Some(self.lend_block(None)?),
            None => None,
        };
        // Last, so that it is not moved before there is anything in it.
        let Ok(slot) = self.lend_slot(None) else {
            own.into_iter().for_each(|block| self.arena.free_block(block));
            return None;
        };
        // Places are asked for only now: making room may have moved units.
        let block = |block: BlockId| self.block_place_of(block);
        let mut ops = Vec::new();
        if let (Some(to), Some(tail)) = (own, self.tree.checkpoint(id).tail_block) {
            let (kind, to) = (UnitKind::Block, block(to));
            ops.push(match tail {
                Stored::Device(from) => CacheOp::Copy { kind, from: block(from), to },
                Stored::Host(from) => CacheOp::Load { kind, from, to },
            });
        }
        let (kind, to) = (UnitKind::Slot, self.place_of(slot));
        ops.push(match self.tree.checkpoint(id).state {
            Stored::Device(from) => CacheOp::Copy { kind, from: self.place_of(from), to },
            Stored::Host(from) => CacheOp::Load { kind, from, to },
        });
        self.ops.extend(ops);
        Some((slot, own))
    }

    /// Where memory is too short for a copy, the sequence takes the saved state itself, which is then not stored any more.
    fn take_over(&mut self, id: CheckpointId, node: NodeId) -> Option<(SlotId, Option<BlockId>)> {
        if self.tree.path(node).into_iter().any(|node| self.device_blocks(node) < self.tree.node(node).blocks.len()) {
            return None;
        }
        let checkpoint = self.tree.checkpoint(id);
        let Stored::Device(slot) = checkpoint.state else { return None };
        let tail = match checkpoint.tail_block {
            None => None,
            Some(Stored::Device(block)) => Some(block),
            Some(Stored::Host(_)) => return None,
        };
        self.tree.remove_checkpoint(id);
        self.stored_slots -= 1;
        self.idle_blocks -= usize::from(tail.is_some());
        Some((slot, tail))
    }

    /// Blocks of a path that are in host memory come back to the device.
    fn bring_back(&mut self, node: NodeId) -> bool {
        for node in self.tree.path(node) {
            for i in 0..self.tree.node(node).blocks.len() {
                let Stored::Host(from) = self.tree.node(node).blocks[i] else { continue };
                let Some(block) = self.lend_block(None) else { return false };
                let to = self.block_place_of(block);
                self.ops.push(CacheOp::Load { kind: UnitKind::Block, from, to });
                self.tree.node_mut(node).blocks[i] = Stored::Device(block);
                self.forget(UnitKind::Block, from);
                self.stats.promoted_blocks += 1;
            }
        }
        true
    }
}
