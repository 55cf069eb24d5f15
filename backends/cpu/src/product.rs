//! A block of a matrix product: some rows times some output features of one stored matrix.

use std::ops::Range;

use perilune_backend::Write;
use perilune_tensor::QuantFormat;

use crate::matrix::{Bf16, F16, F32, Format, Matrix, Mxfp4};
use crate::simd::{Kernel, Simd};
use crate::tensor::Parted;
use crate::tile::{MAX_TILE_ROWS, dots};

/// Which rows of a tensor a block works on: its `i`-th row is row `get(i)` of the tensor.
#[derive(Clone, Copy)]
pub(crate) enum Pick<'a> {
    /// Consecutive rows from the first.
    From(usize),
    /// These.
    Listed(&'a [u32]),
}

impl Pick<'_> {
    #[inline(always)]
    pub(crate) fn get(self, i: usize) -> usize {
        match self {
            Pick::From(first) => first + i,
            Pick::Listed(rows) => rows[i] as usize,
        }
    }
}

/// Where results go: columns `column ..` of picked rows of `width`.
#[derive(Clone, Copy)]
pub(crate) struct Outputs<'a> {
    pub(crate) data: &'a Parted<'a, f32>,
    pub(crate) width: usize,
    pub(crate) column: usize,
    pub(crate) pick: Pick<'a>,
    pub(crate) write: Write,
}

/// One block. Nobody else may touch its outputs while it runs.
#[derive(Clone)]
pub(crate) struct Product<'a> {
    /// Rows, at least 1.
    pub(crate) rows: usize,
    /// Input rows of `weight.in_features` columns.
    pub(crate) x: &'a [f32],
    /// Which rows of `x`.
    pub(crate) pick: Pick<'a>,
    pub(crate) weight: Matrix<'a>,
    /// Output features; feature `range.start + i` goes to column `out.column + i`.
    pub(crate) range: Range<usize>,
    pub(crate) out: Outputs<'a>,
}

impl Kernel for Product<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        match self.weight.format {
            QuantFormat::F32 => self.all::<S, F32>(s),
            QuantFormat::Bf16 => self.all::<S, Bf16>(s),
            QuantFormat::F16 => self.all::<S, F16>(s),
            QuantFormat::Mxfp4 => self.all::<S, Mxfp4>(s),
            // Their products need rounded rows (`Prepared`); without them nothing must look like a result.
            QuantFormat::Int8 | QuantFormat::Int4 => {
                (0..self.rows)
                    .for_each(|row| self.range.clone().for_each(|o| self.put(row, o - self.range.start, &[f32::NAN])));
            }
        }
    }
}

impl Product<'_> {
    /// The product of some of its features.
    #[cfg(target_arch = "x86_64")]
    pub(crate) fn part(&self, range: Range<usize>) -> Self {
        let mut part = self.clone();
        part.out.column += range.start - self.range.start;
        part.range = range;
        part
    }

    #[inline(always)]
    fn all<S: Simd, F: Format>(&self, s: S) {
        let max_rows = if S::WIDE { MAX_TILE_ROWS } else { 4 };
        let mut row = 0;
        while row < self.rows {
            match (self.rows - row).min(max_rows) {
                1 => self.tiles::<S, F, 1, 4>(s, row),
                2 => self.tiles::<S, F, 2, 4>(s, row),
                3 | 4 if S::WIDE => self.tiles::<S, F, 4, 4>(s, row),
                3 | 4 => self.tiles::<S, F, 4, 2>(s, row),
                _ => self.tiles::<S, F, MAX_TILE_ROWS, 3>(s, row),
            }
            row += max_rows;
        }
    }

    /// All output features for up to `R` rows from `row`; a tile that reaches past the end repeats its last row.
    #[inline(always)]
    fn tiles<S: Simd, F: Format, const R: usize, const O: usize>(&self, s: S, row: usize) {
        let width = self.weight.in_features;
        let last_row = self.rows - 1;
        let x: [*const f32; R] = std::array::from_fn(|r| {
            let picked = self.pick.get((row + r).min(last_row));
            self.x[picked * width..(picked + 1) * width].as_ptr()
        });
        let rows = R.min(self.rows - row);
        let mut o = self.range.start;
        while o < self.range.end {
            let weights = std::array::from_fn(|i| self.weight.row((o + i).min(self.range.end - 1)));
            // SAFETY: `x` and `weights` are rows of `width` columns.
            let sums = unsafe { dots::<S, F, R, O>(s, x, weights, width) };
            let features = O.min(self.range.end - o);
            for (r, sums) in sums.iter().enumerate().take(rows) {
                self.put(row + r, o - self.range.start, &sums[..features]);
            }
            o += O;
        }
    }

    /// Hands out the results of a row from one column on.
    #[inline(always)]
    pub(crate) fn put(&self, row: usize, column: usize, sums: &[f32]) {
        let start = self.out.pick.get(row) * self.out.width + self.out.column + column;
        // SAFETY: the block owns its outputs.
        let out = unsafe { self.out.data.part(start..start + sums.len()) };
        match self.out.write {
            Write::Replace => out.copy_from_slice(sums),
            Write::Add => out.iter_mut().zip(sums).for_each(|(out, sum)| *out += sum),
        }
    }
}
