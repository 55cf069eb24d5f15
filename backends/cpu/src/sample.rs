//! Sampling and log-probabilities, a row per task.
//!
//! The vocabulary is never sorted as a whole: greedy and plain draws read it once or twice, top-k selects, and top-p
//! looks at the most likely tokens in growing pieces until their mass suffices.

use perilune_backend::{BackendError, Choice, Sample, SampleRow, SampledRow, TopLogprob, uniform};
use perilune_tensor::TokenId;

use crate::CpuBackend;
use crate::select::largest;
use crate::simd::{Kernel, Simd, SimdLevel, exp};
use crate::tensor::{CpuTensor, Parted};

/// How many of the most likely tokens top-p looks at first.
const FIRST_LOOK: usize = 64;

/// One result per row asked for.
pub(crate) fn sample(cpu: &CpuBackend, op: Sample<'_, CpuTensor>) -> Result<Vec<SampledRow>, BackendError> {
    let vocabulary = op.dims()?;
    let logits = op.logits.f32()?;
    let mut results = vec![SampledRow::NonFinite; op.rows.len()];
    let parts = Parted::new(&mut results);
    cpu.parallel(op.rows.len(), op.rows.len() * vocabulary * 8, |_, i| {
        let asked = &op.rows[i];
        let row = &logits[asked.row * vocabulary..(asked.row + 1) * vocabulary];
        // SAFETY: each task has a result of its own.
        let result = unsafe { parts.part(i..i + 1) };
        result[0] = sample_row(cpu.level(), asked, row);
    })?;
    Ok(results)
}

fn sample_row(level: SimdLevel, asked: &SampleRow, logits: &[f32]) -> SampledRow {
    let Some(max) = level.run(FiniteMax(logits)) else { return SampledRow::NonFinite };
    let Some(id) = choose(level, asked, logits) else { return SampledRow::NonFinite };
    let Some(count) = asked.top_logprobs else {
        return SampledRow::Token { chosen: TopLogprob { id, logprob: 0.0 }, top: Vec::new() };
    };
    let total = level.run(SumExp { logits, max, temperature: 1.0 }).ln();
    let scored = |id: u32| {
        let logprob = (f64::from(logits[id as usize]) - f64::from(max) - total) as f32;
        TopLogprob { id: TokenId(id), logprob }
    };
    SampledRow::Token { chosen: scored(id.0), top: largest(logits, count).into_iter().map(scored).collect() }
}

/// The token; `None` where every token is banned or a bias overflows.
fn choose(level: SimdLevel, asked: &SampleRow, logits: &[f32]) -> Option<TokenId> {
    let filters = match asked.choice {
        Choice::Given(id) => return Some(id),
        Choice::Draw { temperature, top_k, top_p, min_p, seed, step } => {
            Filters { temperature, top_k: top_k as usize, top_p, min_p, uniform: uniform(seed, step) }
        }
    };
    let mut adjusted;
    let logits = if asked.adjusts() {
        adjusted = logits.to_vec();
        asked.adjust(&mut adjusted);
        &adjusted
    } else {
        logits
    };
    let max = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    if !max.is_finite() {
        return None;
    }
    let id = if filters.temperature > 0.0 { filters.draw(level, logits, max) } else { None };
    // The largest logit is also what a draw falls back to where rounding left nothing.
    id.or_else(|| logits.iter().position(|l| *l == max)).map(|id| TokenId(id as u32))
}

/// A draw's parameters with its random number.
struct Filters {
    temperature: f32,
    top_k: usize,
    top_p: f32,
    min_p: f32,
    uniform: f64,
}

impl Filters {
    fn draw(&self, level: SimdLevel, logits: &[f32], max: f32) -> Option<usize> {
        if self.top_k == 0 && self.top_p >= 1.0 {
            return self.draw_unsorted(level, logits, max);
        }
        let whole = if self.top_k == 0 { logits.len() } else { self.top_k.min(logits.len()) };
        // The mass that top-p is a share of: that of the top-k.
        let (mut looked_at, total) = if self.top_k == 0 {
            (FIRST_LOOK.min(whole), level.run(SumExp { logits, max, temperature: self.temperature }))
        } else {
            (whole, f64::INFINITY)
        };
        loop {
            let ids = largest(logits, looked_at);
            let weights: Vec<f64> = ids.iter().map(|id| self.weight(logits[*id as usize], max)).collect();
            let total = if total.is_finite() { total } else { weights.iter().sum() };
            let kept = self.kept(&weights, total);
            if kept < looked_at || looked_at == whole {
                return pick(&weights[..kept], self.uniform).map(|i| ids[i] as usize);
            }
            looked_at = (looked_at * 8).min(whole);
        }
    }

