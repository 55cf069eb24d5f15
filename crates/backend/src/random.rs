//! Random numbers that are a function of seed and step, so that a draw does not depend on what was drawn before.

/// The random number of a draw ([`crate::Choice::Draw`]), in `[0, 1)` with 53 random bits: the same on every backend.
pub fn uniform(seed: u64, step: u64) -> f64 {
    let bits = scramble(scramble(seed).wrapping_add(scramble(!step)));
    (bits >> 11) as f64 / (1_u64 << 53) as f64
}

/// Streams of random numbers that have nothing to do with each other, nor with [`uniform`]'s.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RandomStream {
    /// Draws of a draft.
    Proposal,
    /// Whether drafts are kept.
    Coin,
}

/// Random number `index` of those that belong to `step` in a stream, in `[0, 1)`.
pub fn uniform_of(stream: RandomStream, seed: u64, step: u64, index: u64) -> f64 {
    let stream = match stream {
        RandomStream::Proposal => 0x5052_4F50,
        RandomStream::Coin => 0x434F_494E,
    };
    uniform(scramble(seed ^ scramble(stream)).wrapping_add(scramble(step)), index)
}

/// Spreads every bit of the input over all bits of the output; a bijection.
fn scramble(x: u64) -> u64 {
    let mut x = x.wrapping_add(0xD1B5_4A32_D192_ED03);
    for shift in [32, 29, 32] {
        x = (x ^ (x >> shift)).wrapping_mul(0xAEF1_7502_108E_F2D9);
    }
    x ^ (x >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Counts of the numbers in 16 equal bins must look like those of fair draws.
    fn check_fair(draws: impl Iterator<Item = f64>) {
        let (mut bins, mut total) = ([0_u32; 16], 0_u32);
        for u in draws {
            assert!((0.0..1.0).contains(&u));
            bins[(u * 16.0) as usize] += 1;
            total += 1;
        }
        let expected = f64::from(total) / 16.0;
        let chi2: f64 = bins.iter().map(|n| (f64::from(*n) - expected).powi(2) / expected).sum();
        // 15 degrees of freedom: 44 is passed once in ten thousand.
        assert!(chi2 < 44.0, "{bins:?}");
    }

    #[test]
    fn fair_along_seeds_along_steps_and_from_one_to_the_next() {
        check_fair((0..64_000).map(|seed| uniform(seed, 3)));
        check_fair((0..64_000).map(|step| uniform(42, step)));
        check_fair((0..64_000).map(|step| (uniform(7, step) - uniform(7, step + 1)).rem_euclid(1.0)));
        check_fair((0..64_000).map(|i| (uniform(i, i) - uniform(i + 1, i)).rem_euclid(1.0)));
        for stream in [RandomStream::Coin, RandomStream::Proposal] {
            check_fair((0..64_000).map(|i| uniform_of(stream, 5, i / 8, i % 8)));
            check_fair((0..64_000).map(|i| (uniform_of(stream, 5, i, 0) - uniform(5, i)).rem_euclid(1.0)));
            check_fair(
                (0..64_000).map(|i| (uniform_of(stream, i, 3, 1) - uniform_of(stream, i, 4, 0)).rem_euclid(1.0)),
            );
        }
    }
}
