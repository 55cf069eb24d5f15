//! One head of one run: convolution, norms and gates of a few tokens at a time, their recurrence, the gated output.

use std::ops::Range;

use perilune_backend::{KdaDims, KdaGate};

use crate::KdaPrefill;
use crate::kda::Layer;
use crate::kda_chunk::ChunkHead;
use crate::kda_recurrence::{Recurrence, VECTORS};
use crate::norm::inverse_rms;
use crate::runs::Run;
use crate::simd::{Kernel, MAX_LANES, Simd, dot, sigmoid, softplus};

/// Tokens that are prepared at once by the recurrent form.
pub(crate) const TOKENS: usize = 16;
/// Log decays end here, where the decay is 0 in any case: a difference of infinite sums would be NaN, and larger sums
/// would leave differences of smaller ones inexact.
const LEAST_LOG_DECAY: f32 = -110.0;
/// Added to the sum of squares of q and k.
const L2_EPS: f32 = 1e-6;

/// One task.
pub(crate) struct HeadRun<'a> {
    pub(crate) layer: &'a Layer<'a>,
    pub(crate) run: &'a Run,
    pub(crate) head: usize,
    pub(crate) form: KdaPrefill,
    /// [`HeadRun::scratch_len`] or [`ChunkHead::scratch_len`] values, the larger one.
    pub(crate) scratch: &'a mut [f32],
}

/// Prepared tokens: rows of `stride` values, of which the first `D` count.
pub(crate) struct Tokens<'a> {
    pub(crate) stride: usize,
    /// Normalised, q also scaled.
    pub(crate) q: &'a mut [f32],
    pub(crate) k: &'a mut [f32],
    pub(crate) v: &'a mut [f32],
    /// Log decay; the recurrent form makes decay of it.
    pub(crate) g: &'a mut [f32],
    /// Keys times decay, for the recurrent form.
    pub(crate) decayed_k: &'a mut [f32],
    /// Outputs, before norm and gate.
    pub(crate) o: &'a mut [f32],
    /// One per token.
    pub(crate) beta: &'a mut [f32],
}

/// Row width that any column block of any level divides.
pub(crate) fn padded(head_dim: usize) -> usize {
    head_dim.next_multiple_of(VECTORS * MAX_LANES)
}

impl<'a> Tokens<'a> {
    /// Values that `count` tokens need.
    pub(crate) fn len(dims: KdaDims, count: usize) -> usize {
        count * (6 * padded(dims.head_dim) + MAX_LANES)
    }

    /// Cuts `scratch`; returns the rest of it.
    pub(crate) fn cut(dims: KdaDims, count: usize, scratch: &'a mut [f32]) -> (Tokens<'a>, &'a mut [f32]) {
        let stride = padded(dims.head_dim);
        let (q, rest) = scratch.split_at_mut(count * stride);
        let (k, rest) = rest.split_at_mut(count * stride);
        let (v, rest) = rest.split_at_mut(count * stride);
        let (g, rest) = rest.split_at_mut(count * stride);
        let (decayed_k, rest) = rest.split_at_mut(count * stride);
        let (o, rest) = rest.split_at_mut(count * stride);
        let (beta, rest) = rest.split_at_mut(count * MAX_LANES);
        (Tokens { stride, q, k, v, g, decayed_k, o, beta }, rest)
    }

    /// Norms of q and k of the first `count` tokens.
    #[inline(always)]
    pub(crate) fn normalise<S: Simd>(&mut self, s: S, dims: KdaDims, count: usize) {
        for t in 0..count {
            let at = t * self.stride..(t + 1) * self.stride;
            normalise(s, &mut self.q[at.clone()], (dims.head_dim as f32).powf(-0.5));
            normalise(s, &mut self.k[at], 1.0);
        }
    }
}

impl HeadRun<'_> {
    pub(crate) fn scratch_len(dims: KdaDims) -> usize {
        let (d, stride) = (dims.head_dim, padded(dims.head_dim));
        3 * dims.conv_kernel * stride + Tokens::len(dims, TOKENS) + d * VECTORS * MAX_LANES
    }
}

