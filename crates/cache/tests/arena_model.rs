//! The arena against a model that keeps a list of intervals: a million random operations, and after each the same
//! answers, nothing overlapping, nothing moved without a word, and all that is free to be had.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "test code")]

mod random;

use std::collections::BTreeMap;

use perilune_cache::{Arena, ArenaShape, BlockId, SlotId, UnitKind};
use random::Random;

/// What the model knows: where every unit was last seen.
struct Model {
    shape: ArenaShape,
    arena: Arena,
    blocks: BTreeMap<BlockId, u32>,
    slots: BTreeMap<SlotId, u32>,
    moves: usize,
}

impl Model {
    fn new(shape: ArenaShape) -> Self {
        let arena = Arena::new(shape);
        Model { shape, arena, blocks: BTreeMap::new(), slots: BTreeMap::new(), moves: 0 }
    }

    fn used(&self) -> usize {
        self.blocks.len() * self.shape.block_len + self.slots.len() * self.shape.slot_len
    }

    fn interval(&self, kind: UnitKind, place: u32) -> (usize, usize) {
        let ArenaShape { len, block_len, slot_len } = self.shape;
        match kind {
            UnitKind::Block => (place as usize * block_len, block_len),
            UnitKind::Slot => (len - (self.shape.max_slots() - place as usize) * slot_len, slot_len),
        }
    }

    fn lend(&mut self, kind: UnitKind) {
        let free = self.arena.free_now(kind);
        let lent = match kind {
            UnitKind::Block => self.arena.lend_block().map(|id| {
                let place = self.arena.block_place(id).unwrap();
                assert!(self.blocks.insert(id, place).is_none(), "lent twice");
            }),
            UnitKind::Slot => self.arena.lend_slot().map(|id| {
                let place = self.arena.slot_place(id).unwrap();
                assert!(self.slots.insert(id, place).is_none(), "lent twice in one generation");
            }),
        };
        assert_eq!(lent.is_some(), free > 0);
    }

    fn free(&mut self, random: &mut Random) {
        let block = self.blocks.keys().nth(random.below(self.blocks.len().max(1))).copied();
        if let Some(id) = block {
            self.blocks.remove(&id);
            self.arena.free_block(id);
            assert_eq!(self.arena.block_place(id), None);
        }
        let slot = self.slots.keys().nth(random.below(4 * self.slots.len().max(1))).copied();
        if let Some(id) = slot {
            self.slots.remove(&id);
            self.arena.free_slot(id);
            assert_eq!(self.arena.slot_place(id), None);
        }
    }

    /// Follows the moves; what moves was where it is said to come from, and goes to where nothing is.
    fn make_room(&mut self, kind: UnitKind) {
        let could = self.arena.free_after_compaction(kind);
        assert_eq!(could, (self.shape.len - self.used()) / self.shape_len(kind));
        let moves = self.arena.make_room(kind);
        self.moves += moves.len();
        for m in &moves {
            let units: Box<dyn Iterator<Item = &mut u32>> = match m.kind {
                UnitKind::Block => Box::new(self.blocks.values_mut()),
                UnitKind::Slot => Box::new(self.slots.values_mut()),
            };
            let mut places: Vec<&mut u32> = units.collect();
            assert!(places.iter().all(|place| **place != m.to), "moved onto another");
            **places.iter_mut().find(|place| ***place == m.from).expect("nothing lies there") = m.to;
        }
        assert_eq!(self.arena.free_now(kind) > 0, could > 0, "all that is free can be used");
    }

    /// Lends up to `most` units: as many as free memory holds, however it is scattered.
    fn fill(&mut self, kind: UnitKind, most: usize) {
        let wanted = most.min((self.shape.len - self.used()) / self.shape_len(kind));
        for _ in 0..wanted {
            self.make_room(kind);
            let before = self.used();
            self.lend(kind);
            assert_eq!(self.used(), before + self.shape_len(kind), "what is free cannot be had");
        }
    }

    fn shape_len(&self, kind: UnitKind) -> usize {
        if kind == UnitKind::Block { self.shape.block_len } else { self.shape.slot_len }
    }

    fn check(&self) {
        assert_eq!(self.arena.free_len(), self.shape.len - self.used());
        assert_eq!((self.arena.blocks_used(), self.arena.slots_used()), (self.blocks.len(), self.slots.len()));
    }

    fn check_all(&self) {
        let mut taken = Vec::new();
        for (id, place) in &self.blocks {
            assert_eq!(self.arena.block_place(*id), Some(*place), "moved without a word");
            taken.push(self.interval(UnitKind::Block, *place));
        }
        for (id, place) in &self.slots {
            assert_eq!(self.arena.slot_place(*id), Some(*place), "moved without a word");
            taken.push(self.interval(UnitKind::Slot, *place));
        }
        taken.sort_unstable();
        assert!(taken.windows(2).all(|pair| pair[0].0 + pair[0].1 <= pair[1].0), "two units overlap");
        assert!(taken.last().is_none_or(|(start, len)| start + len <= self.shape.len), "past the end");
    }
}

#[test]
fn a_million_operations() {
    let mut random = Random(5);
    let mut moves = 0;
    for (round, shape) in [(240, 1, 17), (500, 3, 7), (90, 10, 4), (64, 8, 8), (1000, 1, 250)].into_iter().enumerate() {
        let (len, block_len, slot_len) = shape;
        let mut model = Model::new(ArenaShape { len, block_len, slot_len });
        for step in 0..200_000 {
            match random.below(16) {
                0..5 => model.lend(UnitKind::Block),
                5 | 6 => model.lend(UnitKind::Slot),
                7..12 => model.free(&mut random),
                12 => model.make_room(UnitKind::Slot),
                13 => model.make_room(UnitKind::Block),
                14 => model.fill(UnitKind::Slot, random.below(4)),
                _ => model.fill(UnitKind::Block, random.below(30)),
            }
            model.check();
            if step % 50 == 0 {
                model.check_all();
            }
        }
        for id in model.blocks.keys().copied().collect::<Vec<_>>() {
            model.arena.free_block(id);
        }
        for id in model.slots.keys().copied().collect::<Vec<_>>() {
            model.arena.free_slot(id);
        }
        assert_eq!(model.arena.free_len(), len, "round {round}: a leak");
        moves += model.moves;
    }
    assert!(moves > 1000, "only {moves} moves");
}