    /// Without top-k and top-p, min-p is a threshold, so the order of tokens does not matter.
    fn draw_unsorted(&self, level: SimdLevel, logits: &[f32], max: f32) -> Option<usize> {
        let (temperature, least) = (self.temperature, self.min_p);
        let total = level.run(Cumulate { logits, max, temperature, least, until: f64::INFINITY }).0;
        level.run(Cumulate { logits, max, temperature, least, until: self.uniform * total }).1
    }

    /// Probability up to a common factor; the most likely token has 1.
    fn weight(&self, logit: f32, max: f32) -> f64 {
        f64::from((logit - max) / self.temperature).exp()
    }

    /// How many of the falling weights top-p and min-p keep, at least 1.
    fn kept(&self, weights: &[f64], total: f64) -> usize {
        let mut mass = 0.0;
        for (i, weight) in weights.iter().enumerate() {
            let reached = self.top_p < 1.0 && mass >= f64::from(self.top_p) * total;
            if i > 0 && (reached || *weight < f64::from(self.min_p) * weights[0]) {
                return i;
            }
            mass += weight;
        }
        weights.len()
    }
}

/// Index of the weight in whose share of the sum `uniform` falls.
fn pick(weights: &[f64], uniform: f64) -> Option<usize> {
    let target = uniform * weights.iter().sum::<f64>();
    let mut mass = 0.0;
    weights.iter().position(|weight| {
        mass += weight;
        mass > target
    })
}

/// The largest value; `None` where any is not finite.
struct FiniteMax<'a>(&'a [f32]);

impl Kernel for FiniteMax<'_> {
    type Output = Option<f32>;

    #[inline(always)]
    fn run<S: Simd>(self, s: S) -> Option<f32> {
        let first = *self.0.first()?;
        let (mut max, mut check, zero) = (s.splat(first), s.splat(0.0), s.splat(0.0));
        let whole = self.0.len() - self.0.len() % S::LANES;
        for i in (0..whole).step_by(S::LANES) {
            let value = s.load(self.0, i);
            // An infinity times 0 is NaN, and NaN stays.
            check = s.fma(value, zero, check);
            max = s.max(value, max);
        }
        let mut lanes = [first; crate::simd::MAX_LANES];
        s.store(&mut lanes[..S::LANES], 0, max);
        let tail = &self.0[whole..];
        let finite = s.sum(check) == 0.0 && tail.iter().all(|v| v.is_finite());
        finite.then(|| lanes.iter().chain(tail).copied().fold(first, f32::max))
    }
}

/// `Σ_i e^((l_i - max) / T)`.
struct SumExp<'a> {
    logits: &'a [f32],
    max: f32,
    temperature: f32,
}

impl Kernel for SumExp<'_> {
    type Output = f64;

    #[inline(always)]
    fn run<S: Simd>(self, s: S) -> f64 {
        let Self { logits, max, temperature } = self;
        Cumulate { logits, max, temperature, least: 0.0, until: f64::INFINITY }.run(s).0
    }
}

/// Adds up weights `e^((l_i - max) / T)` of at least `least` in the order of ids, until the sum exceeds `until`: the
/// sum, and the id at which that happened.
struct Cumulate<'a> {
    logits: &'a [f32],
    max: f32,
    temperature: f32,
    least: f32,
    until: f64,
}

impl Kernel for Cumulate<'_> {
    type Output = (f64, Option<usize>);

    #[inline(always)]
    fn run<S: Simd>(self, s: S) -> Self::Output {
        const PIECE: usize = 512;
        let mut weights = [0.0; PIECE];
        let mut sum = 0.0;
        for (piece, logits) in self.logits.chunks(PIECE).enumerate() {
            let weights = &mut weights[..logits.len()];
            self.weigh(s, logits, weights);
            let of_piece = lane_sum(s, weights);
            if sum + of_piece > self.until {
                let mut inner = sum;
                for (i, weight) in weights.iter().enumerate() {
                    inner += f64::from(*weight);
                    if inner > self.until {
                        return (inner, Some(piece * PIECE + i));
                    }
                }
            }
            sum += of_piece;
        }
        (sum, None)
    }
}

