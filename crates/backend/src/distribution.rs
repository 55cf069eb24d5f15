//! The distribution behind a draw, on the host: what [`crate::Backend::sample`] draws from, in the order that the module of
//! [`SampleRow`] says.

use crate::{Choice, RowDistribution, SampleRow};

/// How many of the most likely tokens top-p looks at first.
const FIRST_LOOK: usize = 64;

/// The distribution over the vocabulary that a row's token is drawn from, one number per logit, with sum 1. A given token is
/// certain, and so is, at temperature 0, the largest adjusted logit, the lowest id among equals.
///
/// `NonFinite` where a logit or the largest adjusted one is not finite: a corrupt row, or every token banned.
pub fn distribution(row: &SampleRow, logits: &[f32]) -> RowDistribution {
    probabilities(row, logits).map_or(RowDistribution::NonFinite, RowDistribution::Probabilities)
}

fn probabilities(row: &SampleRow, logits: &[f32]) -> Option<Vec<f32>> {
    if logits.iter().any(|logit| !logit.is_finite()) {
        return None;
    }
    if let Choice::Given(id) = row.choice {
        return Some((0..logits.len()).map(|i| f32::from(u8::from(i == id.index()))).collect());
    }
    let mut weights = logits.to_vec();
    row.adjust(&mut weights);
    let max = weights.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    if !max.is_finite() {
        return None;
    }
    match row.choice {
        Choice::Draw { temperature, top_k, top_p, min_p, .. } if temperature > 0.0 => {
            weights.iter_mut().for_each(|weight| *weight = ((*weight - max) / temperature).exp());
            filter(&mut weights, Filters { top_k: top_k as usize, top_p, min_p });
        }
        _ => {
            let best = weights.iter().position(|weight| *weight == max);
            weights.iter_mut().enumerate().for_each(|(id, weight)| *weight = f32::from(u8::from(Some(id) == best)));
        }
    }
    let total: f64 = weights.iter().map(|weight| f64::from(*weight)).sum();
    weights.iter_mut().for_each(|weight| *weight = (f64::from(*weight) / total) as f32);
    Some(weights)
}

#[derive(Clone, Copy)]
struct Filters {
    top_k: usize,
    top_p: f32,
    min_p: f32,
}

/// Sets weights that are filtered out to 0; the largest weight is 1.
fn filter(weights: &mut [f32], filters: Filters) {
    if filters.top_k == 0 && filters.top_p >= 1.0 {
        weights.iter_mut().filter(|weight| **weight < filters.min_p).for_each(|weight| *weight = 0.0);
        return;
    }
    let kept = kept(weights, filters);
    let mut out = vec![0.0; weights.len()];
    kept.iter().for_each(|id| out[*id] = weights[*id]);
    weights.copy_from_slice(&out);
}

