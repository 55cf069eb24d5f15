//! The disk tier's account: which units are on disk, what they continue, and which give way when its budget is used up.
//!
//! Beside the tree of stored prefixes, not part of it: what is on disk stays there while it is on the device as well, and
//! comes into the tree only when its bytes have been read and found whole. A state on disk always has all blocks before it
//! there, and every block there has a state after it. The files are somebody else's; see `perilune-disk`.

mod entries;

use std::collections::HashMap;

use perilune_tensor::TokenId;

use crate::record::{Record, RecordId, RecordKind};
use crate::value::{Seen, Shelf, Value};
use crate::walk::common_prefix;
use crate::{ArenaShape, CacheKey};

/// Sizes of the disk tier, in the arena's unit of length.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DiskConfig {
    /// Length of units that may be kept.
    pub len: usize,
    /// Length of units that may be on their way there at once; what does not fit is not kept.
    pub queue_len: usize,
}

/// A prefix on disk.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct DiskMatch {
    /// Tokens that it has.
    pub position: usize,
    /// Its records in order, the state last.
    pub records: Vec<RecordId>,
}

type Place = u32;

#[derive(Debug)]
struct Entry {
    /// `None` for the place where a key's prefixes begin.
    record: Option<Record>,
    parent: Option<Place>,
    blocks: Vec<Place>,
    tails: Vec<Place>,
    state: Option<Place>,
    /// Tokens up to its end.
    position: usize,
    written: bool,
    last_use: u64,
    /// Not to be removed while something is being added below it.
    pinned: bool,
}

impl Entry {
    fn is_leaf(&self) -> bool {
        self.blocks.is_empty() && self.tails.is_empty() && self.state.is_none()
    }
}

/// See the module.
#[derive(Debug)]
pub(crate) struct DiskIndex {
    pub(crate) config: DiskConfig,
    shape: ArenaShape,
    block_size: usize,
    entries: Vec<Option<Entry>>,
    spare: Vec<Place>,
    roots: HashMap<CacheKey, Place>,
    /// Blocks and tails by what they continue and their tokens.
    by_tokens: HashMap<(Place, Box<[TokenId]>), Place>,
    by_id: HashMap<RecordId, Place>,
    states: Shelf,
    /// Length that may be there: the budget, or less where the disk turned out to be full.
    limit: usize,
    used: usize,
    in_flight: usize,
    next: u64,
    /// Records whose files are to be removed.
    removed: Vec<RecordId>,
    /// States that gave way.
    pub(crate) evictions: u64,
}

/// A prefix that is to be written.
pub(crate) struct Wanted<'a> {
    pub(crate) key: &'a CacheKey,
    /// All its tokens.
    pub(crate) tokens: &'a [TokenId],
    pub(crate) starts: u32,
    pub(crate) clock: u64,
    pub(crate) value: Value,
}

/// There is no room, on disk or on the way there.
pub(crate) struct NoRoom;

/// Records that are compared with a rest that is none of them.
const MAX_PARTIAL: usize = 16;

impl DiskIndex {
    pub(crate) fn new(config: DiskConfig, (shape, block_size): (ArenaShape, usize)) -> Self {
        DiskIndex {
            config,
            shape,
            block_size,
            entries: Vec::new(),
            spare: Vec::new(),
            roots: HashMap::new(),
            by_tokens: HashMap::new(),
            by_id: HashMap::new(),
            states: Shelf::default(),
            limit: config.len,
            used: 0,
            in_flight: 0,
            next: 0,
            removed: Vec::new(),
            evictions: 0,
        }
    }

    pub(crate) fn used(&self) -> usize {
        self.used
    }

    pub(crate) fn limit(&self) -> usize {
        self.limit
    }

    /// No more fits than there is.
    pub(crate) fn limit_to_used(&mut self) {
        self.limit = self.limit.min(self.used);
    }

    pub(crate) fn num_states(&self) -> usize {
        self.states.items().len()
    }

    pub(crate) fn take_removed(&mut self) -> Vec<RecordId> {
        std::mem::take(&mut self.removed)
    }

    pub(crate) fn record(&self, id: RecordId) -> Option<&Record> {
        self.by_id.get(&id).and_then(|place| self.entry(*place).record.as_ref())
    }

    /// Takes over what was found on disk; what does not belong to a whole prefix, or does not fit, is removed.
    pub(crate) fn take_over(&mut self, mut found: Vec<Record>) {
        // Whatever is continued was numbered before what continues it.
        found.sort_by_key(|record| record.id);
        for record in found {
            self.next = self.next.max(record.id.0);
            let id = record.id;
            if self.insert_found(record).is_none() {
                self.removed.push(id);
            }
        }
        let leaves = |(place, entry): (usize, &Option<Entry>)| {
            let entry = entry.as_ref()?;
            let state = entry.record.as_ref().is_some_and(|record| record.kind == RecordKind::State);
            (entry.is_leaf() && !state).then_some(place as Place)
        };
        let stray: Vec<Place> = self.entries.iter().enumerate().filter_map(leaves).collect();
        stray.into_iter().for_each(|place| self.prune(place));
        while self.used > self.limit && self.evict(None, 0) {}
    }

