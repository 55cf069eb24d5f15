//! A device, a host and a disk that remember what was written where, and the random sequences that use them.
#![allow(dead_code)] // each test uses a part

use std::collections::{HashMap, HashSet};

use perilune_cache::{
    ArenaShape, CacheConfig, CacheKey, CacheManager, CacheOp, DiskConfig, HostId, Place, Prefixes, Record, RecordId,
    RecordKind, SequenceCache, SlotId, UnitKind, WriteFault,
};
use perilune_tensor::TokenId;

use crate::random::Random;

pub(crate) const BLOCK: usize = 4;

/// Contents of a unit: of a slot all tokens of its state, of a block the token in each row.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Contents {
    State(Vec<TokenId>),
    Rows(Vec<Option<TokenId>>),
}

pub(crate) struct Sequence {
    pub(crate) cache: SequenceCache,
    pub(crate) key: CacheKey,
    pub(crate) tokens: Vec<TokenId>,
    pub(crate) computed: usize,
}

/// A device that remembers what was written where.
pub(crate) struct World {
    pub(crate) cache: CacheManager,
    pub(crate) slots: HashMap<Place, Vec<TokenId>>,
    pub(crate) blocks: HashMap<Place, Vec<Option<TokenId>>>,
    pub(crate) host: HashMap<HostId, Contents>,
    pub(crate) running: Vec<Sequence>,
    pub(crate) disk: HashMap<RecordId, (Record, Contents)>,
    /// Writes that have not ended.
    pub(crate) writing: Vec<RecordId>,
}

impl World {
    pub(crate) fn new(config: CacheConfig) -> Self {
        World {
            cache: CacheManager::new(config),
            slots: HashMap::new(),
            blocks: HashMap::new(),
            host: HashMap::new(),
            running: Vec::new(),
            disk: HashMap::new(),
            writing: Vec::new(),
        }
    }

    pub(crate) fn perform(&mut self) {
        let ops = self.cache.take_ops();
        let archived = |op: &CacheOp| if let CacheOp::Archive { from, .. } = op { Some(*from) } else { None };
        let archived: HashSet<HostId> = ops.iter().filter_map(archived).collect();
        for op in ops {
            match op {
                CacheOp::ZeroSlot(place) => drop(self.slots.insert(place, Vec::new())),
                CacheOp::Copy { kind, from, to } => {
                    assert_ne!(from, to);
                    let contents = self.read(kind, from);
                    self.write(contents, to);
                }
                CacheOp::Save { kind, from, to } => {
                    let contents = self.read(kind, from);
                    assert!(self.host.insert(to, contents).is_none(), "a host id was used twice");
                    // Its place may be overwritten at once, unless this is only a copy for the disk.
                    match kind {
                        _ if archived.contains(&to) => {}
                        UnitKind::Slot => drop(self.slots.insert(from, vec![TokenId(999)])),
                        UnitKind::Block => drop(self.blocks.insert(from, vec![None; BLOCK])),
                    }
                }
                CacheOp::Load { kind, from, to } => {
                    let contents = self.host[&from].clone();
                    assert_eq!(matches!(contents, Contents::State(_)), kind == UnitKind::Slot);
                    self.write(contents, to);
                }
                CacheOp::Archive { from, to } => {
                    let contents = self.host[&from].clone();
                    // Records that were removed before they were written are not written.
                    if let Some(record) = self.cache.record(to).cloned() {
                        assert_eq!(record.kind == RecordKind::State, matches!(contents, Contents::State(_)));
                        assert!(self.disk.insert(to, (record, contents)).is_none(), "a record was used twice");
                        self.writing.push(to);
                    }
                }
                CacheOp::Forget(id) => assert!(self.host.remove(&id).is_some()),
            }
        }
        for id in self.cache.take_removed_records() {
            self.disk.remove(&id);
        }
    }

    /// A write ends, well or not.
    pub(crate) fn end_write(&mut self, which: usize, well: bool) {
        let id = self.writing.swap_remove(which);
        if well {
            return self.cache.record_written(id);
        }
        self.disk.remove(&id);
        self.cache.record_not_written(id, WriteFault::Other);
        self.perform();
    }

    /// Brings what is on disk to memory, if it helps and is there.
    pub(crate) fn read_disk(&mut self, key: &CacheKey, tokens: &[TokenId]) {
        let Some(read) = self.cache.wanted_from_disk(key, tokens, tokens.len() - 1) else { return };
        if let Some(lost) = read.records.iter().find(|id| !self.disk.contains_key(id)) {
            self.cache.record_lost(*lost);
            return self.perform();
        }
        let prefix = &tokens[..read.position];
        let staged = self.cache.adopt(key, prefix, &read);
        let found = self.cache.lookup(key, tokens, tokens.len() - 1).found.cached;
        assert!(staged.is_empty() || found == read.position, "{read:?}");
        let keys = read.records.iter().map(|id| &self.disk[id].0.key);
        assert!(keys.into_iter().all(|kept| kept == key), "somebody else's: {read:?}");
        for (record, id) in staged {
            let contents = self.disk[&record].1.clone();
            assert!(self.host.insert(id, contents).is_none());
        }
        self.perform();
    }

