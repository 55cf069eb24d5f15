//! The chunkwise form of KDA: 64 tokens of one head read and update the state at once (`kimi-k3.md` 3.3).
//!
//! Exact in real arithmetic, another rounding than the recurrence. No exponent is ever positive: pair terms of different
//! sub-blocks refer to the decay at the start of the later one, pairs inside a sub-block use the difference of their own
//! decays.

use std::ops::Range;

use perilune_backend::KdaDims;

use crate::kda_head::{Tokens, padded};
use crate::matrix::{F32, RowPtr};
use crate::simd::{MAX_LANES, Simd, exp};
use crate::tile::{Sums, dots};

/// Most tokens of a chunk.
const CHUNK: usize = 64;
/// Tokens of a sub-block.
const SUB: usize = 16;
/// Rows or pairs that are computed together; divides a sub-block.
const TILE: usize = 4;
/// Decays below `e^LEAST`, some 1e-26, count as 0: arithmetic on subnormal numbers is many times slower.
const LEAST: f32 = -60.0;

/// One chunk of one head.
pub(crate) struct ChunkHead<'a> {
    pub(crate) d: usize,
    /// At most [`ChunkHead::TOKENS`].
    pub(crate) count: usize,
    /// `[D, D]`, key channels first.
    pub(crate) state: &'a mut [f32],
    /// Room for [`Room`].
    pub(crate) scratch: &'a mut [f32],
}

/// Working memory of a chunk. Rows of tokens have the stride of the tokens.
struct Room<'a> {
    /// `-Σ_c k_ic k_jc e^(G_i - G_j)` for `i > j`, `[CHUNK, CHUNK]`.
    keys_by_keys: &'a mut [f32],
    /// `Σ_c q_ic k_jc e^(G_i - G_j)` for `i >= j`, `[CHUNK, CHUNK]`.
    queries_by_keys: &'a mut [f32],
    /// Minus keys, decayed from a reference to their token: `-k e^(G - R)`.
    keys: &'a mut [f32],
    /// Queries, decayed like `keys`.
    queries: &'a mut [f32],
    /// Keys, decayed from their token to a reference: `k e^(R - G)`.
    earlier: &'a mut [f32],
    /// `earlier`, a row per channel: `[D, CHUNK]`.
    by_channel: &'a mut [f32],
}

impl ChunkHead<'_> {
    pub(crate) const TOKENS: usize = CHUNK;

    /// Scratch of a task that uses this form, that of the preparation included.
    pub(crate) fn scratch_len(dims: KdaDims) -> usize {
        let stride = padded(dims.head_dim);
        let own = 2 * CHUNK * CHUNK + 3 * CHUNK * stride + dims.head_dim * CHUNK;
        3 * dims.conv_kernel * stride + Tokens::len(dims, CHUNK) + own
    }

    /// From prepared tokens to their outputs and the state after them; overwrites `tokens.g` and `tokens.v`.
    #[inline(always)]
    pub(crate) fn run<S: Simd>(self, s: S, tokens: &mut Tokens<'_>) {
        let ChunkHead { d, count, state, scratch } = self;
        let stride = tokens.stride;
        let mut room = cut((d, stride), scratch);
        for t in 1..count {
            let (before, now) = tokens.g.split_at_mut(t * stride);
            add_row(s, &before[(t - 1) * stride..][..d], &mut now[..d]);
        }
        for first in (0..count).step_by(SUB) {
            let sub = first..count.min(first + SUB);
            room.pairs_across(s, tokens, sub.clone(), d);
            room.pairs_inside(s, tokens, sub, d);
        }
        room.decay_from(s, tokens, (0..count, &[]), d);
        room.read(s, tokens, state, (count, d));
        room.advance(s, tokens, state, (count, d));
    }
}

fn cut((d, stride): (usize, usize), scratch: &mut [f32]) -> Room<'_> {
    let (keys_by_keys, rest) = scratch.split_at_mut(CHUNK * CHUNK);
    let (queries_by_keys, rest) = rest.split_at_mut(CHUNK * CHUNK);
    let (keys, rest) = rest.split_at_mut(CHUNK * stride);
    let (queries, rest) = rest.split_at_mut(CHUNK * stride);
    let (earlier, rest) = rest.split_at_mut(CHUNK * stride);
    Room { keys_by_keys, queries_by_keys, keys, queries, earlier, by_channel: &mut rest[..d * CHUNK] }
}

