//! The structure of what is on disk: entries that continue each other, found by their tokens.

use perilune_tensor::TokenId;

use super::{DiskIndex, Entry, Place};
use crate::CacheKey;
use crate::record::{Record, RecordId, RecordKind};

impl DiskIndex {
    pub(super) fn child(&self, parent: Place, tokens: &[TokenId]) -> Option<Place> {
        self.by_tokens.get(&(parent, tokens.into())).copied()
    }

    /// Records from the start of a prefix to a place.
    pub(super) fn path(&self, place: Place) -> Vec<RecordId> {
        let up = std::iter::successors(Some(place), |place| self.entry(*place).parent);
        let mut path: Vec<RecordId> = up.filter_map(|place| Some(self.entry(place).record.as_ref()?.id)).collect();
        path.reverse();
        path
    }

    #[allow(clippy::expect_used)] // places are handed out by this index and dropped with what they name
    pub(super) fn entry(&self, place: Place) -> &Entry {
        self.entries[place as usize].as_ref().expect("a place outlived its record")
    }

    #[allow(clippy::expect_used)] // as above
    pub(super) fn entry_mut(&mut self, place: Place) -> &mut Entry {
        self.entries[place as usize].as_mut().expect("a place outlived its record")
    }

    pub(super) fn root(&mut self, key: &CacheKey) -> Place {
        if let Some(root) = self.roots.get(key) {
            return *root;
        }
        let root = self.add(Entry {
            record: None,
            parent: None,
            blocks: Vec::new(),
            tails: Vec::new(),
            state: None,
            position: 0,
            written: true,
            last_use: 0,
            pinned: false,
        });
        self.roots.insert(key.clone(), root);
        root
    }

    /// Adds a record that is on its way.
    pub(super) fn insert(&mut self, parent: Place, record: Record, clock: u64) -> Place {
        let (kind, id, tokens) = (record.kind, record.id, record.tokens.clone());
        let place = self.add(Entry {
            position: self.entry(parent).position + tokens.len(),
            record: Some(record),
            parent: Some(parent),
            blocks: Vec::new(),
            tails: Vec::new(),
            state: None,
            written: false,
            last_use: clock,
            pinned: false,
        });
        let above = self.entry_mut(parent);
        match kind {
            RecordKind::Block => above.blocks.push(place),
            RecordKind::Tail => above.tails.push(place),
            RecordKind::State => above.state = Some(place),
        }
        match kind {
            RecordKind::State => self.states.insert(place),
            _ => drop(self.by_tokens.insert((parent, tokens), place)),
        }
        self.by_id.insert(id, place);
        let len = self.unit_len(kind);
        (self.used, self.in_flight) = (self.used + len, self.in_flight + len);
        place
    }

    pub(super) fn add(&mut self, entry: Entry) -> Place {
        match self.spare.pop() {
            Some(place) => {
                self.entries[place as usize] = Some(entry);
                place
            }
            None => {
                self.entries.push(Some(entry));
                self.entries.len() as Place - 1
            }
        }
    }

    /// Removes an entry with all that continues it, then those above it that nothing continues any more.
    pub(super) fn remove_below(&mut self, place: Place) {
        let mut all = vec![place];
        let mut next = 0;
        while next < all.len() {
            let entry = self.entry(all[next]);
            let below: Vec<Place> = entry.blocks.iter().chain(&entry.tails).chain(&entry.state).copied().collect();
            all.extend(below);
            next += 1;
        }
        let above = self.entry(place).parent;
        all.into_iter().rev().for_each(|place| self.remove(place));
        above.into_iter().for_each(|above| self.prune(above));
    }

    /// Removes entries from a place upwards that nothing continues.
    pub(super) fn prune(&mut self, place: Place) {
        let mut at = Some(place);
        while let Some(place) = at {
            let entry = self.entry(place);
            if !entry.is_leaf() || entry.pinned {
                return;
            }
            at = entry.parent;
            self.remove(place);
        }
    }

    /// Removes a leaf.
    pub(super) fn remove(&mut self, place: Place) {
        let Some(entry) = self.entries[place as usize].take() else { return };
        self.spare.push(place);
        let Some(record) = entry.record else {
            self.roots.retain(|_, root| *root != place);
            return;
        };
        self.by_id.remove(&record.id);
        self.removed.push(record.id);
        let len = self.unit_len(record.kind);
        self.used -= len;
        self.in_flight -= if entry.written { 0 } else { len };
        if record.kind == RecordKind::State {
            self.states.remove(place);
        } else if let Some(parent) = entry.parent {
            self.by_tokens.remove(&(parent, record.tokens));
        }
        if let Some(above) = entry.parent.and_then(|parent| self.entries[parent as usize].as_mut()) {
            above.blocks.retain(|other| *other != place);
            above.tails.retain(|other| *other != place);
            above.state = above.state.filter(|other| *other != place);
        }
    }
}