    /// The process ends and another one begins with the same disk.
    pub(crate) fn restart(&mut self, (config, disk): (CacheConfig, DiskConfig)) {
        self.running.clear();
        self.perform();
        // What was on its way is there or not.
        for (i, id) in std::mem::take(&mut self.writing).into_iter().enumerate() {
            if i % 2 == 0 {
                self.disk.remove(&id);
            }
        }
        self.host.clear();
        self.cache = CacheManager::new(config);
        let found = self.disk.values().map(|(record, _)| record.clone()).collect();
        self.cache.attach_disk(disk, found);
        self.perform();
    }

    pub(crate) fn read(&self, kind: UnitKind, place: Place) -> Contents {
        match kind {
            UnitKind::Slot => Contents::State(self.slots[&place].clone()),
            UnitKind::Block => Contents::Rows(self.blocks.get(&place).cloned().unwrap_or(vec![None; BLOCK])),
        }
    }

    pub(crate) fn write(&mut self, contents: Contents, place: Place) {
        match contents {
            Contents::State(state) => drop(self.slots.insert(place, state)),
            Contents::Rows(rows) => drop(self.blocks.insert(place, rows)),
        }
    }

    pub(crate) fn open(&mut self, key: CacheKey, tokens: Vec<TokenId>) {
        let lookup = self.cache.lookup(&key, &tokens, tokens.len() - 1);
        let found = lookup.found;
        let Ok(opened) = self.cache.open(lookup) else { return };
        assert!(opened.cached == found.cached || opened.cached == 0, "{found:?}");
        self.perform();
        self.running.push(Sequence { cache: opened.cache, key, tokens, computed: opened.cached });
        self.check(self.running.len() - 1);
    }

    /// Computes some tokens, saving the state after `after` of them where a slot can be had.
    pub(crate) fn compute(&mut self, i: usize, (count, after): (usize, usize)) {
        let sequence = &mut self.running[i];
        let end = sequence.tokens.len().min(sequence.computed + count);
        if self.cache.grow(&mut sequence.cache, end).is_err() {
            return;
        }
        let spare: Option<(usize, SlotId)> = (after > 0 && sequence.computed + after <= end)
            .then(|| self.cache.spare_slot(after))
            .flatten()
            .map(|slot| (after, slot));
        self.perform();
        let sequence = &self.running[i];
        let own = self.cache.slot_place(sequence.cache.slot()).unwrap();
        for at in sequence.computed..end {
            let block = self.cache.block_place(sequence.cache.blocks()[at / BLOCK]).unwrap();
            self.blocks.entry(block).or_insert_with(|| vec![None; BLOCK])[at % BLOCK] = Some(sequence.tokens[at]);
            self.slots.get_mut(&own).unwrap().push(sequence.tokens[at]);
            if let Some((after, slot)) = spare
                && at + 1 == sequence.computed + after
            {
                let copy = self.slots[&own].clone();
                self.slots.insert(self.cache.slot_place(slot).unwrap(), copy);
            }
        }
        let sequence = &mut self.running[i];
        if let Some((after, slot)) = spare {
            let (key, tokens) = (sequence.key.clone(), sequence.tokens[..sequence.computed + after].to_vec());
            self.cache.store(&mut sequence.cache, &key, &tokens, slot);
        }
        sequence.computed = end;
        self.perform();
        self.check(i);
    }

    /// The state and all rows of a sequence are those of its tokens.
    pub(crate) fn check(&self, i: usize) {
        let Sequence { cache, tokens, computed, .. } = &self.running[i];
        let state = &self.slots[&self.cache.slot_place(cache.slot()).unwrap()];
        assert_eq!(state, &tokens[..*computed], "the state is another's");
        for (at, token) in tokens[..*computed].iter().enumerate() {
            let place = self.cache.block_place(cache.blocks()[at / BLOCK]).expect("a block that nobody holds");
            assert_eq!(self.blocks[&place][at % BLOCK], Some(*token), "row {at} is another's");
        }
    }
}

pub(crate) fn config(len: usize, host_len: usize) -> CacheConfig {
    let arena = ArenaShape { len, block_len: 1, slot_len: 5 };
    CacheConfig { arena, block_size: BLOCK, prefixes: Prefixes::Keep, host_len }
}

/// A beginning that many share, then a few tokens of its own.
pub(crate) fn tokens(random: &mut Random) -> Vec<TokenId> {
    let (stem, shared, own) = (random.below(3), random.below(30), 1 + random.below(6));
    let stem = (0..shared).map(|i| TokenId((i * 5 + stem) as u32 % 23));
    stem.chain((0..own).map(|_| TokenId(random.below(3) as u32)).collect::<Vec<_>>()).collect()
}
