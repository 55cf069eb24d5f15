//! The recurrence of KDA for prepared tokens of one head.
//!
//! The columns of a head's state do not depend on each other: a block of columns stays in registers' reach while all
//! tokens at hand go through it. Per token there is one pass over the block that decays, updates and reads, and adds up
//! `Sᵀ k` of what the next token decays; the first one's comes from a pass before. The order of additions does not depend
//! on how tokens are grouped.

use crate::kda_head::Tokens;
use crate::simd::{Kernel, MAX_LANES, Simd, exp};

/// Vectors of a column block where there are 32 registers; else it has one.
pub(crate) const VECTORS: usize = 2;
/// Sums over key channels that run side by side: channel `i` belongs to sum `i % CHAINS`.
const CHAINS: usize = 4;
/// Runs shorter than this update the state where it lies; longer ones in a compact copy of the column block.
const COPY_FROM: usize = 4;

/// The recurrence of prepared tokens, one block of state columns after the other.
pub(crate) struct Recurrence<'a> {
    pub(crate) d: usize,
    pub(crate) count: usize,
    /// `[D, D]`, key channels first.
    pub(crate) state: &'a mut [f32],
    /// Room for one column block.
    pub(crate) copy: &'a mut [f32],
}

impl Recurrence<'_> {
    #[inline(always)]
    pub(crate) fn run<S: Simd>(self, s: S, tokens: &mut Tokens<'_>) {
        for t in 0..self.count {
            for c in (t * tokens.stride..t * tokens.stride + self.d).step_by(S::LANES) {
                let decay = exp(s, s.load(tokens.g, c));
                s.store(tokens.g, c, decay);
                s.store(tokens.decayed_k, c, s.mul(decay, s.load(tokens.k, c)));
            }
        }
        // Sums for this token and the next one, in registers.
        if S::WIDE { self.columns::<S, VECTORS>(s, tokens) } else { self.columns::<S, 1>(s, tokens) }
    }

    /// Blocks of `V` vectors of columns.
    #[inline(always)]
    fn columns<S: Simd, const V: usize>(self, s: S, tokens: &mut Tokens<'_>) {
        let (d, count, width) = (self.d, self.count, V * S::LANES);
        for column in (0..d).step_by(width) {
            if count < COPY_FROM && column + width <= d {
                let block = self.state[column..].as_mut_ptr();
                // `d` rows of `width` values, `d` apart, lie in the state.
                s.apart(Block::<V> { d, count, tokens, column, block, stride: d });
                continue;
            }
            let inside = width.min(d - column);
            for i in 0..d {
                let row = &self.state[i * d + column..i * d + column + inside];
                for v in (0..width).step_by(S::LANES) {
                    s.store(&mut self.copy[i * width..(i + 1) * width], v, s.load(row, v));
                }
            }
            let block = self.copy.as_mut_ptr();
            // `copy` has room for `d` rows of `width` values.
            s.apart(Block::<V> { d, count, tokens, column, block, stride: width });
            for i in 0..d {
                let row = &mut self.state[i * d + column..i * d + column + inside];
                for v in (0..width).step_by(S::LANES) {
                    s.store(row, v, s.load(&self.copy[i * width..(i + 1) * width], v));
                }
            }
        }
    }
}

/// All tokens through some columns of the state; only `Recurrence::columns` makes one, which vouches for the pointer.
struct Block<'a, 't, const V: usize> {
    d: usize,
    count: usize,
    tokens: &'a mut Tokens<'t>,
    /// First column.
    column: usize,
    /// `d` rows of `V` vectors, which nobody else may use.
    block: *mut f32,
    /// Values from one row to the next.
    stride: usize,
}

/// Sums over key channels, by chain and vector.
type Chains<S, const V: usize> = [[<S as Simd>::V; V]; CHAINS];