impl Kernel for HeadRun<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let dims = self.layer.dims;
        let HeadRun { layer, run, head, form, scratch } = self;
        let (taps, rest) = scratch.split_at_mut(3 * dims.conv_kernel * padded(dims.head_dim));
        let mut prepare = Prepare { layer, run, head, taps };
        prepare.transpose_taps();
        let at_once = if form == KdaPrefill::Chunkwise { ChunkHead::TOKENS } else { TOKENS };
        let (mut tokens, rest) = Tokens::cut(dims, at_once, rest);
        // SAFETY: slots are distinct, so this head of this slot belongs to this task alone; so do its other columns.
        let state = unsafe { layer.arena.part(prepare.state(run.slot)) };
        let mut snapshots = run.snapshots.iter().peekable();
        let mut first = 0;
        while first < run.rows.len() {
            let end = snapshots.peek().map_or(run.rows.len(), |next| next.rows);
            let count = at_once.min(end - first);
            prepare.tokens(s, &mut tokens, first..first + count);
            match form {
                KdaPrefill::Recurrent => {
                    Recurrence { d: dims.head_dim, count, state, copy: rest }.run(s, &mut tokens);
                }
                KdaPrefill::Chunkwise => {
                    ChunkHead { d: dims.head_dim, count, state, scratch: rest }.run(s, &mut tokens);
                }
            }
            prepare.outputs(s, &tokens, first..first + count);
            first += count;
            if let Some(snapshot) = snapshots.next_if(|next| next.rows == first) {
                // SAFETY: slots of snapshots are distinct from all others.
                unsafe { layer.arena.part(prepare.state(snapshot.slot)) }.copy_from_slice(state);
                prepare.move_tail(first, snapshot.slot);
            }
        }
        prepare.move_tail(run.rows.len(), run.slot);
    }
}

/// Everything but the recurrence.
pub(crate) struct Prepare<'a, 's> {
    pub(crate) layer: &'a Layer<'a>,
    pub(crate) run: &'a Run,
    pub(crate) head: usize,
    /// `[3, conv_kernel, stride]`.
    pub(crate) taps: &'s mut [f32],
}

impl Prepare<'_, '_> {
    /// Channels of this head.
    pub(crate) fn channels(&self) -> Range<usize> {
        let d = self.layer.dims.head_dim;
        self.head * d..(self.head + 1) * d
    }

