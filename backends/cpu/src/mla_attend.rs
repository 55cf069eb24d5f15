//! Attention of one row's heads over the latent cache, by blocks of keys at fixed positions of the sequence, with a
//! running maximum and sum. Keys after the row's own position are not read: their places may hold anything.

use std::ops::Range;

use perilune_backend::UnitLayout;

use crate::matrix::{F32, RowPtr};
use crate::simd::{Kernel, MAX_LANES, Simd, exp};
use crate::tensor::Parted;
use crate::tile::{MAX_TILE_ROWS, Sums, dots};

/// Keys of a block. Whatever the block size of the cache, the order of additions is that of these blocks.
pub(crate) const KEYS: usize = 32;

/// Where the rows `[c | k^r]` of a layer lie in the arena.
#[derive(Clone, Copy)]
pub(crate) struct Places {
    pub(crate) at: UnitLayout,
    pub(crate) block_size: usize,
    pub(crate) width: usize,
}

impl Places {
    /// First element of the row of a token whose sequence has these blocks.
    #[inline(always)]
    pub(crate) fn row(&self, blocks: &[u32], position: usize) -> usize {
        self.at.start(blocks[position / self.block_size] as usize) + position % self.block_size * self.width
    }
}

/// The latents of a layer.
#[derive(Clone, Copy)]
pub(crate) struct Cache<'a> {
    pub(crate) arena: &'a [f32],
    pub(crate) places: Places,
}

impl Cache<'_> {
    #[inline(always)]
    fn row(&self, blocks: &[u32], position: usize) -> RowPtr {
        let place = self.places.row(blocks, position);
        RowPtr::plain(bytemuck::cast_slice(&self.arena[place..place + self.places.width]))
    }
}

/// Some heads of one row.
pub(crate) struct Attend<'a> {
    pub(crate) cache: Cache<'a>,
    /// Blocks of the row's sequence, checked to exist and to reach `position`.
    pub(crate) blocks: &'a [u32],
    /// Position of the row: it sees keys `0 ..= position`.
    pub(crate) position: usize,
    /// Latent width `C`.
    pub(crate) latent: usize,
    pub(crate) heads: Range<usize>,
    /// Absorbed, scaled queries of all heads of the row, `[heads, C + r]`.
    pub(crate) wide: &'a [f32],
    /// Mixtures `[heads, rows, C]`.
    pub(crate) mixed: &'a Parted<'a, f32>,
    /// Which row of the mixtures this is, and how many there are.
    pub(crate) place: (usize, usize),
}

impl Kernel for Attend<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let mut head = self.heads.start;
        while head < self.heads.end {
            head += match self.heads.end - head {
                1 => self.tile::<S, 1, 4>(s, head),
                2 | 3 => self.tile::<S, 2, 4>(s, head),
                n if n < MAX_TILE_ROWS || !S::WIDE => self.tile::<S, 4, 2>(s, head),
                _ => self.tile::<S, MAX_TILE_ROWS, 3>(s, head),
            };
        }
    }
}

/// Running softmax of one head.
#[derive(Clone, Copy)]
pub(crate) struct Running {
    max: f32,
    sum: f32,
}

impl Attend<'_> {
    /// `R` heads from `first`, all of which exist, with scores of `O` keys at a time; returns `R`.
    #[inline(always)]
    fn tile<S: Simd, const R: usize, const O: usize>(&self, s: S, first: usize) -> usize {
        let mut acc = [std::ptr::null_mut(); R];
        for (r, acc) in acc.iter_mut().enumerate() {
            let mixed = self.mixed_row(first + r);
            mixed.fill(0.0);
            *acc = mixed.as_mut_ptr();
        }
        let mut running = [Running::START; R];
        for start in (0..=self.position).step_by(KEYS) {
            let mut keys = [RowPtr::plain(&[]); KEYS];
            let count = KEYS.min(self.position + 1 - start);
            for (t, key) in keys.iter_mut().enumerate().take(count) {
                *key = self.cache.row(self.blocks, start + t);
            }
            let keys = &keys[..count];
            let mut weights = self.scores::<S, R, O>(s, first, keys);
            let mut decay = [0.0; R];
            for r in 0..R {
                decay[r] = running[r].step(s, &mut weights[r][..count]);
            }
            let coefficients = std::array::from_fn(|r| weights[r].as_ptr());
            // SAFETY: keys begin with `latent` columns; there are `count` weights; `acc` are different rows.
            unsafe { Sums { w: keys, coefficients, decay, acc, width: self.latent }.add::<S, F32>(s) };
        }
        for (r, running) in running.iter().enumerate() {
            let (mixed, factor) = (self.mixed_row(first + r), s.splat(1.0 / running.sum));
            for c in (0..mixed.len()).step_by(S::LANES) {
                let value = s.mul(s.load(mixed, c), factor);
                s.store(mixed, c, value);
            }
        }
        R
    }

    #[allow(clippy::mut_from_ref)] // the row belongs to this task alone
    #[inline(always)]
    fn mixed_row(&self, head: usize) -> &mut [f32] {
        // SAFETY: no other task has this row and head, and one row is borrowed at a time.
        unsafe { self.mixed.row(head * self.place.1 + self.place.0, self.latent) }
    }

    #[inline(always)]
    fn scores<S: Simd, const R: usize, const O: usize>(&self, s: S, first: usize, keys: &[RowPtr]) -> [[f32; KEYS]; R] {
        let width = self.cache.places.width;
        let queries: [*const f32; R] =
            std::array::from_fn(|r| self.wide[(first + r) * width..(first + r + 1) * width].as_ptr());
        let mut scores = [[0.0; KEYS]; R];
        for start in (0..keys.len()).step_by(O) {
            let tile = std::array::from_fn(|o| keys[(start + o).min(keys.len() - 1)]);
            // SAFETY: queries and keys have `width` columns.
            let sums = unsafe { dots::<S, F32, R, O>(s, queries, tile, width) };
            let count = O.min(keys.len() - start);
            for (scores, sums) in scores.iter_mut().zip(sums) {
                scores[start..start + count].copy_from_slice(&sums[..count]);
            }
        }
        scores
    }
}

impl Running {
    /// Before the first key.
    pub(crate) const START: Running = Running { max: f32::NEG_INFINITY, sum: 0.0 };

    /// Sum of the weights under the last maximum.
    #[inline(always)]
    pub(crate) fn sum(&self) -> f32 {
        self.sum
    }

    /// Turns the scores of a block into weights under the new maximum; returns the factor on everything before.
    #[inline(always)]
    pub(crate) fn step<S: Simd>(&mut self, s: S, scores: &mut [f32]) -> f32 {
        let max = scores.iter().copied().fold(self.max, f32::max);
        let mut before = [0.0; MAX_LANES];
        s.store(&mut before, 0, exp(s, s.splat(self.max - max)));
        let mut sum = s.splat(0.0);
        for i in (0..scores.len()).step_by(S::LANES) {
            let weight = exp(s, s.sub(s.load(scores, i), s.splat(max)));
            s.store(scores, i, weight);
            // Read back, so that lanes past the end count as 0.
            sum = s.add(sum, s.load(scores, i));
        }
        self.sum = self.sum * before[0] + s.sum(sum);
        self.max = max;
        before[0]
    }
}