    fn insert_found(&mut self, record: Record) -> Option<()> {
        let parent = match record.parent {
            Some(id) => *self.by_id.get(&id)?,
            None => self.root(&record.key),
        };
        let above = self.entry(parent);
        let (kind, len) = (record.kind, record.tokens.len());
        let above_kind = above.record.as_ref().map(|record| record.kind);
        let follows = match kind {
            RecordKind::Block => len == self.block_size && matches!(above_kind, None | Some(RecordKind::Block)),
            RecordKind::Tail => (1..self.block_size).contains(&len) && above_kind != Some(RecordKind::Tail),
            RecordKind::State => len == 0 && above_kind.is_some() && above.state.is_none(),
        };
        let same_key = above.record.as_ref().is_none_or(|above| above.key == record.key);
        let known = kind != RecordKind::State && self.child(parent, &record.tokens).is_some();
        if !follows
            || !same_key
            || above_kind == Some(RecordKind::State)
            || known
            || self.by_id.contains_key(&record.id)
        {
            // A root made for it alone goes with the stray leaves.
            return None;
        }
        let place = self.insert(parent, record, 0);
        self.entry_mut(place).written = true;
        self.in_flight -= self.unit_len(kind);
        Some(())
    }

    /// The deepest whole prefix of at most `limit` of these tokens.
    pub(crate) fn lookup(&self, key: &CacheKey, tokens: &[TokenId], limit: usize) -> Option<DiskMatch> {
        let mut at = *self.roots.get(key)?;
        let mut best = None;
        loop {
            let entry = self.entry(at);
            let rest = &tokens[entry.position..];
            let after = |place: &Place| {
                let tail = self.entry(*place);
                let own = &tail.record.as_ref()?.tokens;
                (rest.starts_with(own) && tail.position <= limit && tail.written).then_some(tail.state?)
            };
            let here = entry.state.filter(|_| entry.position <= limit);
            let longest = entry.tails.iter().filter_map(after).chain(here);
            let written = longest.filter(|state| self.entry(*state).written);
            best = written.max_by_key(|state| self.entry(*state).position).or(best);
            let next = rest.get(..self.block_size).and_then(|first| self.child(at, first));
            match next.filter(|next| self.entry(*next).written) {
                Some(next) => at = next,
                None => break,
            }
        }
        best.map(|state| DiskMatch { position: self.entry(state).position, records: self.path(state) })
    }

    /// How many tokens agree with something on disk, whole blocks or not.
    pub(crate) fn agreeing(&self, key: &CacheKey, tokens: &[TokenId]) -> usize {
        let Some(mut at) = self.roots.get(key).copied() else { return 0 };
        loop {
            let entry = self.entry(at);
            let rest = &tokens[entry.position..];
            match rest.get(..self.block_size).and_then(|first| self.child(at, first)) {
                Some(next) => at = next,
                None => {
                    let below = entry.blocks.iter().chain(&entry.tails).take(MAX_PARTIAL);
                    let records = below.filter_map(|place| self.entry(*place).record.as_ref());
                    let longest = records.map(|record| common_prefix(&record.tokens, rest)).max().unwrap_or(0);
                    return entry.position + longest;
                }
            }
        }
    }

    /// Notes that a prefix was used.
    pub(crate) fn touch(&mut self, state: RecordId, clock: u64) {
        if let Some(place) = self.by_id.get(&state).copied() {
            let entry = self.entry_mut(place);
            entry.last_use = clock;
            if let Some(record) = &mut entry.record {
                record.starts += 1;
            }
        }
    }