impl<const V: usize> Kernel for Block<'_, '_, V> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(mut self, s: S) {
        let mut remembered = self.first(s);
        for t in 0..self.count {
            let at = t * self.tokens.stride;
            let beta = s.load(&self.tokens.beta[t * MAX_LANES..], 0);
            let value = &self.tokens.v[at..at + self.tokens.stride];
            let mut delta = [s.splat(0.0); V];
            for v in 0..V {
                let value = s.load(value, self.column + v * S::LANES);
                delta[v] = s.mul(beta, s.sub(value, total(s, &remembered, v)));
            }
            if t + 1 < self.count {
                remembered = self.token::<S, true>(s, t, delta);
            } else {
                self.token::<S, false>(s, t, delta);
            }
        }
    }
}

impl<const V: usize> Block<'_, '_, V> {
    /// `Sᵀ k` of the state that the first token decays.
    #[inline(always)]
    fn first<S: Simd>(&self, s: S) -> Chains<S, V> {
        let mut sums = [[s.splat(0.0); V]; CHAINS];
        let keys = &self.tokens.decayed_k[..self.d];
        for (row, keys) in keys.chunks(CHAINS).enumerate() {
            for chain in 0..CHAINS {
                let Some(key) = keys.get(chain) else { break };
                let weight = s.splat(*key);
                for v in 0..V {
                    // SAFETY: a row of the block.
                    let value = unsafe { s.load_ptr(self.place::<S>(row * CHAINS + chain, v)) };
                    sums[chain][v] = s.fma(weight, value, sums[chain][v]);
                }
            }
        }
        sums
    }

    /// Decays, updates and reads the state for token `t`; `Sᵀ k` of what the next one decays, where there is one.
    #[inline(always)]
    fn token<S: Simd, const MORE: bool>(&mut self, s: S, t: usize, delta: [S::V; V]) -> Chains<S, V> {
        let (d, at) = (self.d, t * self.tokens.stride);
        let next = if MORE { at + self.tokens.stride } else { at };
        let (a, k) = (&self.tokens.g[at..at + d], &self.tokens.k[at..at + d]);
        let (q, next_k) = (&self.tokens.q[at..at + d], &self.tokens.decayed_k[next..next + d]);
        let (mut read, mut remembered) = ([[s.splat(0.0); V]; CHAINS], [[s.splat(0.0); V]; CHAINS]);
        for first in (0..d).step_by(CHAINS) {
            for chain in 0..CHAINS {
                let i = first + chain;
                if i >= d {
                    break;
                }
                let (decay, key, query) = (s.splat(a[i]), s.splat(k[i]), s.splat(q[i]));
                for v in 0..V {
                    let place = self.place::<S>(i, v);
                    // SAFETY: a row of the block, here and below.
                    let value = s.fma(key, delta[v], s.mul(decay, unsafe { s.load_ptr(place) }));
                    // SAFETY: as above.
                    unsafe { s.store_ptr(place, value) };
                    read[chain][v] = s.fma(query, value, read[chain][v]);
                    if MORE {
                        remembered[chain][v] = s.fma(s.splat(next_k[i]), value, remembered[chain][v]);
                    }
                }
            }
        }
        let out = &mut self.tokens.o[at..at + self.tokens.stride];
        for v in 0..V {
            s.store(out, self.column + v * S::LANES, total(s, &read, v));
        }
        remembered
    }

    /// Vector `v` of row `i`.
    #[inline(always)]
    fn place<S: Simd>(&self, i: usize, v: usize) -> *mut f32 {
        // SAFETY: the block has `d` rows of `V` vectors.
        unsafe { self.block.add(i * self.stride + v * S::LANES) }
    }
}

/// Sum of the chains of one vector, always in the same order.
#[inline(always)]
fn total<S: Simd, const V: usize>(s: S, sums: &Chains<S, V>, v: usize) -> S::V {
    s.add(s.add(sums[0][v], sums[1][v]), s.add(sums[2][v], sums[3][v]))
}
