//! One stretch of memory for two kinds of units: blocks grow from its start, state slots from its end.
//!
//! Ids are virtual. Where a unit lies is asked when a step is prepared, so units may be moved between steps: when one
//! kind needs room that exists only in holes of the other, the outermost units move into the innermost holes. Whoever does
//! the moves does them in order with steps: after every step that was given the old places, before any that is given the
//! new ones. So no unit moves under a step, and none need be held for one.

use crate::holes::Holes;

/// A latent block.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BlockId(pub u32);

/// A state slot in one of its lendings. Two lendings under the same index differ in their generation, so that a stale id
/// is told from a current one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SlotId {
    /// Number of the lending place.
    pub index: u32,
    /// How many times that number was lent before.
    pub generation: u64,
}

/// A place in the arena: unit `i` of a kind, counted from the start of the arena as the device counts them.
pub type Place = u32;

/// Sizes of an arena and its units, in any one unit of length.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ArenaShape {
    /// Length of the arena.
    pub len: usize,
    /// Length of a block, at least 1.
    pub block_len: usize,
    /// Length of a slot, at least 1.
    pub slot_len: usize,
}

impl ArenaShape {
    /// Blocks that fit when there are no slots.
    pub fn max_blocks(&self) -> usize {
        self.len / self.block_len
    }

    /// Slots that fit when there are no blocks.
    pub fn max_slots(&self) -> usize {
        self.len / self.slot_len
    }
}

/// The two kinds of units.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum UnitKind {
    /// A latent block.
    Block,
    /// A state slot.
    Slot,
}

/// A unit that is to be copied to another place, after which its old place is free.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Move {
    /// What moves.
    pub kind: UnitKind,
    /// From where.
    pub from: Place,
    /// To where.
    pub to: Place,
}

const NOWHERE: u32 = u32::MAX;

/// Units of one kind, by their distance from the end of the arena at which they grow.
#[derive(Debug, Default)]
struct Region {
    /// Per virtual id: distance, or [`NOWHERE`].
    place_of: Vec<u32>,
    /// Per distance: virtual id, or [`NOWHERE`]. As long as the region extends.
    unit_at: Vec<u32>,
    /// Free distances below the extent.
    holes: Holes,
    /// Virtual ids that may be lent again.
    spare_ids: Vec<u32>,
}

impl Region {
    fn used(&self) -> usize {
        self.unit_at.len() - self.holes.len()
    }

    fn extent(&self) -> usize {
        self.unit_at.len()
    }

    fn distance(&self, id: u32) -> Option<u32> {
        self.place_of.get(id as usize).copied().filter(|place| *place != NOWHERE)
    }

    /// Lends the innermost hole, or one more unit where the caller has found room for it.
    fn lend(&mut self, may_extend: bool) -> Option<u32> {
        let place = match self.holes.first() {
            Some(hole) => {
                self.holes.remove(hole);
                hole
            }
            None if may_extend => {
                self.unit_at.push(NOWHERE);
                u32::try_from(self.unit_at.len() - 1).ok()?
            }
            None => return None,
        };
        let id = self.spare_ids.pop().unwrap_or_else(|| {
            self.place_of.push(NOWHERE);
            u32::try_from(self.place_of.len() - 1).unwrap_or(NOWHERE)
        });
        self.put(id, place);
        Some(id)
    }

    fn put(&mut self, id: u32, place: u32) {
        self.place_of[id as usize] = place;
        self.unit_at[place as usize] = id;
    }

    fn take_back(&mut self, id: u32) {
        let Some(place) = self.distance(id) else { return };
        self.place_of[id as usize] = NOWHERE;
        self.spare_ids.push(id);
        self.vacate(place);
    }

    fn vacate(&mut self, place: u32) {
        self.unit_at[place as usize] = NOWHERE;
        self.holes.insert(place);
        while self.unit_at.last() == Some(&NOWHERE) {
            self.unit_at.pop();
            self.holes.remove(self.unit_at.len() as u32);
        }
    }

