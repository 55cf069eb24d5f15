//! What a sequence gets from stored prefixes, against an account of every unit's contents: random sequences that begin
//! alike, in memory for a few of them, with and without a host tier.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "test code")]

mod random;

use std::collections::{HashMap, HashSet};

use perilune_cache::{
    ArenaShape, CacheConfig, CacheKey, CacheManager, CacheOp, DiskConfig, HostId, Place, Prefixes, Record, RecordId,
    RecordKind, SequenceCache, SlotId, UnitKind,
};
use perilune_tensor::TokenId;
use random::Random;

const BLOCK: usize = 4;

/// Contents of a unit: of a slot all tokens of its state, of a block the token in each row.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Contents {
    State(Vec<TokenId>),
    Rows(Vec<Option<TokenId>>),
}

struct Sequence {
    cache: SequenceCache,
    key: CacheKey,
    tokens: Vec<TokenId>,
    computed: usize,
}

/// A device that remembers what was written where.
struct World {
    cache: CacheManager,
    slots: HashMap<Place, Vec<TokenId>>,
    blocks: HashMap<Place, Vec<Option<TokenId>>>,
    host: HashMap<HostId, Contents>,
    running: Vec<Sequence>,
    disk: HashMap<RecordId, (Record, Contents)>,
    /// Writes that have not ended.
    writing: Vec<RecordId>,
    highest: RecordId,
}

impl World {
    fn new(config: CacheConfig) -> Self {
        World {
            cache: CacheManager::new(config),
            slots: HashMap::new(),
            blocks: HashMap::new(),
            host: HashMap::new(),
            running: Vec::new(),
            disk: HashMap::new(),
            writing: Vec::new(),
            highest: RecordId(0),
        }
    }

