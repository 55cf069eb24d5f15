//! Everything of KDA but the recurrence: convolution, norms, gates, tails, gated outputs.
//!
//! Rows in shared memory are `padded()` wide, zero beyond the head's width.
#![allow(clippy::too_many_arguments)] // device code passes buffers one by one

use cubecl::prelude::*;

use super::{KdaGateKind, KdaVariant};
use crate::math::sigmoid;

/// Added to the sum of squares of q and k.
const L2_EPS: f32 = 1e-6;
/// Log decays end here, where the decay is 0 in any case.
const LEAST_LOG_DECAY: f32 = -110.0;

/// Where the data of one head of one run begin.
#[derive(CubeType, Clone, Copy)]
pub(crate) struct Place {
    /// First row of the run.
    pub(crate) row: usize,
    /// The head.
    pub(crate) head: usize,
    /// Number of heads.
    pub(crate) heads: usize,
    /// Element at which the slot's convolution tail begins.
    pub(crate) tail: usize,
    /// Rows before the convolution: elements from one to the next.
    pub(crate) stride: usize,
    /// Elements before the row of q.
    pub(crate) lead: usize,
    /// Elements from the row of q to that of k, and on to that of v; 0 where they are tensors of their own.
    pub(crate) part: usize,
}

/// `ln(1 + e^x)`, also where `e^x` is lost beside 1.
#[cube]
fn softplus(x: f32) -> f32 {
    let mut result = x;
    if x <= 20.0 {
        let e = x.exp();
        let sum = 1.0 + e;
        result = e;
        if sum != 1.0 {
            result = sum.ln() * (e / (sum - 1.0));
        }
    }
    result
}

/// The value that channel `c` of this head had before the convolution, `history` rows before row `row` of the run: from
/// the slot's tail or from the input.
#[cube]
fn before_convolution(
    input: &[f32],
    tail: &[f32],
    place: &Place,
    row: usize,
    c: usize,
    #[comptime] which: usize,
    #[comptime] v: KdaVariant,
) -> f32 {
    let d = comptime!(v.head_dim);
    let history = comptime!(v.taps - 1);
    let width = place.heads * d;
    let channel = place.head * d + c;
    if row < history {
        tail[place.tail + (which * history + row) * width + channel]
    } else {
        input[(place.row + row - history) * place.stride + place.lead + which * place.part + channel]
    }
}

/// Convolution and SiLU of `count` tokens from token `first` of the run on, into rows of `out`.
#[cube]
pub(crate) fn convolve(
    input: &[f32],
    taps: &[f32],
    tail: &[f32],
    place: &Place,
    first: usize,
    count: usize,
    out: &mut [f32],
    #[comptime] which: usize,
    #[comptime] v: KdaVariant,
) {
    let d = comptime!(v.head_dim);
    let padded = comptime!(v.padded());
    let num_taps = comptime!(v.taps);
    let units = comptime!(v.geometry.units);
    let mut item = UNIT_POS as usize;
    while item < count * padded {
        let t = item / padded;
        let c = item % padded;
        let mut result = 0.0;
        if c < d {
            let weights = (place.head * d + c) * num_taps;
            let mut sum = 0.0;
            #[unroll]
            for j in 0..num_taps {
                let value = before_convolution(input, tail, place, first + t + j, c, which, v);
                sum = fma(taps[weights + j], value, sum);
            }
            result = sum * sigmoid(sum);
        }
        out[item] = result;
        item += units;
    }
}

/// `x (Σ x² + eps)^(-1/2) scale` of `count` rows, one plane per row.
#[cube]
pub(crate) fn normalise(x: &mut [f32], count: usize, scale: f32, #[comptime] v: KdaVariant) {
    let padded = comptime!(v.padded());
    let plane = comptime!(v.geometry.plane);
    let planes = comptime!(v.geometry.planes());
    let mut t = PLANE_POS as usize;
    while t < count {
        let mut squares = 0.0;
        let mut c = UNIT_POS_PLANE as usize;
        while c < padded {
            let value = x[t * padded + c];
            squares = fma(value, value, squares);
            c += plane;
        }
        let factor = scale / (plane_sum(squares) + L2_EPS).sqrt();
        let mut c = UNIT_POS_PLANE as usize;
        while c < padded {
            x[t * padded + c] *= factor;
            c += plane;
        }
        t += planes;
    }
}

