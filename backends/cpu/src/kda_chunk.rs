//! The chunkwise form of KDA: a run of tokens of one head at once, by sums of rows instead of token by token.
//!
//! Exact in real arithmetic, another rounding than the recurrence (`kimi-k3.md` 3.3). No exponent is ever positive: pair
//! terms of different sub-blocks refer to the decay at the start of the later one, pairs inside a sub-block use the
//! difference of their own decays.

use perilune_backend::KdaDims;

use crate::kda_head::{Tokens, padded};
use crate::simd::{Simd, dot, exp};

/// Tokens of a sub-block.
const SUB: usize = 16;

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

/// Working memory of a chunk.
struct Room<'a> {
    /// Keys, decayed from a reference to their token: `k e^(G - R)`.
    later: &'a mut [f32],
    /// Keys, decayed from their token to a reference: `k e^(R - G)`.
    earlier: &'a mut [f32],
    /// Queries, decayed like `later`.
    queries: &'a mut [f32],
    /// `β δ` of each token.
    corrected: &'a mut [f32],
    /// `Σ_c k_ic k_jc e^(G_i - G_j)`, `[TOKENS, TOKENS]`.
    keys_by_keys: &'a mut [f32],
    /// The same with `q_i`.
    queries_by_keys: &'a mut [f32],
}

impl ChunkHead<'_> {
    /// Most tokens of a chunk.
    pub(crate) const TOKENS: usize = 64;

    /// Scratch of a task that uses this form, that of the preparation included.
    pub(crate) fn scratch_len(dims: KdaDims) -> usize {
        let stride = padded(dims.head_dim);
        let own = 4 * Self::TOKENS * stride + 2 * Self::TOKENS * Self::TOKENS;
        3 * dims.conv_kernel * stride + Tokens::len(dims, Self::TOKENS) + own
    }

    /// From prepared tokens to their outputs and the state after them.
    #[inline(always)]
    pub(crate) fn run<S: Simd>(self, s: S, tokens: &mut Tokens<'_>) {
        let ChunkHead { d, count, state, scratch } = self;
        let stride = tokens.stride;
        let mut room = cut(stride, scratch);
        let row = |t: usize| t * stride..(t + 1) * stride;
        for t in 1..count {
            let (before, now) = tokens.g.split_at_mut(t * stride);
            add_scaled(s, &mut now[..stride], (1.0, &before[(t - 1) * stride..]));
        }
        for first in (0..count).step_by(SUB) {
            room.pair_terms(s, tokens, (first, SUB.min(count - first), d));
        }
        for t in 0..count {
            let (done, rest) = room.corrected.split_at_mut(t * stride);
            let value = &mut rest[..stride];
            value.copy_from_slice(&tokens.v[row(t)]);
            decayed_rows(s, value, (&tokens.k[row(t)], &tokens.g[row(t)]), (state, -1.0, d));
            for j in 0..t {
                add_scaled(s, value, (-room.keys_by_keys[t * Self::TOKENS + j], &done[row(j)]));
            }
            let beta = tokens.beta[t * crate::simd::MAX_LANES];
            value.iter_mut().for_each(|v| *v *= beta);
        }
        for t in 0..count {
            let out = &mut tokens.o[row(t)];
            out.fill(0.0);
            decayed_rows(s, out, (&tokens.q[row(t)], &tokens.g[row(t)]), (state, 1.0, d));
            for j in 0..=t {
                add_scaled(s, out, (room.queries_by_keys[t * Self::TOKENS + j], &room.corrected[row(j)]));
            }
        }
        advance(s, tokens, (count, d), room.corrected, state);
    }
}

fn cut(stride: usize, scratch: &mut [f32]) -> Room<'_> {
    let rows = ChunkHead::TOKENS * stride;
    let (later, rest) = scratch.split_at_mut(rows);
    let (earlier, rest) = rest.split_at_mut(rows);
    let (queries, rest) = rest.split_at_mut(rows);
    let (corrected, rest) = rest.split_at_mut(rows);
    let (keys_by_keys, rest) = rest.split_at_mut(ChunkHead::TOKENS * ChunkHead::TOKENS);
    let queries_by_keys = &mut rest[..ChunkHead::TOKENS * ChunkHead::TOKENS];
    Room { later, earlier, queries, corrected, keys_by_keys, queries_by_keys }
}

