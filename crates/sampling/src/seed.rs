//! Seeds: one per choice of a request, and one for requests that bring none.

use std::hash::{BuildHasher, RandomState};

/// The seed of choice `index` of a request with `seed`.
///
/// Choice 0 has the request's own seed, so that one choice of many equals a request for one. Choice `i` has
/// `mix(seed + i · 0x9E3779B97F4A7C15)` with the finalizer of SplitMix64, wrapping.
///
/// Source: Steele, Lea, Flood, "Fast splittable pseudorandom number generators" (2014).
pub fn derived_seed(seed: u64, index: usize) -> u64 {
    if index == 0 {
        return seed;
    }
    mix(seed.wrapping_add((index as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15)))
}

fn mix(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

/// Seeds for requests that bring none: different for every request and every process.
#[derive(Debug)]
pub struct SeedSource {
    base: u64,
    next: u64,
}

impl SeedSource {
    /// A source that starts from the operating system's randomness.
    pub fn from_entropy() -> Self {
        SeedSource { base: RandomState::new().hash_one(0_u64), next: 0 }
    }

    /// A source that always gives the same seeds.
    pub fn from_seed(seed: u64) -> Self {
        SeedSource { base: mix(seed), next: 0 }
    }

    /// The next seed.
    pub fn draw(&mut self) -> u64 {
        self.next = self.next.wrapping_add(1);
        mix(self.base ^ mix(self.next))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn choices_have_seeds_of_their_own() {
        assert_eq!(derived_seed(42, 0), 42);
        // SplitMix64 seeded with 0 gives this as its first output.
        assert_eq!(derived_seed(0, 1), 0xE220_A839_7B1D_CDAF);
        let seeds: std::collections::BTreeSet<_> = (0..1000).map(|i| derived_seed(42, i)).collect();
        assert_eq!(seeds.len(), 1000);
    }

    #[test]
    fn a_source_does_not_repeat() {
        let mut source = SeedSource::from_entropy();
        let seeds: std::collections::BTreeSet<_> = (0..1000).map(|_| source.draw()).collect();
        assert_eq!(seeds.len(), 1000);
    }
}
