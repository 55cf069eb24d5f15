//! Attention residual: a softmax-weighted mixture of rows (`kimi-k3.md` 3.2).

/// `s_i = (mean(v_i²) + eps)^(-1/2) Σ_d v_id score_d`, result `Σ_i softmax(s)_i v_i` over the raw rows.
pub fn mix(rows: &[&[f32]], score: &[f32], eps: f32) -> Vec<f32> {
    let scores: Vec<f32> = rows
        .iter()
        .map(|row| {
            let mean_square = row.iter().map(|v| v * v).sum::<f32>() / row.len() as f32;
            crate::linear::dot(row, score) / (mean_square + eps).sqrt()
        })
        .collect();
    let weights = softmax(&scores);
    let mut out = vec![0.0; score.len()];
    for (row, weight) in rows.iter().zip(weights) {
        for (o, v) in out.iter_mut().zip(*row) {
            *o += weight * v;
        }
    }
    out
}

/// `e^(s - max) / Σ`; all `-inf` gives zeros.
pub fn softmax(scores: &[f32]) -> Vec<f32> {
    let max = scores.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    if max == f32::NEG_INFINITY {
        return vec![0.0; scores.len()];
    }
    let exps: Vec<f32> = scores.iter().map(|s| (s - max).exp()).collect();
    let sum: f32 = exps.iter().sum();
    exps.into_iter().map(|e| e / sum).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_row_is_itself_and_equal_scores_are_the_mean() {
        assert_eq!(mix(&[&[1.0, -2.0]], &[0.3, 0.4], 1e-5), [1.0, -2.0]);
        assert_eq!(mix(&[&[1.0, 3.0], &[3.0, 1.0]], &[0.0, 0.0], 1e-5), [2.0, 2.0]);
    }

    #[test]
    fn a_large_score_takes_its_row_unscaled() {
        let out = mix(&[&[10.0, 0.0], &[0.0, 5.0]], &[100.0, -100.0], 1e-5);
        assert!((out[0] - 10.0).abs() < 1e-5 && out[1].abs() < 1e-5, "{out:?}");
    }

    #[test]
    fn no_row_at_all_gives_zeros_not_nan() {
        assert_eq!(softmax(&[f32::NEG_INFINITY; 3]), [0.0; 3]);
    }
}