impl Cumulate<'_> {
    #[inline(always)]
    fn weigh<S: Simd>(&self, s: S, logits: &[f32], weights: &mut [f32]) {
        let (max, temperature) = (s.splat(self.max), s.splat(self.temperature));
        let (least, zero) = (s.splat(self.least), s.splat(0.0));
        for i in (0..logits.len()).step_by(S::LANES) {
            let weight = exp(s, s.div(s.sub(s.load(logits, i), max), temperature));
            s.store(weights, i, s.select_lt(weight, least, zero, weight));
        }
    }
}

#[inline(always)]
fn lane_sum<S: Simd>(s: S, x: &[f32]) -> f64 {
    let mut sum = s.splat(0.0);
    for i in (0..x.len()).step_by(S::LANES) {
        sum = s.add(sum, s.load(x, i));
    }
    f64::from(s.sum(sum))
}

#[cfg(test)]
mod tests {
    use super::*;
    use perilune_backend::Penalties;

    const OFF: Penalties = Penalties { repetition: 1.0, presence: 0.0, frequency: 0.0 };

    fn row(choice: Choice) -> SampleRow {
        SampleRow {
            row: 0,
            choice,
            bias: vec![],
            banned: vec![],
            allowed: None,
            penalties: OFF,
            counts: vec![],
            top_logprobs: None,
        }
    }

    fn draw(filters: (f32, u32, f32, f32), seed: u64) -> Choice {
        let (temperature, top_k, top_p, min_p) = filters;
        Choice::Draw { temperature, top_k, top_p, min_p, seed, step: 0 }
    }

    fn token(result: &SampledRow) -> usize {
        match result {
            SampledRow::Token { chosen, .. } => chosen.id.index(),
            SampledRow::NonFinite => panic!("called corrupt"),
        }
    }

    #[test]
    fn filters_on_a_large_vocabulary_keep_the_right_tokens() {
        // Token i has weight 1 / (i + 1) at a scattered place.
        let place = |i: usize| i * 7919 % 5000;
        let mut logits = vec![0.0; 5000];
        (0..5000).for_each(|i| logits[place(i)] = -((i + 1) as f32).ln());
        let rank: Vec<usize> = {
            let mut rank = vec![0; 5000];
            (0..5000).for_each(|i| rank[place(i)] = i);
            rank
        };
        let total: f64 = (1..=5000).map(|i| 1.0 / f64::from(i)).sum();
        let mass = |n: usize| (1..=n).map(|i| 1.0 / i as f64).sum::<f64>();
        let nucleus = (1..5000).find(|n| mass(*n) >= 0.8 * total).unwrap();
        let kept = [((1.0, 100, 1.0, 0.0), 100), ((1.0, 0, 0.8, 0.0), nucleus), ((1.0, 0, 1.0, 0.01), 100)];
        for (filters, count) in kept {
            for level in SimdLevel::available() {
                let ranks: Vec<usize> =
                    (0..3000).map(|seed| rank[token(&sample_row(level, &row(draw(filters, seed)), &logits))]).collect();
                assert!(ranks.iter().all(|r| *r <= count), "{filters:?}");
                assert!(ranks.iter().any(|r| *r > count / 2), "{filters:?}: the far half is never drawn");
            }
        }
    }

    #[test]
    fn nothing_left_is_an_error_not_a_token() {
        let all = SampleRow { banned: vec![TokenId(0), TokenId(1)], ..row(draw((1.0, 0, 1.0, 0.0), 1)) };
        let level = SimdLevel::Scalar;
        assert_eq!(sample_row(level, &all, &[1.0, 2.0]), SampledRow::NonFinite);
        let one = SampleRow { banned: vec![TokenId(1)], ..row(draw((1.0, 0, 1.0, 0.0), 1)) };
        assert_eq!(token(&sample_row(level, &one, &[1.0, 2.0])), 0);
    }

    #[test]
    fn tiny_temperatures_are_greedy() {
        for level in SimdLevel::available() {
            for temperature in [1e-45, 1e-20, 1e-3] {
                for filters in [(temperature, 0, 1.0, 0.0), (temperature, 2, 0.9, 0.1)] {
                    assert_eq!(token(&sample_row(level, &row(draw(filters, 5)), &[1.0, 3.0, 2.0])), 1, "{filters:?}");
                }
            }
        }
    }
}