impl Room<'_> {
    /// The rows `first .. first + rows` of both pair matrices.
    #[inline(always)]
    fn pair_terms<S: Simd>(&mut self, s: S, tokens: &Tokens<'_>, (first, rows, d): (usize, usize, usize)) {
        let stride = tokens.stride;
        let at = |t: usize| t * stride..t * stride + d;
        // The decay before the sub-block; zero for the first one.
        let reference: &[f32] = if first == 0 { &[] } else { &tokens.g[at(first - 1)] };
        for t in first..first + rows {
            let g = &tokens.g[at(t)];
            for c in (0..d).step_by(S::LANES) {
                let decay = exp(s, s.sub(s.load(g, c), s.load(reference, c)));
                s.store(&mut self.later[at(t)], c, s.mul(decay, s.load(&tokens.k[at(t)], c)));
                s.store(&mut self.queries[at(t)], c, s.mul(decay, s.load(&tokens.q[at(t)], c)));
            }
        }
        for t in 0..first {
            let g = &tokens.g[at(t)];
            for c in (0..d).step_by(S::LANES) {
                let decay = exp(s, s.sub(s.load(reference, c), s.load(g, c)));
                s.store(&mut self.earlier[at(t)], c, s.mul(decay, s.load(&tokens.k[at(t)], c)));
            }
        }
        for i in first..first + rows {
            for j in 0..=i {
                let pair = i * ChunkHead::TOKENS + j;
                (self.keys_by_keys[pair], self.queries_by_keys[pair]) = if j < first {
                    let earlier = &self.earlier[at(j)];
                    (dot(s, &self.later[at(i)], earlier), dot(s, &self.queries[at(i)], earlier))
                } else {
                    direct_pair(s, tokens, (i, j, d))
                };
            }
        }
    }
}

/// Pair terms of two tokens of one sub-block, `j <= i`.
#[inline(always)]
fn direct_pair<S: Simd>(s: S, tokens: &Tokens<'_>, (i, j, d): (usize, usize, usize)) -> (f32, f32) {
    let at = |t: usize| t * tokens.stride..t * tokens.stride + d;
    let (mut keys, mut queries) = (s.splat(0.0), s.splat(0.0));
    for c in (0..d).step_by(S::LANES) {
        let decay = exp(s, s.sub(s.load(&tokens.g[at(i)], c), s.load(&tokens.g[at(j)], c)));
        let key = s.mul(decay, s.load(&tokens.k[at(j)], c));
        keys = s.fma(key, s.load(&tokens.k[at(i)], c), keys);
        queries = s.fma(key, s.load(&tokens.q[at(i)], c), queries);
    }
    (s.sum(keys), s.sum(queries))
}

/// `out += weight x` over the length of `out`.
#[inline(always)]
fn add_scaled<S: Simd>(s: S, out: &mut [f32], (weight, x): (f32, &[f32])) {
    let weight = s.splat(weight);
    for c in (0..out.len()).step_by(S::LANES) {
        s.store(out, c, s.fma(weight, s.load(x, c), s.load(out, c)));
    }
}

/// `out += sign Σ_c x_c e^(g_c) state_c`, over rows `c` of the state.
#[inline(always)]
fn decayed_rows<S: Simd>(s: S, out: &mut [f32], (x, g): (&[f32], &[f32]), (state, sign, d): (&[f32], f32, usize)) {
    for c in 0..d {
        let weight = sign * x[c] * g[c].exp();
        add_scaled(s, &mut out[..d], (weight, &state[c * d..(c + 1) * d]));
    }
}

/// The state after the chunk: `e^(G) S + Σ_j k_j e^(G - G_j) corrected_j`.
#[inline(always)]
fn advance<S: Simd>(s: S, tokens: &Tokens<'_>, (count, d): (usize, usize), corrected: &[f32], state: &mut [f32]) {
    let stride = tokens.stride;
    let last = (count - 1) * stride;
    for c in 0..d {
        let row = &mut state[c * d..(c + 1) * d];
        let decay = tokens.g[last + c].exp();
        row.iter_mut().for_each(|v| *v *= decay);
        for j in 0..count {
            let weight = tokens.k[j * stride + c] * (tokens.g[last + c] - tokens.g[j * stride + c]).exp();
            add_scaled(s, row, (weight, &corrected[j * stride..j * stride + d]));
        }
    }
}