/// Log decay of a channel, at most 0 and never infinite.
#[cube]
fn log_decay(z: f32, a_log: f32, lower_bound: f32, #[comptime] kind: KdaGateKind) -> f32 {
    // A finite rate, as an infinite one times 0 is NaN.
    let rate = min(a_log.exp(), f32::MAX);
    let g =
        if comptime!(kind == KdaGateKind::Bounded) { lower_bound * sigmoid(rate * z) } else { -(rate * softplus(z)) };
    max(g, LEAST_LOG_DECAY)
}

/// Log decays of `count` tokens from token `first` of the run on.
#[cube]
pub(crate) fn log_decays(
    gate: &[f32],
    dt_bias: &[f32],
    a_log: &[f32],
    lower_bound: f32,
    place: &Place,
    first: usize,
    count: usize,
    out: &mut [f32],
    #[comptime] v: KdaVariant,
) {
    let d = comptime!(v.head_dim);
    let padded = comptime!(v.padded());
    let units = comptime!(v.geometry.units);
    let log_rate = a_log[place.head];
    let mut item = UNIT_POS as usize;
    while item < count * padded {
        let c = item % padded;
        let mut g = 0.0;
        if c < d {
            let channel = place.head * d + c;
            let row = place.row + first + item / padded;
            let z = gate[row * (place.heads * d) + channel] + dt_bias[channel];
            g = log_decay(z, log_rate, lower_bound, comptime!(v.gate));
        }
        out[item] = g;
        item += units;
    }
}

/// Learning rates of `count` tokens from token `first` of the run on.
#[cube]
pub(crate) fn learning_rates(beta: &[f32], place: &Place, first: usize, count: usize, out: &mut [f32]) {
    let t = UNIT_POS as usize;
    if t < count {
        out[t] = sigmoid(beta[(place.row + first + t) * place.heads + place.head]);
    }
}

/// The tail that the slot at element `to` would have after the first `after` tokens of the run.
///
/// The run's own tail may be the target: a unit owns its channels, and rows move towards the front in order.
#[cube]
pub(crate) fn write_tail(
    q: &[f32],
    k: &[f32],
    v_input: &[f32],
    tail: &mut [f32],
    place: &Place,
    after: usize,
    to: usize,
    #[comptime] v: KdaVariant,
) {
    let d = comptime!(v.head_dim);
    let history = comptime!(v.taps - 1);
    let units = comptime!(v.geometry.units);
    let width = place.heads * d;
    let mut c = UNIT_POS as usize;
    while c < d {
        for j in 0..history {
            let target = to + j * width + place.head * d + c;
            let part = history * width;
            let new_q = before_convolution(q, &*tail, place, after + j, c, 0usize, v);
            tail[target] = new_q;
            let new_k = before_convolution(k, &*tail, place, after + j, c, 1usize, v);
            tail[target + part] = new_k;
            let new_v = before_convolution(v_input, &*tail, place, after + j, c, 2usize, v);
            tail[target + 2 * part] = new_v;
        }
        c += units;
    }
}

/// `RMSNorm(o) ⊙ σ(γ)` of `count` tokens from token `first` of the run on, one plane per token.
#[cube]
pub(crate) fn write_outputs(
    o: &[f32],
    out_gate: &[f32],
    out_norm: &[f32],
    eps: f32,
    place: &Place,
    first: usize,
    count: usize,
    out: &mut [f32],
    #[comptime] v: KdaVariant,
) {
    let d = comptime!(v.head_dim);
    let padded = comptime!(v.padded());
    let plane = comptime!(v.geometry.plane);
    let planes = comptime!(v.geometry.planes());
    let mut t = PLANE_POS as usize;
    while t < count {
        let mut squares = 0.0;
        let mut c = UNIT_POS_PLANE as usize;
        while c < d {
            let value = o[t * padded + c];
            squares = fma(value, value, squares);
            c += plane;
        }
        let mean = plane_sum(squares) / comptime!(d as f32);
        let factor = 1.0 / (mean + eps).sqrt();
        let base = (place.row + first + t) * (place.heads * d) + place.head * d;
        let mut c = UNIT_POS_PLANE as usize;
        while c < d {
            out[base + c] = o[t * padded + c] * factor * out_norm[c] * sigmoid(out_gate[base + c]);
            c += plane;
        }
        t += planes;
    }
}
