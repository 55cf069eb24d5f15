//! The distribution behind a draw, on the host: what [`crate::Backend::sample`] draws from, in the order that the module of
//! [`SampleRow`] says.

use perilune_tensor::TokenId;

use crate::{Choice, RowDistribution, SampleRow};

/// The distribution of a row over the vocabulary of its logits.
pub fn distribution(asked: &SampleRow, logits: &[f32]) -> RowDistribution {
    if logits.is_empty() || logits.iter().any(|l| !l.is_finite()) {
        return RowDistribution::NonFinite;
    }
    let filters = match asked.choice {
        Choice::Given(id) => return certain(id.index(), logits.len()),
        Choice::Draw { temperature, top_k, top_p, min_p, .. } => {
            Filters { temperature, top_k: top_k as usize, top_p, min_p }
        }
    };
    let logits = adjusted(asked, logits);
    let Some(best) = best(&logits) else { return RowDistribution::NonFinite };
    if filters.temperature <= 0.0 {
        return certain(best, logits.len());
    }
    RowDistribution::Probabilities(filters.apply(&logits, logits[best]))
}

fn certain(id: usize, len: usize) -> RowDistribution {
    let mut probabilities = vec![0.0; len];
    if let Some(p) = probabilities.get_mut(id) {
        *p = 1.0;
    }
    RowDistribution::Probabilities(probabilities)
}

/// Logits after bias, penalties and bans, in this order.
fn adjusted(asked: &SampleRow, logits: &[f32]) -> Vec<f32> {
    let mut out = logits.to_vec();
    let at = |id: TokenId| Some(id.index()).filter(|i| *i < logits.len());
    for (i, bias) in asked.bias.iter().filter_map(|(id, bias)| Some((at(*id)?, bias))) {
        out[i] += bias;
    }
    for (i, count) in asked.counts.iter().filter_map(|count| Some((at(count.id)?, count))) {
        if count.in_prompt > 0 || count.in_output > 0 {
            let repetition = asked.penalties.repetition;
            out[i] = if out[i] > 0.0 { out[i] / repetition } else { out[i] * repetition };
        }
        if count.in_output > 0 {
            out[i] -= asked.penalties.presence + asked.penalties.frequency * count.in_output as f32;
        }
    }
    asked.banned.iter().filter_map(|id| at(*id)).for_each(|i| out[i] = f32::NEG_INFINITY);
    out
}

/// The largest, the first among equals; `None` where none is finite.
fn best(logits: &[f32]) -> Option<usize> {
    let max = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    logits.iter().position(|l| *l == max).filter(|_| max.is_finite())
}

struct Filters {
    temperature: f32,
    top_k: usize,
    top_p: f32,
    min_p: f32,
}

impl Filters {
    fn apply(&self, logits: &[f32], max: f32) -> Vec<f32> {
        let weight = |l: &f32| ((l - max) / self.temperature).exp();
        let mut weights: Vec<f32> = logits.iter().map(weight).collect();
        if self.top_k > 0 || self.top_p < 1.0 {
            let kept = self.kept(&weights);
            let mut filtered = vec![0.0; weights.len()];
            kept.into_iter().for_each(|id| filtered[id] = weights[id]);
            weights = filtered;
        }
        // The largest weight is 1.
        weights.iter_mut().filter(|w| **w < self.min_p).for_each(|w| *w = 0.0);
        let total: f64 = weights.iter().map(|w| f64::from(*w)).sum();
        weights.into_iter().map(|w| (f64::from(w) / total) as f32).collect()
    }

    /// What top-k and top-p keep; ids falling by weight, the lower first among equals.
    fn kept(&self, weights: &[f32]) -> Vec<usize> {
        let before = |a: &usize, b: &usize| weights[*b].total_cmp(&weights[*a]).then(a.cmp(b));
        // What has no weight is not kept, but for the best, which has.
        let mut ids: Vec<usize> = (0..weights.len()).filter(|id| weights[*id] > 0.0).collect();
        if self.top_k > 0 && self.top_k < ids.len() {
            ids.select_nth_unstable_by(self.top_k, before);
            ids.truncate(self.top_k);
        }
        if self.top_p < 1.0 {
            ids.sort_unstable_by(before);
            let total: f64 = ids.iter().map(|id| f64::from(weights[*id])).sum();
            let mut mass = 0.0;
            let reached = |id: &usize| {
                let reached = mass >= f64::from(self.top_p) * total;
                mass += f64::from(weights[*id]);
                reached
            };
            let end = ids.iter().position(reached).unwrap_or(ids.len()).max(1);
            ids.truncate(end);
        }
        ids
    }
}
