//! KDA chunkwise: the same result as the recurrence for a run of tokens at once (`kimi-k3.md` 3.3, chunkwise form).
//!
//! No exponent is ever positive: pair terms use the difference of cumulative log decays, never a product of `e^G` and
//! `e^-G`, which overflows after 18 tokens at the bound of -5. A decay of 0 has a finite logarithm here, as the
//! difference of two infinite sums is NaN.

use crate::kda::HeadInput;

/// Most tokens of a chunk.
pub const CHUNK: usize = 64;

/// Log decays end here, where `e^g` is 0 in `f32`.
const LEAST_LOG_DECAY: f32 = -110.0;

/// A run of tokens of one head through `state` (`[D, D]`, key dimension first); the output of each token.
pub fn run(inputs: &[HeadInput], state: &mut [f32]) -> Vec<Vec<f32>> {
    inputs.chunks(CHUNK).flat_map(|chunk| run_chunk(chunk, state)).collect()
}

fn run_chunk(chunk: &[HeadInput], state: &mut [f32]) -> Vec<Vec<f32>> {
    let d = chunk[0].k.len();
    let cumulative = cumulative_decay(chunk);
    let corrected = corrected_values(chunk, &cumulative, state);
    let out = (0..chunk.len()).map(|i| output(chunk, &cumulative, &corrected, (i, state))).collect();
    let Some(last) = cumulative.last() else { return out };
    for (c, row) in state.chunks_exact_mut(d).enumerate() {
        row.iter_mut().for_each(|s| *s *= last[c].exp());
        for (j, input) in chunk.iter().enumerate() {
            let weight = input.k[c] * (last[c] - cumulative[j][c]).exp();
            row.iter_mut().zip(&corrected[j]).for_each(|(s, v)| *s += weight * v);
        }
    }
    out
}

/// `G_i = Σ_{t ≤ i} g_t`, per key channel.
fn cumulative_decay(chunk: &[HeadInput]) -> Vec<Vec<f32>> {
    let mut sum = vec![0.0; chunk[0].g.len()];
    let next = |input: &HeadInput| {
        let finite = |g: f32| if g < LEAST_LOG_DECAY { LEAST_LOG_DECAY } else { g };
        sum.iter_mut().zip(&input.g).for_each(|(s, g)| *s += finite(*g));
        sum.clone()
    };
    chunk.iter().map(next).collect()
}

/// `Σ_c a_c b_c e^(G_i,c - G_j,c)` for `j ≤ i`: every exponent is at most 0.
fn pair(a: &[f32], b: &[f32], (gi, gj): (&[f32], &[f32])) -> f32 {
    (0..a.len()).map(|c| a[c] * b[c] * (gi[c] - gj[c]).exp()).sum()
}

/// `β_i δ_i`: rows of `T (β V) - T (β K e^G) S_0` by forward substitution.
fn corrected_values(chunk: &[HeadInput], cumulative: &[Vec<f32>], state: &[f32]) -> Vec<Vec<f32>> {
    let d = chunk[0].k.len();
    let mut corrected: Vec<Vec<f32>> = Vec::with_capacity(chunk.len());
    for (i, input) in chunk.iter().enumerate() {
        let mut value = input.v.clone();
        for (c, row) in state.chunks_exact(d).enumerate() {
            let weight = input.k[c] * cumulative[i][c].exp();
            value.iter_mut().zip(row).for_each(|(v, s)| *v -= weight * s);
        }
        for (j, earlier) in corrected.iter().enumerate() {
            let weight = pair(&input.k, &chunk[j].k, (&cumulative[i], &cumulative[j]));
            value.iter_mut().zip(earlier).for_each(|(v, e)| *v -= weight * e);
        }
        value.iter_mut().for_each(|v| *v *= input.beta);
        corrected.push(value);
    }
    corrected
}

/// `(q_i ⊙ e^(G_i)) S_0 + Σ_{j ≤ i} P_ij corrected_j`.
fn output(
    chunk: &[HeadInput],
    cumulative: &[Vec<f32>],
    corrected: &[Vec<f32>],
    (i, state): (usize, &[f32]),
) -> Vec<f32> {
    let d = chunk[i].q.len();
    let mut out = vec![0.0; d];
    for (c, row) in state.chunks_exact(d).enumerate() {
        let weight = chunk[i].q[c] * cumulative[i][c].exp();
        out.iter_mut().zip(row).for_each(|(o, s)| *o += weight * s);
    }
    for j in 0..=i {
        let weight = pair(&chunk[i].q, &chunk[j].k, (&cumulative[i], &cumulative[j]));
        out.iter_mut().zip(&corrected[j]).for_each(|(o, v)| *o += weight * v);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kda::recur;
    use crate::norm::l2_norm;

    const D: usize = 16;

    /// Deterministic values in [-1, 1).
    fn noise(seed: usize) -> f32 {
        let x = (seed as u32).wrapping_mul(2_654_435_761) ^ 0x9E37;
        (x.wrapping_mul(2_246_822_519) >> 8) as f32 / (1 << 23) as f32 - 1.0
    }

    fn inputs(tokens: usize, g: impl Fn(usize, usize) -> f32) -> Vec<HeadInput> {
        let row = |t: usize, salt: usize| (0..D).map(|c| noise(t * 131 + c * 7 + salt * 100_003)).collect::<Vec<_>>();
        let token = |t: usize| HeadInput {
            q: l2_norm(&row(t, 1), 1e-6),
            k: l2_norm(&row(t, 2), 1e-6),
            v: row(t, 3),
            g: (0..D).map(|c| g(t, c)).collect(),
            beta: 0.5 + 0.49 * noise(t),
        };
        (0..tokens).map(token).collect()
    }

    fn compare(inputs: &[HeadInput]) {
        let start: Vec<f32> = (0..D * D).map(|i| noise(i + 17)).collect();
        let (mut one, mut many) = (start.clone(), start);
        let want: Vec<Vec<f32>> = inputs.iter().map(|input| recur(input, &mut one)).collect();
        let got = run(inputs, &mut many);
        let scale = want.iter().flatten().chain(&one).fold(0.0_f32, |m, v| m.max(v.abs()));
        let pairs = got.iter().flatten().chain(&many).zip(want.iter().flatten().chain(&one));
        for (g, w) in pairs {
            assert!(g.is_finite() && (g - w).abs() <= 1e-3 * scale.max(1e-6), "{g} against {w}");
        }
    }

    #[test]
    fn equals_the_recurrence_at_every_gate_and_length() {
        for g in [-0.01, -1.0, -2.5, -3.0, -5.0, -6.0, -8.0] {
            for tokens in [1, 15, 16, 17, 64, 129, 1000] {
                compare(&inputs(tokens, |_, _| g));
            }
        }
    }

    #[test]
    fn equals_the_recurrence_at_extreme_decays() {
        let decays = [0.0_f32, 1e-38, 6.5e-12, 1.0];
        compare(&inputs(130, |t, c| decays[(t + c) % 4].ln()));
        for decay in decays {
            compare(&inputs(70, |_, c| if c == 3 { decay.ln() } else { -0.1 }));
        }
    }

    #[test]
    fn equals_the_recurrence_when_the_gate_grows_with_time() {
        // Masked pairs would have huge positive exponents here.
        compare(&inputs(128, |t, _| -8.0 + 0.06 * t as f32));
        compare(&inputs(128, |t, _| -0.06 * t as f32));
    }
}
