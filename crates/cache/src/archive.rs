//! Between memory and disk: what gives way in memory is written, and what was read comes back as if it had been computed.
//!
//! Bytes pass through host memory under ids of their own, outside of its budget: to disk as `Save`, `Archive`, `Forget`,
//! from disk as `Load`, `Forget` of what the caller has read and found whole. So a sequence never starts from bytes that
//! nobody has checked.

use perilune_tensor::TokenId;

use crate::disk::{DiskConfig, DiskIndex, NoRoom, Wanted};
use crate::tree::{CheckpointId, NodeId, Stored};
use crate::value::Value;
use crate::{
    ArenaShape, BlockId, CacheKey, CacheManager, CacheOp, HostId, Record, RecordId, SlotId, UnitKind, WriteFault,
};

/// What is to be read from disk before a sequence starts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DiskRead {
    /// Tokens of the prefix.
    pub position: usize,
    /// The records that memory lacks, in order of the prefix: blocks, then the tail where there is one, then the state.
    pub records: Vec<RecordId>,
}

impl CacheManager {
    /// Adds a disk tier that holds `found` already.
    pub fn attach_disk(&mut self, config: DiskConfig, found: Vec<Record>) {
        let kept = ArenaShape { slot_len: self.kept_slot_len, ..self.arena.shape() };
        let mut disk = DiskIndex::new(config, (kept, self.block_size));
        disk.take_over(found);
        self.disk = Some(disk);
    }

    /// What a record is; `None` where it has been removed.
    pub fn record(&self, id: RecordId) -> Option<&Record> {
        self.disk.as_ref()?.record(id)
    }

    /// Records whose files are to be removed, since the last call.
    pub fn take_removed_records(&mut self) -> Vec<RecordId> {
        self.disk.as_mut().map_or_else(Vec::new, DiskIndex::take_removed)
    }

    /// A record is on disk.
    pub fn record_written(&mut self, id: RecordId) {
        if let Some(disk) = &mut self.disk {
            disk.written(id);
        }
    }

    /// A record could not be written. Where the disk is full, what is there now is all that may be there until the next
    /// flush, so that what is worth more takes the place of what is worth less.
    pub fn record_not_written(&mut self, id: RecordId, fault: WriteFault) {
        let Some(disk) = &mut self.disk else { return };
        self.stats.disk_skips += u64::from(disk.lose(id));
        if fault == WriteFault::Full {
            disk.limit_to_used();
        }
    }

    /// A record could not be read, or was not what it should be.
    pub fn record_lost(&mut self, id: RecordId) {
        if self.disk.as_mut().is_some_and(|disk| disk.lose(id)) {
            self.stats.disk_losses += 1;
        }
    }

    /// What to read from disk for a sequence with these tokens, where that takes it further than memory does by at least a
    /// block.
    pub fn wanted_from_disk(&self, key: &CacheKey, tokens: &[TokenId], limit: usize) -> Option<DiskRead> {
        let found = self.disk.as_ref()?.lookup(key, tokens, limit)?;
        // What is in memory only: [`CacheManager::lookup`] knows of the disk as well.
        let here = self.lookup_memory(key, tokens, limit).found;
        let whole = found.position / self.block_size;
        let have = (here.agreeing / self.block_size).min(whole);
        let (shape, missing) = (self.arena.shape(), found.records.len() - 1 - have);
        let fits = 2 * shape.slot_len + (missing + 1) * shape.block_len <= shape.len;
        let worth = found.position >= here.cached + self.block_size;
        (worth && fits).then(|| DiskRead { position: found.position, records: found.records[have..].to_vec() })
    }

    /// Stores a prefix whose missing units were read, on the device. Returns under which id of host memory the caller is to
    /// put each of them before the next operations are performed; nothing where there is no room, or no need any more.
    pub fn adopt(&mut self, key: &CacheKey, prefix: &[TokenId], read: &DiskRead) -> Vec<(RecordId, HostId)> {
        self.take_returns();
        if self.lookup_memory(key, prefix, prefix.len()).found.cached == prefix.len() {
            return Vec::new();
        }
        let root = self.tree.root(key);
        let whole = prefix.len() / self.block_size;
        let (mut at, mut known) = (root, 0);
        while known < whole {
            let rest = &prefix[known * self.block_size..whole * self.block_size];
            let Some((child, agreeing)) = self.tree.child(at, rest) else { break };
            at = self.tree.split(child, known + agreeing);
            known += agreeing;
        }
        self.lock(at);
        let tail = !prefix.len().is_multiple_of(self.block_size);
        let needed = whole - known + usize::from(tail) + 1;
        let lent = (needed <= read.records.len()).then(|| self.lend_units(whole - known, usize::from(tail))).flatten();
        let staged = match lent {
            Some((blocks, tail, slot)) => {
                let records = &read.records[read.records.len() - needed..];
                self.add_read((at, known), prefix, (blocks, tail, slot), records)
            }
            None => Vec::new(),
        };
        self.unlock(at);
        staged
    }