    /// Moves the outermost unit into the innermost hole; `None` where there is no hole.
    fn compact(&mut self) -> Option<(u32, u32)> {
        let to = self.holes.first()?;
        let from = u32::try_from(self.unit_at.len() - 1).ok()?;
        let id = self.unit_at[from as usize];
        self.holes.remove(to);
        self.put(id, to);
        self.vacate(from);
        Some((from, to))
    }
}

/// The arena: who lies where, what is free. Holds no memory itself.
#[derive(Debug)]
pub struct Arena {
    shape: ArenaShape,
    blocks: Region,
    slots: Region,
    /// Per slot index: the generation it is lent in now or will be lent in next.
    generations: Vec<u64>,
}

impl Arena {
    /// An empty arena.
    pub fn new(shape: ArenaShape) -> Self {
        Arena { shape, blocks: Region::default(), slots: Region::default(), generations: Vec::new() }
    }

    /// Its sizes.
    pub fn shape(&self) -> ArenaShape {
        self.shape
    }

    /// Blocks lent.
    pub fn blocks_used(&self) -> usize {
        self.blocks.used()
    }

    /// Slots lent.
    pub fn slots_used(&self) -> usize {
        self.slots.used()
    }

    /// Length that nobody holds, in holes and between the two regions.
    pub fn free_len(&self) -> usize {
        self.shape.len - self.blocks.used() * self.shape.block_len - self.slots.used() * self.shape.slot_len
    }

    /// Units of a kind that can be lent without moving anything.
    pub fn free_now(&self, kind: UnitKind) -> usize {
        self.region(kind).holes.len() + self.gap() / self.unit_len(kind)
    }

    /// Units of a kind that can be lent if everything that may move moves.
    pub fn free_after_compaction(&self, kind: UnitKind) -> usize {
        self.free_len() / self.unit_len(kind)
    }

    /// Lends a block; `None` where there is no room without moving something.
    pub fn lend_block(&mut self) -> Option<BlockId> {
        let may_extend = self.gap() >= self.shape.block_len;
        self.blocks.lend(may_extend).map(BlockId)
    }

    /// Lends a slot, whose contents are whatever lay there; `None` where there is no room without moving something.
    pub fn lend_slot(&mut self) -> Option<SlotId> {
        let may_extend = self.gap() >= self.shape.slot_len;
        let index = self.slots.lend(may_extend)?;
        if self.generations.len() <= index as usize {
            self.generations.resize(index as usize + 1, 0);
        }
        Some(SlotId { index, generation: self.generations[index as usize] })
    }

    /// Takes a block back.
    pub fn free_block(&mut self, id: BlockId) {
        self.blocks.take_back(id.0);
    }

    /// Takes a slot back; a stale id frees nothing.
    pub fn free_slot(&mut self, id: SlotId) {
        if self.slot_place(id).is_some() {
            self.slots.take_back(id.index);
            self.generations[id.index as usize] += 1;
        }
    }

    /// Where a block lies; `None` where it is not lent.
    pub fn block_place(&self, id: BlockId) -> Option<Place> {
        self.blocks.distance(id.0)
    }

    /// Where a slot lies; `None` where this lending has ended.
    pub fn slot_place(&self, id: SlotId) -> Option<Place> {
        let current = self.generations.get(id.index as usize) == Some(&id.generation);
        let distance = self.slots.distance(id.index).filter(|_| current)?;
        Some(self.counted_from_start(distance))
    }

    /// Moves units of the other kind inwards until one more unit of this kind fits, if that can be had: nothing moves
    /// where there is room already, or where there would not be any afterwards. The moves are to be done in their order
    /// before anything else is.
    pub fn make_room(&mut self, kind: UnitKind) -> Vec<Move> {
        let mut moves = Vec::new();
        if self.free_after_compaction(kind) == 0 {
            return moves;
        }
        while self.free_now(kind) == 0 {
            let other = if kind == UnitKind::Block { UnitKind::Slot } else { UnitKind::Block };
            // Holes of its own kind would have done; so the holes are the other kind's.
            let Some((from, to)) = self.region_mut(other).compact() else { break };
            moves.push(match other {
                UnitKind::Block => Move { kind: other, from, to },
                UnitKind::Slot => {
                    Move { kind: other, from: self.counted_from_start(from), to: self.counted_from_start(to) }
                }
            });
        }
        moves
    }

