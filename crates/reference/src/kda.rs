//! Kimi Delta Attention as a recurrence, one token at a time (`kimi-k3.md` 3.3).

use crate::activation::{sigmoid, silu, softplus};
use crate::linear::dot;
use crate::norm::{l2_norm, rms_norm};

/// Added to the sum of squares of q and k.
pub const L2_EPS: f32 = 1e-6;

/// Sizes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Dims {
    /// Heads.
    pub heads: usize,
    /// Key and value width of a head, `D`.
    pub head_dim: usize,
    /// Taps of the convolution.
    pub taps: usize,
}

impl Dims {
    /// `P`.
    pub fn width(&self) -> usize {
        self.heads * self.head_dim
    }
}

/// Parameters of a layer.
#[derive(Debug, Clone, Copy)]
pub struct Params<'a> {
    /// Sizes.
    pub dims: Dims,
    /// `[P, taps]` of q, k, v.
    pub conv: [&'a [f32]; 3],
    /// `[heads]`.
    pub a_log: &'a [f32],
    /// `[P]`.
    pub dt_bias: &'a [f32],
    /// `[D]`.
    pub out_norm: &'a [f32],
    /// Epsilon of the output norm.
    pub eps: f32,
    /// `Some`: bounded gate; `None`: softplus gate.
    pub lower_bound: Option<f32>,
}

/// Projections of one token, each `[P]` but `beta`, which is `[heads]`.
#[derive(Debug, Clone, Copy)]
pub struct Token<'a> {
    /// Before the convolution.
    pub q: &'a [f32],
    /// Before the convolution.
    pub k: &'a [f32],
    /// Before the convolution.
    pub v: &'a [f32],
    /// Decay pre-activation.
    pub gate: &'a [f32],
    /// Logits of β.
    pub beta: &'a [f32],
    /// Output gate before the sigmoid.
    pub out_gate: &'a [f32],
}

/// What a sequence carries from token to token.
#[derive(Debug, Clone, PartialEq)]
pub struct State {
    /// `[3, taps - 1, P]`: last pre-convolution rows of q, k, v, oldest first.
    pub conv: Vec<f32>,
    /// `[heads, D, D]`, key dimension first.
    pub recurrent: Vec<f32>,
}

impl State {
    /// The state before the first token.
    pub fn zeros(dims: Dims) -> State {
        State {
            conv: vec![0.0; 3 * (dims.taps - 1) * dims.width()],
            recurrent: vec![0.0; dims.width() * dims.head_dim],
        }
    }
}

/// Log decay of one channel: `lower_bound σ(A a)` or `-A softplus(a)`, with `A = e^(a_log)` and `a = z + dt_bias`.
///
/// An infinite `A` counts as the largest number, so that it leaves a factor of 0 at 0.
pub fn log_decay(z: f32, dt_bias: f32, a_log: f32, lower_bound: Option<f32>) -> f32 {
    let a = z + dt_bias;
    let rate = a_log.exp().clamp(0.0, f32::MAX);
    match lower_bound {
        Some(bound) => bound * sigmoid(rate * a),
        None => -rate * softplus(a),
    }
}

/// What the recurrence of one head needs of one token.
#[derive(Debug, Clone)]
pub struct HeadInput {
    /// `[D]`, normalised and scaled by `D^(-1/2)`.
    pub q: Vec<f32>,
    /// `[D]`, normalised.
    pub k: Vec<f32>,
    /// `[D]`.
    pub v: Vec<f32>,
    /// `[D]`: log decay per key channel, at most 0.
    pub g: Vec<f32>,
    /// Learning rate.
    pub beta: f32,
}

/// Convolution of one channel: `taps` values, oldest first, then SiLU.
pub fn conv_silu(values: &[f32], taps: &[f32]) -> f32 {
    silu(dot(values, taps))
}

/// Steps 2 and 3: convolution and SiLU of q, k and v, each `[P]`; moves the convolution tail on.
pub fn mix(params: &Params<'_>, token: &Token<'_>, conv: &mut [f32]) -> [Vec<f32>; 3] {
    let d = params.dims;
    let (p, history) = (d.width(), d.taps - 1);
    let mut mixed = [vec![0.0; p], vec![0.0; p], vec![0.0; p]];
    for (which, row) in [token.q, token.k, token.v].into_iter().enumerate() {
        let tail = &mut conv[which * history * p..(which + 1) * history * p];
        for c in 0..p {
            let mut values: Vec<f32> = (0..history).map(|j| tail[j * p + c]).collect();
            values.push(row[c]);
            mixed[which][c] = conv_silu(&values, &params.conv[which][c * d.taps..(c + 1) * d.taps]);
        }
        if history > 0 {
            tail.copy_within(p.., 0);
            tail[(history - 1) * p..].copy_from_slice(row);
        }
    }
    mixed
}

/// Steps 2 to 5: convolution, SiLU, norms and gates of one token; moves the convolution tail on.
pub fn prepare(params: &Params<'_>, token: &Token<'_>, conv: &mut [f32]) -> Vec<HeadInput> {
    let d = params.dims;
    let mixed = mix(params, token, conv);
    let scale = (d.head_dim as f32).powf(-0.5);
    let head = |h: usize| {
        let range = h * d.head_dim..(h + 1) * d.head_dim;
        let decay = |c: usize| log_decay(token.gate[c], params.dt_bias[c], params.a_log[h], params.lower_bound);
        HeadInput {
            q: l2_norm(&mixed[0][range.clone()], L2_EPS).into_iter().map(|v| v * scale).collect(),
            k: l2_norm(&mixed[1][range.clone()], L2_EPS),
            v: mixed[2][range.clone()].to_vec(),
            g: range.map(decay).collect(),
            beta: sigmoid(token.beta[h]),
        }
    };
    (0..d.heads).map(head).collect()
}