    /// Some blocks, a block for a tail where there is one, and a slot: all of them or nothing.
    fn lend_units(&mut self, blocks: usize, tails: usize) -> Option<(Vec<BlockId>, Option<BlockId>, SlotId)> {
        let mut lent: Vec<BlockId> = Vec::with_capacity(blocks + tails);
        lent.extend((0..blocks + tails).map_while(|_| self.lend_block(None)));
        let all = lent.len() == blocks + tails;
        // Last, so that it is not moved before there is anything in it.
        let Some(slot) = all.then(|| self.lend_slot(None).ok()).flatten() else {
            lent.into_iter().for_each(|block| self.arena.free_block(block));
            return None;
        };
        let tail = lent.split_off(blocks).pop();
        Some((lent, tail, slot))
    }

    /// Puts units that are read into the tree, and queues their way to the device.
    fn add_read(
        &mut self,
        (at, known): (NodeId, usize),
        prefix: &[TokenId],
        (blocks, tail, slot): (Vec<BlockId>, Option<BlockId>, SlotId),
        records: &[RecordId],
    ) -> Vec<(RecordId, HostId)> {
        let units = blocks.iter().chain(&tail).map(|block| (UnitKind::Block, self.block_place_of(*block)));
        let places: Vec<_> = units.chain([(UnitKind::Slot, self.place_of(slot))]).collect();
        let mut staged = Vec::with_capacity(records.len());
        for (record, (kind, to)) in records.iter().zip(places) {
            let from = self.host.pass_through();
            self.ops.extend([CacheOp::Load { kind, from, to }, CacheOp::Forget(from)]);
            staged.push((*record, from));
        }
        let whole = prefix.len() / self.block_size;
        let mut node = at;
        if !blocks.is_empty() {
            self.idle_blocks += blocks.len();
            let tokens = &prefix[known * self.block_size..whole * self.block_size];
            node = self.tree.add_child(at, tokens, blocks.into_iter().map(Stored::Device).collect());
        }
        let Some(id) = self.add_checkpoint(node, prefix, (slot, tail)) else { return staged };
        self.stats.disk_restores += 1;
        if let (Some(disk), Some(state)) = (&mut self.disk, records.last()) {
            disk.touch(*state, self.clock);
            self.tree.checkpoint_mut(id).starts = disk.record(*state).map_or(0, |record| record.starts);
        }
        staged
    }

    /// Queues stored prefixes to be written, most valuable first, as many as may be on their way at once. Returns whether
    /// there were any that are not on disk.
    pub fn archive_stored(&mut self) -> bool {
        self.take_returns();
        let mut all: Vec<(Value, CheckpointId)> = Vec::new();
        for id in self.on_device.items().iter().chain(self.on_host.items()) {
            all.push((self.value_of(*id), *id));
        }
        all.sort_by(|(a, _), (b, _)| b.total_cmp(a));
        let before = self.stats.disk_writes;
        for (value, id) in all {
            // What does not fit now may fit when some of it is written.
            let _ = self.try_archive(id, value);
        }
        self.stats.disk_writes > before
    }

    /// Queues a checkpoint and its path to be written, as far as they are not on disk.
    pub(crate) fn archive(&mut self, id: CheckpointId, value: Value) {
        self.stats.disk_skips += u64::from(self.try_archive(id, value).is_err());
    }

    /// The same; an error where there is no room.
    fn try_archive(&mut self, id: CheckpointId, value: Value) -> Result<(), NoRoom> {
        let Some(disk) = &mut self.disk else { return Ok(()) };
        let checkpoint = self.tree.checkpoint(id);
        let Some((key, tokens)) = self.tree.prefix(id) else { return Ok(()) };
        let (starts, clock) = (checkpoint.starts, self.clock);
        let Some(booked) = disk.book(&Wanted { key: &key, tokens: &tokens, starts, clock, value })? else {
            return Ok(());
        };
        self.stats.disk_writes += 1;
        let path = self.tree.path(checkpoint.node);
        let blocks = path.iter().flat_map(|node| &self.tree.node(*node).blocks).take(tokens.len() / self.block_size);
        let mut units: Vec<(UnitKind, Result<HostId, crate::Place>)> = Vec::new();
        for block in blocks.copied().chain(checkpoint.tail_block) {
            units.push((
                UnitKind::Block,
                match block {
                    Stored::Device(block) => Err(self.block_place_of(block)),
                    Stored::Host(id) => Ok(id),
                },
            ));
        }
        units.push((
            UnitKind::Slot,
            match checkpoint.state {
                Stored::Device(slot) => Err(self.place_of(slot)),
                Stored::Host(id) => Ok(id),
            },
        ));
        let missing = units.len() - booked.len();
        for ((kind, unit), to) in units.into_iter().skip(missing).zip(booked) {
            match unit {
                Ok(from) => self.ops.push(CacheOp::Archive { from, to }),
                Err(from) => {
                    let id = self.host.pass_through();
                    let save = CacheOp::Save { kind, from, to: id };
                    self.ops.extend([save, CacheOp::Archive { from: id, to }, CacheOp::Forget(id)]);
                }
            }
        }
        Ok(())
    }
}
