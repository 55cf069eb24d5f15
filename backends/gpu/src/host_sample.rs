//! From one row of logits to a token and log-probabilities, on the host.
//!
//! The order is the one of [`perilune_backend::SampleRow`]'s module; the random number is [`uniform`], so the token drawn
//! is that of every other backend up to rounding.

use std::cmp::Ordering;

use perilune_backend::{Choice, SampleRow, SampledRow, TopLogprob, uniform};
use perilune_tensor::TokenId;

/// The outcome of a row.
pub(crate) fn sample_row(asked: &SampleRow, logits: &[f32]) -> SampledRow {
    if logits.is_empty() || logits.iter().any(|l| !l.is_finite()) {
        return SampledRow::NonFinite;
    }
    let Some(id) = choose(asked, logits) else { return SampledRow::NonFinite };
    let Some(count) = asked.top_logprobs else {
        return SampledRow::Token { chosen: TopLogprob { id: TokenId(id), logprob: 0.0 }, top: Vec::new() };
    };
    let max = maximum(logits);
    let total = logits.iter().map(|l| f64::from(l - max).exp()).sum::<f64>().ln();
    let scored = |id: u32| {
        let logprob = (f64::from(logits[id as usize]) - f64::from(max) - total) as f32;
        TopLogprob { id: TokenId(id), logprob }
    };
    SampledRow::Token { chosen: scored(id), top: largest(logits, count).into_iter().map(scored).collect() }
}

/// The token; `None` where every token is banned or a bias overflows.
fn choose(asked: &SampleRow, logits: &[f32]) -> Option<u32> {
    let draw = match asked.choice {
        Choice::Given(id) => return Some(id.0),
        Choice::Draw { temperature, top_k, top_p, min_p, seed, step } => {
            Draw { temperature, top_k: top_k as usize, top_p, min_p, uniform: uniform(seed, step) }
        }
    };
    let mut logits = logits.to_vec();
    asked.adjust(&mut logits);
    let max = maximum(&logits);
    if !max.is_finite() {
        return None;
    }
    let drawn = if draw.temperature > 0.0 { draw.token(&logits, max) } else { None };
    // The largest logit is also what a draw falls back to where rounding left nothing.
    drawn.or_else(|| logits.iter().position(|l| *l == max).map(|id| id as u32))
}

fn maximum(logits: &[f32]) -> f32 {
    logits.iter().copied().fold(f32::NEG_INFINITY, f32::max)
}

/// Ids of the `count` largest, falling, the lower id first among equals.
fn largest(logits: &[f32], count: usize) -> Vec<u32> {
    let before = |a: &u32, b: &u32| -> Ordering { logits[*b as usize].total_cmp(&logits[*a as usize]).then(a.cmp(b)) };
    let mut ids: Vec<u32> = (0..logits.len() as u32).collect();
    if count < ids.len() {
        ids.select_nth_unstable_by(count, before);
        ids.truncate(count);
    }
    ids.sort_unstable_by(before);
    ids
}

/// A draw's parameters with its random number.
struct Draw {
    temperature: f32,
    top_k: usize,
    top_p: f32,
    min_p: f32,
    uniform: f64,
}

impl Draw {
    fn token(&self, logits: &[f32], max: f32) -> Option<u32> {
        let weight = |id: &u32| f64::from((logits[*id as usize] - max) / self.temperature).exp();
        if self.top_k == 0 && self.top_p >= 1.0 {
            // Without an order, min-p is a threshold against the largest weight, which is 1.
            let least = f64::from(self.min_p);
            let kept: Vec<(u32, f64)> =
                (0..logits.len() as u32).map(|id| (id, weight(&id))).filter(|(_, w)| *w >= least).collect();
            return pick(&kept, self.uniform);
        }
        let count = if self.top_k == 0 { logits.len() } else { self.top_k };
        let weights: Vec<(u32, f64)> = largest(logits, count).into_iter().map(|id| (id, weight(&id))).collect();
        pick(&weights[..self.kept(&weights)], self.uniform)
    }

    /// How many of the falling weights top-p and min-p keep, at least 1.
    fn kept(&self, weights: &[(u32, f64)]) -> usize {
        let total: f64 = weights.iter().map(|(_, w)| w).sum();
        let mut mass = 0.0;
        for (i, (_, weight)) in weights.iter().enumerate() {
            let reached = self.top_p < 1.0 && mass >= f64::from(self.top_p) * total;
            if i > 0 && (reached || *weight < f64::from(self.min_p) * weights[0].1) {
                return i;
            }
            mass += weight;
        }
        weights.len()
    }
}

/// The token in whose share of the sum `uniform` falls.
fn pick(weights: &[(u32, f64)], uniform: f64) -> Option<u32> {
    let target = uniform * weights.iter().map(|(_, w)| w).sum::<f64>();
    let mut mass = 0.0;
    let hit = weights.iter().find(|(_, weight)| {
        mass += weight;
        mass > target
    });
    hit.map(|(id, _)| *id)
}

#[cfg(test)]
mod tests {
    use super::*;
    use perilune_backend::Penalties;

    fn row(choice: Choice) -> SampleRow {
        let penalties = Penalties { repetition: 1.0, presence: 0.0, frequency: 0.0 };
        SampleRow {
            row: 0,
            choice,
            bias: vec![],
            banned: vec![],
            allowed: None,
            penalties,
            counts: vec![],
            top_logprobs: None,
        }
    }

    fn token(outcome: &SampledRow) -> u32 {
        match outcome {
            SampledRow::Token { chosen, .. } => chosen.id.0,
            SampledRow::NonFinite => panic!("called corrupt"),
        }
    }

    fn draw(temperature: f32, top_k: u32, seed: u64) -> Choice {
        Choice::Draw { temperature, top_k, top_p: 1.0, min_p: 0.0, seed, step: 0 }
    }

    #[test]
    fn nothing_left_is_an_error_not_a_token() {
        let all = SampleRow { banned: vec![TokenId(0), TokenId(1)], ..row(draw(1.0, 0, 1)) };
        assert_eq!(sample_row(&all, &[1.0, 2.0]), SampledRow::NonFinite);
        let one = SampleRow { banned: vec![TokenId(1)], ..row(draw(1.0, 0, 1)) };
        assert_eq!(token(&sample_row(&one, &[1.0, 2.0])), 0);
    }

    #[test]
    fn tiny_temperatures_and_one_candidate_are_greedy() {
        for (temperature, top_k) in [(1e-45, 0), (1e-20, 2), (1.0, 1)] {
            assert_eq!(token(&sample_row(&row(draw(temperature, top_k, 5)), &[1.0, 3.0, 2.0])), 1);
        }
    }

    #[test]
    fn the_largest_in_order() {
        assert_eq!(largest(&[1.0, 5.0, 5.0, -2.0, 3.0], 3), [1, 2, 4]);
        assert_eq!(largest(&[1.0, 5.0], 9), [1, 0]);
        assert_eq!(largest(&[1.0, 5.0], 0), [0_u32; 0]);
    }
}