/// Step 6, one head, one token: decays `state` (`[D, D]`), applies the delta rule, reads the output after the update.
pub fn recur(input: &HeadInput, state: &mut [f32]) -> Vec<f32> {
    let d = input.k.len();
    for (i, row) in state.chunks_exact_mut(d).enumerate() {
        row.iter_mut().for_each(|s| *s *= input.g[i].exp());
    }
    let mut delta = input.v.clone();
    for (i, row) in state.chunks_exact(d).enumerate() {
        delta.iter_mut().zip(row).for_each(|(x, s)| *x -= input.k[i] * s);
    }
    let mut out = vec![0.0; d];
    for (i, row) in state.chunks_exact_mut(d).enumerate() {
        for j in 0..d {
            row[j] += input.beta * input.k[i] * delta[j];
            out[j] += input.q[i] * row[j];
        }
    }
    out
}

/// Step 7: `RMSNorm(o) ⊙ σ(γ)` of one head.
pub fn gate_output(out: &[f32], norm: &[f32], eps: f32, out_gate: &[f32]) -> Vec<f32> {
    rms_norm(out, norm, eps).into_iter().zip(out_gate).map(|(o, gate)| o * sigmoid(*gate)).collect()
}

/// One token through a layer, from projections to the row `[P]` before the output projection.
pub fn step(params: &Params<'_>, token: &Token<'_>, state: &mut State) -> Vec<f32> {
    let d = params.dims.head_dim;
    let inputs = prepare(params, token, &mut state.conv);
    let mut row = Vec::with_capacity(params.dims.width());
    for (h, input) in inputs.iter().enumerate() {
        let out = recur(input, &mut state.recurrent[h * d * d..(h + 1) * d * d]);
        row.extend(gate_output(&out, params.out_norm, params.eps, &token.out_gate[h * d..(h + 1) * d]));
    }
    row
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gates_at_their_limits() {
        // An infinite A times a softplus of 0 is no decay, not a NaN that poisons the state.
        assert_eq!(log_decay(-200.0, 0.0, 100.0, None).exp(), 1.0);
        assert_eq!(log_decay(10.0, 0.0, 100.0, None).exp(), 0.0);
        assert_eq!(log_decay(0.0, 0.0, 100.0, Some(-5.0)), -2.5);
        for lower_bound in [None, Some(-5.0)] {
            for z in [-1e4, -6.0, 0.0, 6.0, 1e4] {
                for a_log in [-20.0, 0.0, 3.0] {
                    let g = log_decay(z, 0.5, a_log, lower_bound);
                    assert!(g.is_finite() && g <= 0.0, "{lower_bound:?} {z} {a_log}: {g}");
                    assert!(lower_bound.is_none_or(|bound| g >= bound));
                }
            }
        }
        // Bounded, not clamped: half the bound at a = 0.
        assert_eq!(log_decay(0.0, 0.0, 1.0, Some(-5.0)), -2.5);
    }

    #[test]
    fn the_last_tap_multiplies_the_current_token() {
        let dims = Dims { heads: 1, head_dim: 1, taps: 3 };
        let (taps, one) = ([0.0, 0.0, 1.0], [1.0]);
        let params = Params {
            dims,
            conv: [&taps; 3],
            a_log: &one,
            dt_bias: &one,
            out_norm: &one,
            eps: 1e-5,
            lower_bound: Some(-5.0),
        };
        let mut state = State::zeros(dims);
        for value in [[1.0], [2.0], [3.0]] {
            let token = Token { q: &value, k: &value, v: &value, gate: &one, beta: &one, out_gate: &one };
            let input = prepare(&params, &token, &mut state.conv);
            assert_eq!(input[0].v[0], silu(value[0]));
        }
        assert_eq!(state.conv, [2.0, 3.0, 2.0, 3.0, 2.0, 3.0]);
    }

    #[test]
    fn a_written_value_is_read_back_and_replaced() {
        // β = 1 and a unit key: the state returns the last value written under that key.
        let write =
            |v: [f32; 2]| HeadInput { q: vec![1.0, 0.0], k: vec![1.0, 0.0], v: v.to_vec(), g: vec![0.0; 2], beta: 1.0 };
        let mut state = vec![0.0; 4];
        assert_eq!(recur(&write([3.0, -1.0]), &mut state), [3.0, -1.0]);
        assert_eq!(recur(&write([5.0, 2.0]), &mut state), [5.0, 2.0]);
        assert_eq!(state, [5.0, 2.0, 0.0, 0.0]);
    }

    #[test]
    fn decay_applies_before_the_delta() {
        let mut state = vec![8.0];
        let half = HeadInput { q: vec![1.0], k: vec![1.0], v: vec![0.0], g: vec![0.5_f32.ln()], beta: 0.5 };
        // Decayed to 4, corrected by half of (0 - 4).
        assert!((recur(&half, &mut state)[0] - 2.0).abs() < 1e-6);
    }
}