impl Room<'_> {
    /// Fills `keys` and `queries` of some tokens; an empty reference is a decay of 0.
    #[inline(always)]
    fn decay_from<S: Simd>(&mut self, s: S, tokens: &Tokens<'_>, (range, reference): (Range<usize>, &[f32]), d: usize) {
        for t in range {
            let at = t * tokens.stride..t * tokens.stride + d;
            let g = &tokens.g[at.clone()];
            weigh(s, (&tokens.k[at.clone()], -1.0), (g, reference), &mut self.keys[at.clone()]);
            weigh(s, (&tokens.q[at.clone()], 1.0), (g, reference), &mut self.queries[at]);
        }
    }

    /// Fills `earlier` of the first `count` tokens.
    #[inline(always)]
    fn decay_to<S: Simd>(&mut self, s: S, tokens: &Tokens<'_>, (count, reference): (usize, &[f32]), d: usize) {
        for t in 0..count {
            let at = t * tokens.stride..t * tokens.stride + d;
            weigh(s, (&tokens.k[at.clone()], 1.0), (reference, &tokens.g[at.clone()]), &mut self.earlier[at]);
        }
    }

    /// Pairs of a token of `sub` with one of the sub-blocks before it.
    #[inline(always)]
    fn pairs_across<S: Simd>(&mut self, s: S, tokens: &Tokens<'_>, sub: Range<usize>, d: usize) {
        if sub.start == 0 {
            return;
        }
        let at = |t: usize| t * tokens.stride..t * tokens.stride + d;
        let reference = &tokens.g[at(sub.start - 1)];
        self.decay_from(s, tokens, (sub.clone(), reference), d);
        self.decay_to(s, tokens, (sub.start, reference), d);
        for i in sub.clone() {
            let x = [self.keys[at(i)].as_ptr(), self.queries[at(i)].as_ptr()];
            for j in (0..sub.start).step_by(TILE) {
                let w: [RowPtr; TILE] = std::array::from_fn(|o| row_ptr(&self.earlier[at(j + o)]));
                // SAFETY: all rows have `d` columns.
                let sums = unsafe { dots::<S, F32, 2, TILE>(s, x, w, d) };
                self.keys_by_keys[i * CHUNK + j..][..TILE].copy_from_slice(&sums[0]);
                self.queries_by_keys[i * CHUNK + j..][..TILE].copy_from_slice(&sums[1]);
            }
        }
    }

    /// Pairs of two tokens of `sub`.
    #[inline(always)]
    fn pairs_inside<S: Simd>(&mut self, s: S, tokens: &Tokens<'_>, sub: Range<usize>, d: usize) {
        let at = |t: usize| t * tokens.stride..t * tokens.stride + d;
        for i in sub.clone() {
            for j in sub.start..=i {
                let (mut keys, mut queries) = (s.splat(0.0), s.splat(0.0));
                for c in (0..d).step_by(S::LANES) {
                    let decay = decay(s, s.sub(s.load(&tokens.g[at(i)], c), s.load(&tokens.g[at(j)], c)));
                    let key = s.mul(decay, s.load(&tokens.k[at(j)], c));
                    keys = s.fma(key, s.load(&tokens.k[at(i)], c), keys);
                    queries = s.fma(key, s.load(&tokens.q[at(i)], c), queries);
                }
                self.keys_by_keys[i * CHUNK + j] = -s.sum(keys);
                self.queries_by_keys[i * CHUNK + j] = s.sum(queries);
            }
        }
    }

    /// What tokens read: `β δ` in place of `tokens.v`, by forward substitution, and the outputs.
    #[inline(always)]
    fn read<S: Simd>(&mut self, s: S, tokens: &mut Tokens<'_>, state: &[f32], (count, d): (usize, usize)) {
        let stride = tokens.stride;
        let state: Vec<RowPtr> = state.chunks_exact(d).map(row_ptr).collect();
        tokens.o[..count * stride].fill(0.0);
        add_products(s, &state, Rows { x: self.keys, acc: tokens.v, stride, count }, d);
        add_products(s, &state, Rows { x: self.queries, acc: tokens.o, stride, count }, d);
        let mut corrected: Vec<RowPtr> = Vec::with_capacity(count);
        for t in 0..count {
            let at = t * stride..t * stride + d;
            let value = &mut tokens.v[at.clone()];
            add_rows(s, &corrected, &self.keys_by_keys[t * CHUNK..][..t], value);
            let beta = s.splat(tokens.beta[t * MAX_LANES]);
            for c in (0..d).step_by(S::LANES) {
                let scaled = s.mul(beta, s.load(value, c));
                s.store(value, c, scaled);
            }
            corrected.push(row_ptr(value));
            add_rows(s, &corrected, &self.queries_by_keys[t * CHUNK..][..t + 1], &mut tokens.o[at]);
        }
    }

    /// The state after the chunk: `e^(G) S + Σ_j k_j e^(G - G_j) corrected_j`.
    #[inline(always)]
    fn advance<S: Simd>(&mut self, s: S, tokens: &Tokens<'_>, state: &mut [f32], (count, d): (usize, usize)) {
        let at = |t: usize| t * tokens.stride..t * tokens.stride + d;
        let last = &tokens.g[at(count - 1)];
        self.decay_to(s, tokens, (count, last), d);
        for t in 0..count {
            let row = &self.earlier[at(t)];
            row.iter().enumerate().for_each(|(c, weight)| self.by_channel[c * CHUNK + t] = *weight);
        }
        let corrected: Vec<RowPtr> = (0..count).map(|t| row_ptr(&tokens.v[at(t)])).collect();
        let mut decays = [0.0; MAX_LANES];
        for first in (0..d).step_by(TILE) {
            s.store(&mut decays, 0, decay(s, s.load(&last[..d.min(first + TILE)], first)));
            let channel = |r: usize| (first + r).min(d - 1);
            let acc: [*mut f32; TILE] = std::array::from_fn(|r| state[channel(r) * d..][..d].as_mut_ptr());
            let coefficients = std::array::from_fn(|r| self.by_channel[channel(r) * CHUNK..][..count].as_ptr());
            let decay = std::array::from_fn(|r| decays[channel(r) - first]);
            // SAFETY: there are `count` coefficients and rows; a repeated row repeats its coefficients and its decay.
            unsafe { Sums { w: &corrected, coefficients, decay, acc, width: d }.add::<S, F32>(s) };
        }
    }
}

