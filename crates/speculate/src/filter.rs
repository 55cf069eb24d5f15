//! From logits to what a token is drawn from: the same adjustments and filters, in the same order, as the target's draw
//! (`perilune_backend::Sample`), so that no draft is refused for certain; and drafts' own random numbers.

use perilune_backend::{Choice, Penalties, SampleRow, uniform};

/// Sets the random numbers of drafts apart from those of the target's draws with the same seed.
const DRAFT_DOMAIN: u64 = 0x6A09_E667_F3BC_C908;
/// How many of the most likely tokens top-p looks at first.
const FIRST_LOOK: usize = 64;

/// The distribution over the vocabulary that a row's token is drawn from, one number per logit, with sum 1. At
/// temperature 0, and for a given token, all of it is on the largest adjusted logit, the lowest id among equals.
///
/// `None` where the largest adjusted logit is not finite: a corrupt row, or every token banned.
pub fn distribution(logits: &[f32], row: &SampleRow) -> Option<Vec<f32>> {
    let mut weights = logits.to_vec();
    adjust(&mut weights, row);
    if logits.iter().any(|logit| !logit.is_finite()) {
        return None;
    }
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

/// The random number of draft `j` of the proposal whose first draft stands where the target draws with `first`.
///
/// Numbers of two proposals for overlapping places differ: whether the drafts of the first were kept says something
/// about theirs.
pub(crate) fn draft_uniform(first: &Choice, j: usize) -> f64 {
    let Choice::Draw { seed, step, .. } = *first else { return 0.0 };
    let proposal = (uniform(seed ^ DRAFT_DOMAIN, step) * (1_u64 << 53) as f64) as u64;
    uniform(proposal, j as u64)
}

/// Bias, penalties and bans, in this order.
fn adjust(logits: &mut [f32], row: &SampleRow) {
    for (id, bias) in &row.bias {
        logits[id.index()] += bias;
    }
    let Penalties { repetition, presence, frequency } = row.penalties;
    for count in &row.counts {
        let logit = &mut logits[count.id.index()];
        if count.in_prompt > 0 || count.in_output > 0 {
            *logit = if *logit > 0.0 { *logit / repetition } else { *logit * repetition };
        }
        if count.in_output > 0 {
            *logit -= presence + frequency * count.in_output as f32;
        }
    }
    for id in &row.banned {
        logits[id.index()] = f32::NEG_INFINITY;
    }
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
    use perilune_backend::TokenCount;
    use perilune_tensor::TokenId;

    const OFF: Penalties = Penalties { repetition: 1.0, presence: 0.0, frequency: 0.0 };

    fn row((temperature, top_k, top_p, min_p): (f32, u32, f32, f32)) -> SampleRow {
        let choice = Choice::Draw { temperature, top_k, top_p, min_p, seed: 1, step: 0 };
        SampleRow { row: 0, choice, bias: vec![], banned: vec![], penalties: OFF, counts: vec![], top_logprobs: None }
    }

    fn near(got: Option<Vec<f32>>, want: &[f32]) {
        let got = got.unwrap();
        assert!(got.iter().zip(want).all(|(g, w)| (g - w).abs() < 1e-6), "{got:?}, expected {want:?}");
    }

    #[test]
    fn filters_keep_what_they_say() {
        let logits = [8.0_f32.ln(), 4.0_f32.ln(), 2.0_f32.ln(), 2.0_f32.ln()];
        near(distribution(&logits, &row((1.0, 0, 1.0, 0.0))), &[0.5, 0.25, 0.125, 0.125]);
        near(distribution(&logits, &row((1.0, 3, 1.0, 0.0))), &[8.0 / 14.0, 4.0 / 14.0, 2.0 / 14.0, 0.0]);
        near(distribution(&logits, &row((1.0, 0, 0.6, 0.0))), &[2.0 / 3.0, 1.0 / 3.0, 0.0, 0.0]);
        near(distribution(&logits, &row((1.0, 0, 1.0, 0.4))), &[2.0 / 3.0, 1.0 / 3.0, 0.0, 0.0]);
        near(distribution(&logits, &row((0.5, 2, 1.0, 0.0))), &[0.8, 0.2, 0.0, 0.0]);
        near(distribution(&logits, &row((0.0, 0, 1.0, 0.0))), &[1.0, 0.0, 0.0, 0.0]);
    }

    #[test]
    fn top_p_reaches_as_far_as_it_must() {
        let logits: Vec<f32> = (0..5000).map(|i| -((i * 7919 % 5000 + 1) as f32).ln()).collect();
        let total: f64 = (1..=5000).map(|i| 1.0 / f64::from(i)).sum();
        let mass = |n: u32| (1..=n).map(|i| 1.0 / f64::from(i)).sum::<f64>();
        let wanted = (1..5000).find(|n| mass(*n) >= 0.8 * total).unwrap();
        let kept = distribution(&logits, &row((1.0, 0, 0.8, 0.0))).unwrap().iter().filter(|p| **p > 0.0).count();
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
        near(distribution(&[1.0, 4.0, -1.0, 9.0], &asked), &want);
    }

    #[test]
    fn a_corrupt_row_has_no_distribution() {
        assert_eq!(distribution(&[0.0, f32::NAN], &row((1.0, 0, 1.0, 0.0))), None);
        assert_eq!(distribution(&[0.0, f32::INFINITY], &row((0.0, 0, 1.0, 0.0))), None);
        let mut all = row((1.0, 0, 1.0, 0.0));
        all.banned = vec![TokenId(0), TokenId(1)];
        assert_eq!(distribution(&[0.0, 1.0], &all), None);
    }

    #[test]
    fn drafts_have_numbers_of_their_own() {
        let at = |step| Choice::Draw { temperature: 1.0, top_k: 0, top_p: 1.0, min_p: 0.0, seed: 9, step };
        // The second draft of one proposal stands where the first of the next does.
        assert_ne!(draft_uniform(&at(4), 1), draft_uniform(&at(5), 0));
        assert_ne!(draft_uniform(&at(4), 0), uniform(9, 4));
        assert_eq!(draft_uniform(&at(4), 2), draft_uniform(&at(4), 2));
    }
}
