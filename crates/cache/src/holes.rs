//! A set of places of which the lowest is wanted, again and again: bits, and a bit per word of them.

/// Places in no particular range; memory grows with the largest one.
#[derive(Debug, Default)]
pub(crate) struct Holes {
    words: Vec<u64>,
    /// Bit `i % 64` of word `i / 64` is set where `words[i]` is not 0.
    summary: Vec<u64>,
    len: usize,
}

impl Holes {
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    pub(crate) fn first(&self) -> Option<u32> {
        let outer = self.summary.iter().position(|word| *word != 0)?;
        let word = outer * 64 + self.summary[outer].trailing_zeros() as usize;
        Some((word * 64) as u32 + self.words[word].trailing_zeros())
    }

    /// Adds a place that is not in the set.
    pub(crate) fn insert(&mut self, place: u32) {
        let word = place as usize / 64;
        if self.words.len() <= word {
            self.words.resize(word + 1, 0);
            self.summary.resize(word / 64 + 1, 0);
        }
        self.words[word] |= 1 << (place % 64);
        self.summary[word / 64] |= 1 << (word % 64);
        self.len += 1;
    }

    /// Takes a place out that is in the set.
    pub(crate) fn remove(&mut self, place: u32) {
        let word = place as usize / 64;
        self.words[word] &= !(1 << (place % 64));
        if self.words[word] == 0 {
            self.summary[word / 64] &= !(1 << (word % 64));
        }
        self.len -= 1;
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn the_lowest_is_the_lowest() {
        let (mut holes, mut model, mut random) = (Holes::default(), BTreeSet::new(), 1_u64);
        for _ in 0..100_000 {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let place = (random >> 33) as u32 % 9000;
            if model.insert(place) {
                holes.insert(place);
            } else {
                model.remove(&place);
                holes.remove(place);
            }
            assert_eq!((holes.first(), holes.len()), (model.first().copied(), model.len()));
        }
    }
}