/// Ids that top-k, top-p and min-p keep, most likely first.
fn kept(weights: &[f32], filters: Filters) -> Vec<usize> {
    let Filters { top_k, top_p, min_p } = filters;
    let falling = |a: &usize, b: &usize| weights[*b].total_cmp(&weights[*a]).then(a.cmp(b));
    let whole = if top_k == 0 { weights.len() } else { top_k.min(weights.len()) };
    let mut looked_at = if top_k == 0 { FIRST_LOOK.min(whole) } else { whole };
    loop {
        let mut ids: Vec<usize> = (0..weights.len()).collect();
        if looked_at < ids.len() {
            ids.select_nth_unstable_by(looked_at, falling);
            ids.truncate(looked_at);
        }
        ids.sort_unstable_by(falling);
        // The mass that top-p is a share of: that of the top-k.
        let total: f64 = match top_k {
            0 => weights.iter().map(|weight| f64::from(*weight)).sum(),
            _ => ids.iter().map(|id| f64::from(weights[*id])).sum(),
        };
        let mut sum = 0.0;
        let mut count = 0;
        while count < ids.len() {
            let weight = weights[ids[count]];
            let reached = top_p < 1.0 && sum >= f64::from(top_p) * total;
            if count > 0 && (reached || weight < min_p * weights[ids[0]]) {
                break;
            }
            sum += f64::from(weight);
            count += 1;
        }
        if count < looked_at || looked_at == whole {
            ids.truncate(count);
            return ids;
        }
        looked_at = (looked_at * 8).min(whole);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Penalties, TokenCount};
    use perilune_tensor::{TokenId, TokenMask};

    const OFF: Penalties = Penalties { repetition: 1.0, presence: 0.0, frequency: 0.0 };

    fn row((temperature, top_k, top_p, min_p): (f32, u32, f32, f32)) -> SampleRow {
        let choice = Choice::Draw { temperature, top_k, top_p, min_p, seed: 1, step: 0 };
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

    fn near(got: Option<Vec<f32>>, want: &[f32]) {
        let got = got.unwrap();
        assert!(got.iter().zip(want).all(|(g, w)| (g - w).abs() < 1e-6), "{got:?}, expected {want:?}");
    }

    #[test]
    fn filters_keep_what_they_say() {
        let logits = [8.0_f32.ln(), 4.0_f32.ln(), 2.0_f32.ln(), 2.0_f32.ln()];
        near(probabilities(&row((1.0, 0, 1.0, 0.0)), &logits), &[0.5, 0.25, 0.125, 0.125]);
        near(probabilities(&row((1.0, 3, 1.0, 0.0)), &logits), &[8.0 / 14.0, 4.0 / 14.0, 2.0 / 14.0, 0.0]);
        near(probabilities(&row((1.0, 0, 0.6, 0.0)), &logits), &[2.0 / 3.0, 1.0 / 3.0, 0.0, 0.0]);
        near(probabilities(&row((1.0, 0, 1.0, 0.4)), &logits), &[2.0 / 3.0, 1.0 / 3.0, 0.0, 0.0]);
        near(probabilities(&row((0.5, 2, 1.0, 0.0)), &logits), &[0.8, 0.2, 0.0, 0.0]);
        near(probabilities(&row((0.0, 0, 1.0, 0.0)), &logits), &[1.0, 0.0, 0.0, 0.0]);
    }

    #[test]
    fn top_p_reaches_as_far_as_it_must() {
        let logits: Vec<f32> = (0..5000).map(|i| -((i * 7919 % 5000 + 1) as f32).ln()).collect();
        let total: f64 = (1..=5000).map(|i| 1.0 / f64::from(i)).sum();
        let mass = |n: u32| (1..=n).map(|i| 1.0 / f64::from(i)).sum::<f64>();
        let wanted = (1..5000).find(|n| mass(*n) >= 0.8 * total).unwrap();
        let kept = probabilities(&row((1.0, 0, 0.8, 0.0)), &logits).unwrap().iter().filter(|p| **p > 0.0).count();
        assert!(kept.abs_diff(wanted as usize) <= 1, "{kept} of {wanted}");
    }

    #[test]
    fn adjustments_come_first() {
        let mut asked = row((1.0, 0, 1.0, 0.0));
        asked.bias = vec![(TokenId(0), 2.0)];
        asked.banned = vec![TokenId(3)];
        asked.penalties = Penalties { repetition: 2.0, presence: 0.5, frequency: 0.25 };
        asked.counts = vec![
            TokenCount { id: TokenId(1), in_prompt: 1, in_output: 0 },
            TokenCount { id: TokenId(2), in_prompt: 0, in_output: 3 },
        ];
        let adjusted = [3.0_f32, 2.0, -2.0 - 0.5 - 0.75];
        let total: f32 = adjusted.iter().map(|l| l.exp()).sum();
        let want: Vec<f32> = adjusted.iter().map(|l| l.exp() / total).chain([0.0]).collect();
        near(probabilities(&asked, &[1.0, 4.0, -1.0, 9.0]), &want);
    }

    #[test]
    fn a_mask_leaves_what_it_allows() {
        let mut asked = row((1.0, 0, 1.0, 0.0));
        asked.allowed = Some(TokenMask::of(&[TokenId(1), TokenId(3)], 4));
        near(probabilities(&asked, &[9.0, 0.0, 1.0, 3.0_f32.ln()]), &[0.0, 0.25, 0.0, 0.75]);
    }

    #[test]
    fn a_corrupt_row_has_no_distribution() {
        assert_eq!(probabilities(&row((1.0, 0, 1.0, 0.0)), &[0.0, f32::NAN]), None);
        assert_eq!(probabilities(&row((0.0, 0, 1.0, 0.0)), &[0.0, f32::INFINITY]), None);
        let mut all = row((1.0, 0, 1.0, 0.0));
        all.banned = vec![TokenId(0), TokenId(1)];
        assert_eq!(probabilities(&all, &[0.0, 1.0]), None);
    }
}
