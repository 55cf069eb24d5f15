//! From logits to a distribution over tokens, and log-probabilities.

/// What is asked of one row.
#[derive(Debug, Clone, Default)]
pub struct Adjust {
    /// Added to logits.
    pub bias: Vec<(usize, f32)>,
    /// Must not come.
    pub banned: Vec<usize>,
    /// `(token, occurrences in the prompt, occurrences in the output)`.
    pub counts: Vec<(usize, u32, u32)>,
    /// 1 is off.
    pub repetition: f32,
    /// 0 is off.
    pub presence: f32,
    /// 0 is off.
    pub frequency: f32,
}

/// Filters of a draw.
#[derive(Debug, Clone, Copy)]
pub struct Filters {
    /// Above 0.
    pub temperature: f32,
    /// 0 is off.
    pub top_k: usize,
    /// 1 is off.
    pub top_p: f32,
    /// 0 is off.
    pub min_p: f32,
}

/// `log softmax` of raw logits.
pub fn log_probabilities(logits: &[f32]) -> Vec<f32> {
    let max = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let log_sum = logits.iter().map(|l| f64::from(l - max).exp()).sum::<f64>().ln() as f32;
    logits.iter().map(|l| l - max - log_sum).collect()
}

/// Logits after bias, penalties and bans.
pub fn adjusted(logits: &[f32], adjust: &Adjust) -> Vec<f32> {
    let mut out = logits.to_vec();
    for (id, bias) in &adjust.bias {
        out[*id] += bias;
    }
    for (id, in_prompt, in_output) in &adjust.counts {
        if in_prompt + in_output > 0 {
            let l = out[*id];
            out[*id] = if l > 0.0 { l / adjust.repetition } else { l * adjust.repetition };
        }
        if *in_output > 0 {
            out[*id] -= adjust.presence + adjust.frequency * *in_output as f32;
        }
    }
    for id in &adjust.banned {
        out[*id] = f32::NEG_INFINITY;
    }
    out
}

/// The most likely token, the lowest id among equals.
pub fn greedy(logits: &[f32]) -> usize {
    let mut best = 0;
    for (id, logit) in logits.iter().enumerate() {
        if *logit > logits[best] {
            best = id;
        }
    }
    best
}

/// Probabilities after temperature, top-k, top-p and min-p, in that order; filtered tokens have 0.
pub fn distribution(logits: &[f32], filters: &Filters) -> Vec<f32> {
    let scaled: Vec<f32> = logits.iter().map(|l| l / filters.temperature).collect();
    let probabilities: Vec<f32> = log_probabilities(&scaled).into_iter().map(f32::exp).collect();
    let mut order: Vec<usize> = (0..logits.len()).collect();
    order.sort_by(|a, b| logits[*b].total_cmp(&logits[*a]).then(a.cmp(b)));
    if filters.top_k > 0 {
        order.truncate(filters.top_k);
    }
    let total: f32 = order.iter().map(|id| probabilities[*id]).sum();
    let mut mass = 0.0;
    let mut kept = Vec::new();
    for id in &order {
        let reached = mass >= filters.top_p * total;
        if !kept.is_empty() && (reached || probabilities[*id] < filters.min_p * probabilities[order[0]]) {
            break;
        }
        mass += probabilities[*id];
        kept.push(*id);
    }
    let mut out = vec![0.0; logits.len()];
    for id in kept {
        out[id] = probabilities[id] / mass;
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    const OFF: Filters = Filters { temperature: 1.0, top_k: 0, top_p: 1.0, min_p: 0.0 };

    #[test]
    fn filters_keep_what_they_say() {
        let logits = [8.0_f32.ln(), 4.0_f32.ln(), 2.0_f32.ln(), 2.0_f32.ln()];
        let near = |got: Vec<f32>, want: [f32; 4]| got.iter().zip(want).all(|(g, w)| (g - w).abs() < 1e-6);
        assert!(near(distribution(&logits, &OFF), [0.5, 0.25, 0.125, 0.125]));
        assert!(near(distribution(&logits, &Filters { top_k: 3, ..OFF }), [8.0 / 14.0, 4.0 / 14.0, 2.0 / 14.0, 0.0]));
        assert!(near(distribution(&logits, &Filters { top_p: 0.6, ..OFF }), [2.0 / 3.0, 1.0 / 3.0, 0.0, 0.0]));
        assert!(near(distribution(&logits, &Filters { min_p: 0.4, ..OFF }), [2.0 / 3.0, 1.0 / 3.0, 0.0, 0.0]));
        assert!(near(distribution(&logits, &Filters { top_p: 1e-9, ..OFF }), [1.0, 0.0, 0.0, 0.0]));
        assert!(near(distribution(&logits, &Filters { temperature: 0.5, top_k: 2, ..OFF }), [0.8, 0.2, 0.0, 0.0]));
    }

    #[test]
    fn adjustments() {
        let adjust = Adjust {
            bias: vec![(0, 2.0)],
            banned: vec![3],
            counts: vec![(1, 1, 0), (2, 0, 3)],
            repetition: 2.0,
            presence: 0.5,
            frequency: 0.25,
        };
        let out = adjusted(&[1.0, 4.0, -1.0, 9.0], &adjust);
        assert_eq!(out, [3.0, 2.0, -2.0 - 0.5 - 0.75, f32::NEG_INFINITY]);
        assert_eq!(greedy(&[1.0, 3.0, 3.0]), 1);
    }
}
