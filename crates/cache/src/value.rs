//! What a saved state is worth, and who is worth least: tokens that a hit saves × how likely one is, per length held.
//!
//! An item is a checkpoint with the blocks that only it keeps alive. How likely a hit is follows from what was seen: the
//! more sequences started from a place, and the more recently, the sooner the next one will; a place that was passed by
//! on the way to a later one will less. Values change with time and with what else is stored, so they are worked out when
//! they are compared, over a sample where there are many.

/// Items that are compared when one has to go.
const SAMPLE: usize = 16;
/// Sequences that may start before an item counts as half as likely: what has just been used is not compared by age.
const GRACE: f64 = 16.0;
/// How likely a hit on a place that was passed by is, relative to one at the end of a prefix.
const PASSED: f64 = 0.25;

/// A value; comparable among all items.
#[derive(Debug, Clone, Copy, PartialEq, PartialOrd)]
pub(crate) struct Value(f64);

/// What was seen of an item.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Seen {
    /// Sequences that started from it.
    pub(crate) starts: u32,
    /// Sequences that have started since it was last used or saved.
    pub(crate) age: u64,
    /// Whether a later state lies on the same path.
    pub(crate) passed: bool,
}

impl Seen {
    /// Something new.
    pub(crate) const NEW: Seen = Seen { starts: 0, age: 0, passed: false };

    fn likelihood(self) -> f64 {
        let place = if self.passed && self.starts < 2 { PASSED } else { 1.0 };
        place * (1.0 + f64::from(self.starts)) / (self.age as f64 + GRACE)
    }
}

impl Value {
    pub(crate) fn total_cmp(&self, other: &Value) -> std::cmp::Ordering {
        self.0.total_cmp(&other.0)
    }

    /// The value of an item whose hits save `tokens`, which holds `len`.
    pub(crate) fn new((tokens, seen): (usize, Seen), len: usize) -> Self {
        Value(tokens as f64 * seen.likelihood() / len.max(1) as f64)
    }
}

/// Items of one place, in no order.
#[derive(Debug, Default)]
pub(crate) struct Shelf {
    items: Vec<u32>,
    /// Per item: where it stands.
    place_of: Vec<u32>,
    random: u64,
}

const NOWHERE: u32 = u32::MAX;

impl Shelf {
    pub(crate) fn insert(&mut self, item: u32) {
        if self.place_of.len() <= item as usize {
            self.place_of.resize(item as usize + 1, NOWHERE);
        }
        self.place_of[item as usize] = self.items.len() as u32;
        self.items.push(item);
    }

    /// Takes an item out; one that is not here changes nothing.
    pub(crate) fn remove(&mut self, item: u32) {
        let Some(place) = self.place_of.get(item as usize).copied().filter(|place| *place != NOWHERE) else { return };
        self.items.swap_remove(place as usize);
        if let Some(moved) = self.items.get(place as usize) {
            self.place_of[*moved as usize] = place;
        }
        self.place_of[item as usize] = NOWHERE;
    }

    /// All of them.
    pub(crate) fn items(&self) -> &[u32] {
        &self.items
    }

    /// The item of least value, of all or of a sample; the same for the same history.
    pub(crate) fn least(&mut self, value: impl Fn(u32) -> Value) -> Option<(Value, u32)> {
        let sample = if self.items.len() <= SAMPLE { self.items.len() } else { SAMPLE };
        let mut least: Option<(Value, u32)> = None;
        for i in 0..sample {
            let place = if sample == self.items.len() { i } else { self.draw() };
            let item = self.items[place];
            let value = value(item);
            if least.is_none_or(|(other, _)| value < other) {
                least = Some((value, item));
            }
        }
        least
    }

    fn draw(&mut self) -> usize {
        self.random = self.random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.random >> 33) as usize % self.items.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn more_saved_sooner_and_smaller_is_worth_more() {
        let value = |tokens, starts, age, passed| Value::new((tokens, Seen { starts, age, passed }), 100);
        let plain = value(100, 0, 50, false);
        assert!(value(200, 0, 50, false) > plain && value(100, 1, 50, false) > plain);
        assert!(value(100, 0, 51, false) < plain && value(100, 0, 50, true) < plain);
        assert!(value(100, 2, 50, true) > value(100, 1, 50, false), "several went on from there");
        assert!(Value::new((100, Seen::NEW), 50) > Value::new((100, Seen::NEW), 51));
    }

    #[test]
    fn the_least_of_few_is_exact_and_nothing_removed_comes_back() {
        let mut shelf = Shelf::default();
        (0..12).for_each(|item| shelf.insert(item));
        let value = |item: u32| Value(f64::from((item * 7) % 12));
        for expected in 0..12 {
            let (least, item) = shelf.least(value).expect("not empty");
            assert_eq!(least, Value(f64::from(expected)));
            shelf.remove(item);
            shelf.remove(item);
        }
        assert!(shelf.least(value).is_none());
    }

    #[test]
    fn the_least_of_many_is_among_the_low_ones() {
        let mut shelf = Shelf::default();
        (0..10_000).for_each(|item| shelf.insert(item));
        for _ in 0..100 {
            let (value, item) = shelf.least(|item| Value(f64::from(item))).expect("not empty");
            assert!(value < Value(4000.0), "{item} is none of the low ones");
        }
    }
}