/// Rows of coefficients, and the sums that they belong to.
struct Rows<'a> {
    x: &'a [f32],
    acc: &'a mut [f32],
    stride: usize,
    count: usize,
}

/// `acc_i += Σ_c x_ic w_c` for every row `i`.
#[inline(always)]
fn add_products<S: Simd>(s: S, w: &[RowPtr], rows: Rows<'_>, d: usize) {
    for first in (0..rows.count).step_by(TILE) {
        let at = |r: usize| (first + r).min(rows.count - 1) * rows.stride;
        let coefficients = std::array::from_fn(|r| rows.x[at(r)..][..d].as_ptr());
        let acc: [*mut f32; TILE] = std::array::from_fn(|r| rows.acc[at(r)..][..d].as_mut_ptr());
        // SAFETY: there are `d` coefficients for the `d` rows of the state; a repeated row repeats its coefficients.
        unsafe { Sums { w, coefficients, decay: [1.0; TILE], acc, width: d }.add::<S, F32>(s) };
    }
}

/// `out += Σ_j weights_j w_j`.
#[inline(always)]
fn add_rows<S: Simd>(s: S, w: &[RowPtr], weights: &[f32], out: &mut [f32]) {
    let (coefficients, acc, width) = ([weights.as_ptr()], [out.as_mut_ptr()], out.len());
    // SAFETY: there is a weight for each row, and rows are as long as `out`.
    unsafe { Sums { w, coefficients, decay: [1.0], acc, width }.add::<S, F32>(s) };
}

fn row_ptr(row: &[f32]) -> RowPtr {
    RowPtr::plain(bytemuck::cast_slice(row))
}

/// `out += x`.
#[inline(always)]
fn add_row<S: Simd>(s: S, x: &[f32], out: &mut [f32]) {
    for c in (0..out.len()).step_by(S::LANES) {
        let sum = s.add(s.load(x, c), s.load(out, c));
        s.store(out, c, sum);
    }
}

/// `e^x`, 0 below [`LEAST`]; NaN stays.
#[inline(always)]
fn decay<S: Simd>(s: S, x: S::V) -> S::V {
    s.select_lt(x, s.splat(LEAST), s.splat(0.0), exp(s, x))
}

/// `out = sign x e^(from - to)`; what `to` lacks is 0.
#[inline(always)]
fn weigh<S: Simd>(s: S, (x, sign): (&[f32], f32), (from, to): (&[f32], &[f32]), out: &mut [f32]) {
    for c in (0..out.len()).step_by(S::LANES) {
        let weight = decay(s, s.sub(s.load(from, c), s.load(to, c)));
        s.store(out, c, s.mul(s.mul(s.splat(sign), s.load(x, c)), weight));
    }
}
