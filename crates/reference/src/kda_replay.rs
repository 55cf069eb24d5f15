//! Speculation on KDA: verification without a change of the state, and the fold of what was committed.

use crate::kda::{Dims, HeadInput, L2_EPS, Params, State, Token, mix, recur, step};
use crate::norm::l2_norm;

/// Inputs of one step, enough to repeat it: each `[P]` but `beta`, which is `[heads]`.
#[derive(Debug, Clone, PartialEq)]
pub struct Replay {
    /// After convolution and SiLU.
    pub v: Vec<f32>,
    /// After convolution and SiLU, before the norm.
    pub k: Vec<f32>,
    /// Log decay.
    pub g: Vec<f32>,
    /// q, k, v before the convolution.
    pub rows: [Vec<f32>; 3],
    /// Learning rates.
    pub beta: Vec<f32>,
}

impl Replay {
    /// One after the other: `v`, `k`, `g`, `rows`, `beta`.
    pub fn flat(&self) -> Vec<f32> {
        let [q, k, v] = &self.rows;
        [&self.v, &self.k, &self.g, q, k, v, &self.beta].into_iter().flatten().copied().collect()
    }
}

/// Outputs of some tokens after `state`, and what a fold needs of each.
pub fn verify(params: &Params<'_>, tokens: &[Token<'_>], state: &State) -> (Vec<f32>, Vec<Replay>) {
    let (mut state, mut out, mut replay) = (state.clone(), Vec::new(), Vec::new());
    for token in tokens {
        let mut conv = state.conv.clone();
        let inputs = crate::kda::prepare(params, token, &mut conv.clone());
        let [_, k, v] = mix(params, token, &mut conv);
        replay.push(Replay {
            v,
            k,
            g: inputs.iter().flat_map(|input| input.g.iter().copied()).collect(),
            rows: [token.q, token.k, token.v].map(<[f32]>::to_vec),
            beta: inputs.iter().map(|input| input.beta).collect(),
        });
        out.extend(step(params, token, &mut state));
    }
    (out, replay)
}

/// Repeats steps on `state`.
pub fn fold(dims: Dims, steps: &[Replay], state: &mut State) {
    let (d, p, history) = (dims.head_dim, dims.width(), dims.taps - 1);
    for replay in steps {
        for h in 0..dims.heads {
            let range = h * d..(h + 1) * d;
            let input = HeadInput {
                q: vec![0.0; d],
                k: l2_norm(&replay.k[range.clone()], L2_EPS),
                v: replay.v[range.clone()].to_vec(),
                g: replay.g[range].to_vec(),
                beta: replay.beta[h],
            };
            recur(&input, &mut state.recurrent[h * d * d..(h + 1) * d * d]);
        }
        for (which, row) in replay.rows.iter().enumerate().filter(|_| history > 0) {
            let tail = &mut state.conv[which * history * p..(which + 1) * history * p];
            tail.copy_within(p.., 0);
            tail[(history - 1) * p..].copy_from_slice(row);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fold_is_the_steps_it_replays() {
        let noise = |n: usize, salt: usize| -> Vec<f32> {
            let value = |i: usize| ((i * 31 + salt * 977) as u32).wrapping_mul(2_654_435_761) >> 8;
            (0..n).map(|i| value(i) as f32 / (1 << 23) as f32 - 1.0).collect()
        };
        let dims = Dims { heads: 2, head_dim: 3, taps: 4 };
        let (taps, small, wide, norm) = (noise(24, 1), noise(2, 2), noise(6, 3), noise(3, 4));
        let params = Params {
            dims,
            conv: [&taps; 3],
            a_log: &small,
            dt_bias: &wide,
            out_norm: &norm,
            eps: 1e-5,
            lower_bound: Some(-5.0),
        };
        let rows: Vec<Vec<f32>> = (0..5).map(|t| noise(6, 10 + t)).collect();
        let tokens: Vec<Token<'_>> = rows
            .iter()
            .map(|row| Token { q: row, k: row, v: row, gate: row, beta: &row[..2], out_gate: row })
            .collect();
        let mut state = State::zeros(dims);
        step(&params, &tokens[0], &mut state);
        let before = state.clone();
        let (out, replay) = verify(&params, &tokens[1..], &state);
        assert_eq!(state, before);
        for committed in 0..4 {
            let (mut folded, mut stepped) = (state.clone(), state.clone());
            fold(dims, &replay[..committed], &mut folded);
            let outs: Vec<f32> =
                tokens[1..=committed].iter().flat_map(|token| step(&params, token, &mut stepped)).collect();
            assert_eq!(folded, stepped, "{committed}");
            assert_eq!(out[..outs.len()], outs);
        }
    }
}