    fn perform(&mut self) {
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
                    self.highest = self.highest.max(to);
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
    fn end_write(&mut self, which: usize, well: bool) {
        let id = self.writing.swap_remove(which);
        if well {
            return self.cache.record_written(id);
        }
        self.disk.remove(&id);
        self.cache.record_not_written(id);
        self.perform();
    }

    /// Brings what is on disk to memory, if it helps and is there.
    fn read_disk(&mut self, key: &CacheKey, tokens: &[TokenId]) {
        let Some(read) = self.cache.wanted_from_disk(key, tokens, tokens.len() - 1) else { return };
        if let Some(lost) = read.records.iter().find(|id| !self.disk.contains_key(id)) {
            self.cache.record_lost(*lost);
            return self.perform();
        }
        let prefix = &tokens[..read.position];
        let staged = self.cache.adopt(key, prefix, &read);
        let found = self.cache.lookup(key, tokens, tokens.len() - 1).cached;
        assert!(staged.is_empty() || found == read.position, "{read:?}");
        for (record, id) in staged {
            let contents = self.disk[&record].1.clone();
            assert!(self.host.insert(id, contents).is_none());
        }
        self.perform();
    }

    /// The process ends and another one begins with the same disk.
    fn restart(&mut self, (config, disk): (CacheConfig, DiskConfig)) {
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
        self.cache.attach_disk(disk, (found, self.highest));
        self.perform();
    }

    fn read(&self, kind: UnitKind, place: Place) -> Contents {
        match kind {
            UnitKind::Slot => Contents::State(self.slots[&place].clone()),
            UnitKind::Block => Contents::Rows(self.blocks.get(&place).cloned().unwrap_or(vec![None; BLOCK])),
        }
    }

    fn write(&mut self, contents: Contents, place: Place) {
        match contents {
            Contents::State(state) => drop(self.slots.insert(place, state)),
            Contents::Rows(rows) => drop(self.blocks.insert(place, rows)),
        }
    }

    fn open(&mut self, key: CacheKey, tokens: Vec<TokenId>) {
        let found = self.cache.lookup(&key, &tokens, tokens.len() - 1);
        let Ok(opened) = self.cache.open(&key, &tokens, tokens.len() - 1) else { return };
        assert!(opened.cached == found.cached || opened.cached == 0, "{found:?}");
        self.perform();
        self.running.push(Sequence { cache: opened.cache, key, tokens, computed: opened.cached });
        self.check(self.running.len() - 1);
    }

    /// Computes some tokens, saving the state after `after` of them where a slot can be had.
    fn compute(&mut self, i: usize, (count, after): (usize, usize)) {
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
    fn check(&self, i: usize) {
        let Sequence { cache, tokens, computed, .. } = &self.running[i];
        let state = &self.slots[&self.cache.slot_place(cache.slot()).unwrap()];
        assert_eq!(state, &tokens[..*computed], "the state is another's");
        for (at, token) in tokens[..*computed].iter().enumerate() {
            let place = self.cache.block_place(cache.blocks()[at / BLOCK]).expect("a block that nobody holds");
            assert_eq!(self.blocks[&place][at % BLOCK], Some(*token), "row {at} is another's");
        }
    }
}

fn config(len: usize, host_len: usize) -> CacheConfig {
    let arena = ArenaShape { len, block_len: 1, slot_len: 5 };
    CacheConfig { arena, block_size: BLOCK, prefixes: Prefixes::Keep, host_len }
}

/// A beginning that many share, then a few tokens of its own.
fn tokens(random: &mut Random) -> Vec<TokenId> {
    let (stem, shared, own) = (random.below(3), random.below(30), 1 + random.below(6));
    let stem = (0..shared).map(|i| TokenId((i * 5 + stem) as u32 % 23));
    stem.chain((0..own).map(|_| TokenId(random.below(3) as u32)).collect::<Vec<_>>()).collect()
}

#[test]
fn random_sequences_find_what_is_theirs() {
    let mut random = Random(17);
    let (mut hits, mut demotions, mut moves) = (0, 0, 0);
    for (len, host_len) in [(40, 0), (40, 60), (75, 20), (200, 0), (200, 300), (23, 9)] {
        let mut world = World::new(config(len, host_len));
        for _ in 0..60_000 {
            let (some, count) = (random.below(world.running.len().max(1)), 1 + random.below(9));
            match random.below(12) {
                0..3 if world.running.len() < 4 => {
                    let salt = (random.below(4) == 0).then(|| "tenant".into());
                    let tokens = tokens(&mut random);
                    world.open(CacheKey { salt, ..CacheKey::default() }, tokens);
                }
                0..9 if !world.running.is_empty() => world.compute(some, (count, random.below(9))),
                9 | 10 if !world.running.is_empty() => {
                    let Sequence { cache, key, tokens, computed } = world.running.swap_remove(some);
                    world.cache.donate(cache, &key, &tokens[..computed]);
                }
                11 if !world.running.is_empty() => match random.below(8) {
                    0 => {
                        let Sequence { cache, key, tokens, computed } = world.running.swap_remove(some);
                        world.cache.discard(cache, &key, &tokens[..computed]);
                    }
                    1 => world.cache.flush(),
                    _ => drop(world.running.swap_remove(some)),
                },
                _ => {}
            }
            let usage = world.cache.usage();
            let held = usage.blocks_used + usage.blocks_stored + 5 * (usage.slots_used + usage.slots_stored);
            assert_eq!((held + usage.free_len, usage.slots_used), (len, world.running.len()), "{usage:?}");
            assert!(usage.host_used <= host_len);
        }
        world.running.clear();
        world.cache.flush();
        world.perform();
        let (usage, stats) = (world.cache.usage(), world.cache.stats());
        assert_eq!((usage.free_len, usage.nodes, usage.checkpoints, world.host.len()), (len, 0, 0, 0), "{usage:?}");
        hits += stats.hit_tokens;
        demotions += stats.demotions;
        moves += stats.moves;
    }
    assert!(hits > 10_000 && demotions > 1000 && moves > 100, "{hits} {demotions} {moves}");
}

#[test]
fn a_disk_that_forgets_fails_and_outlives_the_process_gives_everybody_what_is_theirs() {
    let mut random = Random(29);
    let mut total = perilune_cache::CacheStats::default();
    for (len, host_len, disk_len) in [(40, 0, 2000), (60, 20, 400), (40, 0, 60), (200, 0, 10_000)] {
        let config = config(len, host_len);
        let disk = DiskConfig { len: disk_len, queue_len: 40 };
        let mut world = World::new(config);
        world.restart((config, disk));
        for _ in 0..60_000 {
            let (some, count) = (random.below(world.running.len().max(1)), 1 + random.below(9));
            match random.below(14) {
                0..3 if world.running.len() < 4 => {
                    let salt = (random.below(4) == 0).then(|| "tenant".into());
                    let (key, tokens) = (CacheKey { salt, ..CacheKey::default() }, tokens(&mut random));
                    if random.below(4) > 0 {
                        world.read_disk(&key, &tokens);
                    }
                    world.open(key, tokens);
                }
                0..9 if !world.running.is_empty() => world.compute(some, (count, random.below(9))),
                9 | 10 if !world.running.is_empty() => {
                    let Sequence { cache, key, tokens, computed } = world.running.swap_remove(some);
                    world.cache.donate(cache, &key, &tokens[..computed]);
                }
                11 if !world.running.is_empty() && random.below(20) == 0 => {
                    let Sequence { cache, key, tokens, computed } = world.running.swap_remove(some);
                    world.cache.discard(cache, &key, &tokens[..computed]);
                }
                11 if random.below(300) == 0 => world.cache.flush(),
                12 if !world.writing.is_empty() => {
                    let which = random.below(world.writing.len());
                    world.end_write(which, random.below(10) > 0);
                }
                13 => match random.below(400) {
                    0 => {
                        total = add(total, world.cache.stats());
                        world.restart((config, disk));
                    }
                    1 => drop(world.cache.archive_stored()),
                    2..20 => {
                        let written = world.disk.keys().copied().filter(|id| !world.writing.contains(id));
                        // The order of a hash map is not to decide.
                        let lost = written.min_by_key(|id| (id.0.wrapping_mul(count as u64 * 7919) % 1009, *id));
                        lost.map(|id| world.disk.remove(&id));
                    }
                    _ => {}
                },
                _ => {}
            }
            world.perform();
            let usage = world.cache.usage();
            let held = usage.blocks_used + usage.blocks_stored + 5 * (usage.slots_used + usage.slots_stored);
            assert_eq!((held + usage.free_len, usage.slots_used), (len, world.running.len()), "{usage:?}");
            assert!(usage.disk_used <= disk_len && usage.host_used <= host_len, "{usage:?}");
            let lost_units: usize = world.disk.values().map(|(_, contents)| unit_len(contents)).sum();
            assert!(lost_units <= usage.disk_used, "files that nobody accounts for");
        }
        world.running.clear();
        world.cache.flush();
        world.perform();
        total = add(total, world.cache.stats());
        let usage = world.cache.usage();
        assert_eq!((usage.free_len, usage.disk_used, usage.disk_states), (len, 0, 0), "{usage:?}");
        assert!(world.disk.is_empty() && world.host.is_empty());
    }
    let enough = total.disk_restores > 500 && total.disk_losses > 50 && total.disk_evictions > 100;
    assert!(enough && total.disk_writes > 2000 && total.disk_skips > 50, "{total:?}");
}

fn unit_len(contents: &Contents) -> usize {
    if matches!(contents, Contents::State(_)) { 5 } else { 1 }
}

/// The disk's counters of two processes together.
fn add(a: perilune_cache::CacheStats, b: perilune_cache::CacheStats) -> perilune_cache::CacheStats {
    perilune_cache::CacheStats {
        disk_writes: a.disk_writes + b.disk_writes,
        disk_skips: a.disk_skips + b.disk_skips,
        disk_restores: a.disk_restores + b.disk_restores,
        disk_evictions: a.disk_evictions + b.disk_evictions,
        disk_losses: a.disk_losses + b.disk_losses,
        ..a
    }
}

/// A world with memory for everything.
fn roomy() -> World {
    World::new(config(1000, 0))
}

fn ids(range: std::ops::Range<u32>) -> Vec<TokenId> {
    range.map(TokenId).collect()
}

fn run_to_end(world: &mut World, tokens: Vec<TokenId>) -> usize {
    world.open(CacheKey::default(), tokens);
    let i = world.running.len() - 1;
    let cached = world.running[i].computed;
    world.compute(i, (1000, 0));
    let Sequence { cache, key, tokens, computed } = world.running.pop().unwrap();
    world.cache.donate(cache, &key, &tokens[..computed]);
    cached
}

#[test]
fn a_state_serves_at_exactly_its_own_place() {
    // Every length around the ends of blocks, and continuations that agree to every place.
    for len in 1..3 * BLOCK as u32 + 2 {
        let mut world = roomy();
        assert_eq!(run_to_end(&mut world, ids(0..len)), 0);
        for more in 1..2 * BLOCK as u32 {
            let longer = ids(0..len + more);
            assert_eq!(world.cache.lookup(&CacheKey::default(), &longer, longer.len() - 1).cached, len as usize);
        }
        let same = ids(0..len);
        let found = world.cache.lookup(&CacheKey::default(), &same, same.len() - 1);
        assert_eq!((found.cached, found.agreeing), (0, len as usize), "all tokens but one are not all tokens");
        let mut parting = ids(0..len + 3);
        parting[len as usize - 1] = TokenId(99);
        let found = world.cache.lookup(&CacheKey::default(), &parting, parting.len() - 1);
        assert_eq!((found.cached, found.agreeing), (0, len as usize - 1));
    }
}

#[test]
fn keys_do_not_meet() {
    let mut world = roomy();
    run_to_end(&mut world, ids(0..20));
    let longer = ids(0..30);
    for key in [
        CacheKey { salt: Some("other".into()), ..CacheKey::default() },
        CacheKey { weight_version: 1, ..CacheKey::default() },
        CacheKey { adapter: Some("other".into()), ..CacheKey::default() },
    ] {
        assert_eq!(world.cache.lookup(&key, &longer, 29).cached, 0, "{key:?}");
    }
    assert_eq!(world.cache.lookup(&CacheKey::default(), &longer, 29).cached, 20);
}

#[test]
fn a_second_sequence_saves_its_state_where_it_parted_and_the_third_starts_there() {
    let mut world = roomy();
    run_to_end(&mut world, ids(0..40));
    let forked: Vec<TokenId> = ids(0..22).into_iter().chain(ids(100..110)).collect();
    let found = world.cache.lookup(&CacheKey::default(), &forked, forked.len() - 1);
    assert_eq!((found.cached, found.agreeing), (0, 22));
    world.open(CacheKey::default(), forked);
    world.compute(0, (100, found.agreeing));
    let third: Vec<TokenId> = ids(0..22).into_iter().chain(ids(200..203)).collect();
    assert_eq!(world.cache.lookup(&CacheKey::default(), &third, third.len() - 1).cached, 22);
}

#[test]
fn what_a_corrupt_sequence_stored_is_not_found() {
    let mut world = roomy();
    world.open(CacheKey::default(), ids(0..20));
    world.compute(0, (10, 9));
    let Sequence { cache, key, tokens, computed } = world.running.pop().unwrap();
    assert_eq!(world.cache.lookup(&key, &tokens, 19).cached, 9);
    world.cache.discard(cache, &key, &tokens[..computed]);
    assert_eq!(world.cache.lookup(&key, &tokens, 19).cached, 0);
    assert_eq!(world.cache.usage().free_len, 1000);
}

#[test]
fn memory_for_one_sequence_and_its_state_alone_still_continues_it() {
    // 20 tokens: five blocks and a slot. There is no room for a copy of the state.
    let mut world = World::new(config(5 + 5 + 1, 0));
    world.open(CacheKey::default(), ids(0..20));
    world.compute(0, (15, 0));
    let Sequence { cache, key, tokens, computed } = world.running.pop().unwrap();
    world.cache.donate(cache, &key, &tokens[..computed]);
    world.open(key, tokens);
    assert_eq!(world.running[0].computed, 15, "the sequence takes the state itself");
    world.compute(0, (5, 0));
    assert_eq!(world.running[0].computed, 20);
}