    /// This head's part of row `i` of the run.
    pub(crate) fn row<'a>(&self, x: &'a [f32], i: usize) -> &'a [f32] {
        let first = (self.run.rows.start + i) * self.layer.dims.width();
        let channels = self.channels();
        &x[first + channels.start..first + channels.end]
    }

    /// This head's state in a slot.
    pub(crate) fn state(&self, slot: usize) -> Range<usize> {
        let len = self.layer.dims.head_dim * self.layer.dims.head_dim;
        let first = self.layer.state_at.start(slot) + self.head * len;
        first..first + len
    }

    /// This head's part of row `j` of the convolution tail of q, k or v in a slot.
    pub(crate) fn tail(&self, slot: usize, (which, j): (usize, usize)) -> Range<usize> {
        let dims = self.layer.dims;
        let row = which * (dims.conv_kernel - 1) + j;
        let first = self.layer.conv_at.start(slot) + row * dims.width();
        let channels = self.channels();
        first + channels.start..first + channels.end
    }

    /// Taps of this head with the tap outermost, so that a vector of channels is one load.
    pub(crate) fn transpose_taps(&mut self) {
        let KdaDims { head_dim, conv_kernel, .. } = self.layer.dims;
        let stride = padded(head_dim);
        self.taps.fill(0.0);
        for (which, taps) in self.layer.conv.iter().enumerate() {
            for c in 0..head_dim {
                for j in 0..conv_kernel {
                    let tap = taps[(self.head * head_dim + c) * conv_kernel + j];
                    self.taps[(which * conv_kernel + j) * stride + c] = tap;
                }
            }
        }
    }

    /// Convolution, SiLU, norms and gates of the tokens `range` of the run.
    #[inline(always)]
    fn tokens<S: Simd>(&self, s: S, tokens: &mut Tokens<'_>, range: Range<usize>) {
        let count = range.len();
        self.mixed_tokens(s, tokens, range);
        tokens.normalise(s, self.layer.dims, count);
    }

    /// The same without the norms.
    #[inline(always)]
    pub(crate) fn mixed_tokens<S: Simd>(&self, s: S, tokens: &mut Tokens<'_>, range: Range<usize>) {
        let stride = tokens.stride;
        let heads = self.layer.dims.num_heads;
        for (t, i) in range.enumerate() {
            let at = t * stride..(t + 1) * stride;
            self.convolve(s, (0, i), &mut tokens.q[at.clone()]);
            self.convolve(s, (1, i), &mut tokens.k[at.clone()]);
            self.convolve(s, (2, i), &mut tokens.v[at.clone()]);
            self.decay(s, i, &mut tokens.g[at]);
            let logit = self.layer.beta[(self.run.rows.start + i) * heads + self.head];
            s.store(&mut tokens.beta[t * MAX_LANES..], 0, sigmoid(s, s.splat(logit)));
        }
    }

    /// Short convolution and SiLU of one row of q, k or v.
    #[inline(always)]
    fn convolve<S: Simd>(&self, s: S, (which, i): (usize, usize), out: &mut [f32]) {
        let history = self.layer.dims.conv_kernel - 1;
        for c in (0..out.len()).step_by(S::LANES) {
            let mut sum = s.splat(0.0);
            for j in 0..=history {
                let tap = s.load(&self.taps[(which * (history + 1) + j) * out.len()..], c);
                let value = if i + j < history {
                    // SAFETY: this head of this slot's tail belongs to this task alone.
                    s.load(unsafe { self.layer.arena.part(self.tail(self.run.slot, (which, i + j))) }, c)
                } else {
                    s.load(self.row(self.layer.inputs[which], i + j - history), c)
                };
                sum = s.fma(tap, value, sum);
            }
            s.store(out, c, s.mul(sum, sigmoid(s, sum)));
        }
    }

    /// Log decay of one row.
    #[inline(always)]
    fn decay<S: Simd>(&self, s: S, i: usize, out: &mut [f32]) {
        let z = self.row(self.layer.gate, i);
        let bias = &self.layer.dt_bias[self.channels()];
        // A finite rate, as an infinite one times 0 is NaN.
        let rate = s.splat(self.layer.a_log[self.head].exp().clamp(0.0, f32::MAX));
        let zero = s.splat(0.0);
        for c in (0..out.len()).step_by(S::LANES) {
            let a = s.add(s.load(z, c), s.load(bias, c));
            let g = match self.layer.gate_kind {
                KdaGate::Bounded { lower_bound } => s.mul(s.splat(lower_bound), sigmoid(s, s.mul(rate, a))),
                KdaGate::Softplus => s.sub(zero, s.mul(rate, softplus(s, a))),
            };
            s.store(out, c, s.max(s.splat(LEAST_LOG_DECAY), g));
        }
    }

    /// Norm and gate of the outputs of the tokens `range`.
    #[inline(always)]
    pub(crate) fn outputs<S: Simd>(&self, s: S, tokens: &Tokens<'_>, range: Range<usize>) {
        let (d, width) = (self.layer.dims.head_dim, self.layer.dims.width());
        for (t, i) in range.enumerate() {
            let o = &tokens.o[t * tokens.stride..t * tokens.stride + d];
            let gate = self.row(self.layer.out_gate, i);
            let factor = s.splat(inverse_rms(s, o, self.layer.eps));
            let first = (self.run.rows.start + i) * width + self.channels().start;
            // SAFETY: this head of this row belongs to this task alone.
            let out = unsafe { self.layer.out.part(first..first + d) };
            for c in (0..d).step_by(S::LANES) {
                let normed = s.mul(s.mul(s.load(o, c), factor), s.load(self.layer.out_norm, c));
                s.store(out, c, s.mul(normed, sigmoid(s, s.load(gate, c))));
            }
        }
    }

    /// The last rows before the convolution, of the first `tokens` of the run, become the tail in a slot. The run's own
    /// slot comes last: the others need what it held.
    fn move_tail(&self, tokens: usize, slot: usize) {
        let history = self.layer.dims.conv_kernel - 1;
        for which in 0..3 {
            for j in 0..history {
                // SAFETY: as in `convolve`; one part at a time is written.
                let to = unsafe { self.layer.arena.part(self.tail(slot, (which, j))) };
                if tokens + j < history {
                    let from = self.tail(self.run.slot, (which, tokens + j));
                    // SAFETY: another row than `to`, as there is at least one token.
                    to.copy_from_slice(unsafe { self.layer.arena.part(from) });
                } else {
                    to.copy_from_slice(self.row(self.layer.inputs[which], tokens + j - history));
                }
            }
        }
    }
}

/// `x (Σ x² + eps)^(-1/2) scale`, in place; padding is zero and stays so.
#[inline(always)]
fn normalise<S: Simd>(s: S, x: &mut [f32], scale: f32) {
    let factor = s.splat(scale / (dot(s, x, x) + L2_EPS).sqrt());
    for c in (0..x.len()).step_by(S::LANES) {
        s.store(x, c, s.mul(s.load(x, c), factor));
    }
}