    /// Books what is missing of a prefix, the state last; `None` where all of it is there already. An error where there is
    /// no room for it, on disk or on the way there.
    pub(crate) fn book(&mut self, wanted: &Wanted<'_>) -> Result<Option<Vec<RecordId>>, NoRoom> {
        let root = self.root(wanted.key);
        let whole = wanted.tokens.len() / self.block_size;
        let (mut at, mut known) = (root, 0);
        while known < whole {
            let begin = known * self.block_size;
            let Some(next) = self.child(at, &wanted.tokens[begin..begin + self.block_size]) else { break };
            (at, known) = (next, known + 1);
        }
        let tail = &wanted.tokens[whole * self.block_size..];
        let mut tail_known = tail.is_empty();
        if let Some(found) = (known == whole && !tail_known).then(|| self.child(at, tail)).flatten() {
            (at, tail_known) = (found, true);
        }
        if known == whole && tail_known && self.entry(at).state.is_some() {
            return Ok(None);
        }
        let blocks = whole - known + usize::from(!tail_known);
        let len = self.shape.slot_len + blocks * self.shape.block_len;
        self.entry_mut(at).pinned = true;
        let fits = self.in_flight + len <= self.config.queue_len && self.make_room(len, (wanted.value, wanted.clock));
        self.entry_mut(at).pinned = false;
        if !fits {
            self.prune(at);
            return Err(NoRoom);
        }
        let mut booked = Vec::new();
        let pieces = wanted.tokens[known * self.block_size..whole * self.block_size].chunks(self.block_size);
        let pieces = pieces.map(|tokens| (RecordKind::Block, tokens));
        let tail = (!tail_known).then_some((RecordKind::Tail, tail));
        for (kind, tokens) in pieces.chain(tail).chain([(RecordKind::State, &[][..])]) {
            let id = self.free_id();
            let parent = self.entry(at).record.as_ref().map(|record| record.id);
            let starts = if kind == RecordKind::State { wanted.starts } else { 0 };
            let record = Record { id, kind, parent, key: wanted.key.clone(), tokens: tokens.into(), starts };
            at = self.insert(at, record, wanted.clock);
            booked.push(id);
        }
        Ok(Some(booked))
    }

    /// A number that no record has.
    fn free_id(&mut self) -> RecordId {
        loop {
            self.next = self.next.wrapping_add(1);
            if !self.by_id.contains_key(&RecordId(self.next)) {
                return RecordId(self.next);
            }
        }
    }

    /// A record that was booked is on disk.
    pub(crate) fn written(&mut self, id: RecordId) {
        let Some(place) = self.by_id.get(&id).copied() else { return };
        let len = self.entry(place).record.as_ref().map_or(0, |record| self.unit_len(record.kind));
        if !std::mem::replace(&mut self.entry_mut(place).written, true) {
            self.in_flight -= len;
        }
    }

    /// A record is not, or not whole, on disk: what continues it serves nobody either. False where it was not known.
    pub(crate) fn lose(&mut self, id: RecordId) -> bool {
        match self.by_id.get(&id).copied() {
            Some(place) => {
                self.remove_below(place);
                true
            }
            None => false,
        }
    }

    /// Forgets everything.
    pub(crate) fn clear(&mut self) {
        let roots: Vec<Place> = self.roots.values().copied().collect();
        roots.into_iter().for_each(|root| self.remove_below(root));
        self.limit = self.config.len;
    }

    /// Forgets every prefix of these tokens, and all that begin with the same block.
    pub(crate) fn discard(&mut self, key: &CacheKey, tokens: &[TokenId]) {
        let Some(root) = self.roots.get(key).copied() else { return };
        let prefix =
            |place: &Place| self.entry(*place).record.as_ref().is_some_and(|record| tokens.starts_with(&record.tokens));
        let entry = self.entry(root);
        let mut doomed: Vec<Place> = entry.tails.iter().copied().filter(prefix).collect();
        doomed.extend(tokens.get(..self.block_size).and_then(|first| self.child(root, first)));
        doomed.into_iter().for_each(|place| self.remove_below(place));
    }

    fn make_room(&mut self, len: usize, (value, clock): (Value, u64)) -> bool {
        while self.used + len > self.limit {
            if len > self.limit || !self.evict(Some(value), clock) {
                return false;
            }
        }
        true
    }

    /// Removes the state that is worth least, and the blocks that only it needs; not one that is worth as much as `below`.
    fn evict(&mut self, below: Option<Value>, clock: u64) -> bool {
        let mut states = std::mem::take(&mut self.states);
        let least = states.least(|place| self.value_of(place, clock));
        self.states = states;
        match least {
            Some((value, place)) if below.is_none_or(|below| value < below) => {
                self.remove_below(place);
                self.evictions += 1;
                true
            }
            _ => false,
        }
    }

    fn value_of(&self, place: Place, clock: u64) -> Value {
        let state = self.entry(place);
        let starts = state.record.as_ref().map_or(0, |record| record.starts);
        let (mut at, mut own, mut before) = (state.parent, self.shape.slot_len, 0);
        let mut shared = false;
        while let Some(above) = at.map(|at| self.entry(at)) {
            shared |= above.blocks.len() + above.tails.len() + usize::from(above.state.is_some()) > 1;
            if let Some(nearest) = above.state.filter(|nearest| *nearest != place) {
                before = self.entry(nearest).position;
                break;
            }
            own += if shared || above.record.is_none() { 0 } else { self.shape.block_len };
            at = above.parent;
        }
        let seen = Seen { starts, age: clock.saturating_sub(state.last_use), passed: false };
        Value::new((state.position - before, seen), own)
    }

    fn unit_len(&self, kind: RecordKind) -> usize {
        if kind == RecordKind::State { self.shape.slot_len } else { self.shape.block_len }
    }
}