    fn counted_from_start(&self, distance: u32) -> Place {
        u32::try_from(self.shape.max_slots()).unwrap_or(NOWHERE) - 1 - distance
    }

    /// Length between the two regions.
    fn gap(&self) -> usize {
        let (blocks, slots) = (self.blocks.extent() * self.shape.block_len, self.slots.extent() * self.shape.slot_len);
        self.shape.len - blocks - slots
    }

    fn unit_len(&self, kind: UnitKind) -> usize {
        match kind {
            UnitKind::Block => self.shape.block_len,
            UnitKind::Slot => self.shape.slot_len,
        }
    }

    fn region(&self, kind: UnitKind) -> &Region {
        match kind {
            UnitKind::Block => &self.blocks,
            UnitKind::Slot => &self.slots,
        }
    }

    fn region_mut(&mut self, kind: UnitKind) -> &mut Region {
        match kind {
            UnitKind::Block => &mut self.blocks,
            UnitKind::Slot => &mut self.slots,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn arena(len: usize) -> Arena {
        Arena::new(ArenaShape { len, block_len: 1, slot_len: 10 })
    }

    #[test]
    fn the_two_kinds_grow_towards_each_other() {
        let mut arena = arena(25);
        let (a, b) = (arena.lend_slot().expect("room"), arena.lend_block().expect("room"));
        assert_eq!((arena.slot_place(a), arena.block_place(b)), (Some(1), Some(0)));
        let c = arena.lend_slot().expect("room");
        assert_eq!(arena.slot_place(c), Some(0));
        assert_eq!(arena.free_now(UnitKind::Block), 4);
        let more: Vec<_> = std::iter::from_fn(|| arena.lend_block()).collect();
        assert_eq!(more.len(), 4);
        assert!(arena.lend_slot().is_none() && arena.free_len() == 0);
    }

    #[test]
    fn a_slot_comes_back_in_a_new_generation() {
        let mut arena = arena(10);
        let first = arena.lend_slot().expect("room");
        arena.free_slot(first);
        assert_eq!(arena.slot_place(first), None);
        let second = arena.lend_slot().expect("room");
        assert_eq!((second.index, second.generation), (first.index, first.generation + 1));
        arena.free_slot(first);
        assert!(arena.slot_place(second).is_some(), "a stale id frees nothing");
        assert_eq!(arena.slot_place(SlotId { index: 9, generation: 0 }), None);
    }

    #[test]
    fn holes_of_one_kind_become_room_for_the_other() {
        let mut arena = arena(30);
        let blocks: Vec<_> = (0..20).filter_map(|_| arena.lend_block()).collect();
        let slot = arena.lend_slot().expect("room");
        // Every second block goes: ten holes, none of which a slot can use.
        blocks.iter().step_by(2).for_each(|id| arena.free_block(*id));
        assert_eq!((arena.free_now(UnitKind::Slot), arena.free_after_compaction(UnitKind::Slot)), (0, 1));
        assert!(arena.lend_slot().is_none());
        let moves = arena.make_room(UnitKind::Slot);
        assert_eq!(moves.len(), 5);
        assert!(moves.iter().all(|m| m.kind == UnitKind::Block && m.to < m.from));
        let other = arena.lend_slot().expect("there is room now");
        assert_ne!(arena.slot_place(slot), arena.slot_place(other));
        let mut places: Vec<_> = blocks.iter().skip(1).step_by(2).map(|id| arena.block_place(*id)).collect();
        places.sort_unstable();
        assert_eq!(places, (0..10).map(Some).collect::<Vec<_>>());
        assert!(arena.make_room(UnitKind::Block).is_empty(), "full");
    }
}
