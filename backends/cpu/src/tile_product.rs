//! Products with bfloat16 and MXFP4 matrices on AMX tiles.
//!
//! For a few rows the matrix is the first factor, read once from where it lies, and the rows are packed; for many rows
//! the matrix is packed, 32 features at a time, and the rows are the first factor. The bits are the same.

use std::arch::x86_64::*;
use std::ops::Range;

use perilune_tensor::QuantFormat;

use crate::product::Product;
use crate::simd::SimdLevel;
use crate::simd::amx::{
    Packed, TILE_BYTES, TILE_ROW_BYTES, TILE_ROWS, TileRun, Tiles, add_products, add_products_1x2, products_2x2,
};
use crate::split::{COLUMNS, PIECE_TILES, Split, TileSpace};
use crate::tile_decode::{Block, Source};

/// Rows in one packed row of tiles: a column each for high and low parts.
const GROUP: usize = 8;
/// Rows up to which the matrix is read without packing.
const FEW: usize = 2 * GROUP;

/// A product whose rows have been split.
pub(crate) struct TileProduct<'a, 's> {
    pub(crate) product: &'s Product<'a>,
    pub(crate) split: &'s Split<'s>,
    /// Which split row is the first of the product.
    pub(crate) first: usize,
    pub(crate) space: TileSpace<'s>,
    /// What computes the features that tiles do not.
    pub(crate) level: SimdLevel,
}

impl TileProduct<'_, '_> {
    /// Computes all features: whole blocks of 16 on tiles, what is left as everywhere else.
    ///
    /// # Safety
    /// The level must be `Amx`, the format one of [`TileProduct::takes`], the first feature a multiple of 16.
    #[target_feature(enable = "avx512f,avx512bw,avx512bf16")]
    pub(crate) unsafe fn run(mut self) {
        let range = self.product.range.clone();
        let end = range.end - range.len() % TILE_ROWS;
        // SAFETY: the caller's promise.
        unsafe { if self.product.rows <= FEW { self.few(range.start..end) } else { self.many(range.start..end) } }
        self.leave(end..range.end);
    }

    /// Formats that tiles multiply.
    pub(crate) fn takes(format: QuantFormat) -> bool {
        matches!(format, QuantFormat::Bf16 | QuantFormat::Mxfp4)
    }

    /// Tiles across the columns.
    fn steps(&self) -> usize {
        self.split.width() / COLUMNS
    }

    /// Computes features without tiles. Which ones that are depends on the matrix alone.
    fn leave(&self, features: Range<usize>) {
        if !features.is_empty() {
            self.level.run(self.product.part(features));
        }
    }

    #[target_feature(enable = "avx512f,avx512bw,avx512bf16")]
    unsafe fn few(&mut self, features: Range<usize>) {
        let columns = if self.product.rows == 1 { 2 } else { TILE_ROWS };
        // SAFETY: the caller of `run` promised the level; packed rows and blocks hold `steps` tiles each.
        unsafe {
            self.pack_rows(columns);
            let tiles = Tiles::set_up(columns);
            for feature in features.step_by(TILE_ROWS) {
                let Some(block) = Block::new(&self.product.weight, feature) else {
                    self.leave(feature..feature + TILE_ROWS);
                    continue;
                };
                block.prefetch_next();
                self.space.sums.fill(0.0);
                self.add_block(&tiles, &block, 4 * columns);
                self.finish_few(feature, columns);
            }
        }
    }

    /// Rows into columns of tiles: high parts in the first half of the columns, low ones in the second.
    #[target_feature(enable = "avx512f,avx512bw,avx512bf16")]
    unsafe fn pack_rows(&mut self, columns: usize) {
        let (steps, rows) = (self.steps(), self.product.rows);
        let low = 2 * self.split.width();
        let packed = self.space.packed.as_mut_ptr().cast::<u8>();
        let nothing = [0_u8; TILE_ROW_BYTES];
        // SAFETY: `packed` holds two rows of `steps` tiles; split rows are `2 low` bytes long.
        unsafe {
            if columns == 2 {
                let row = self.split.row(self.first);
                for step in 0..steps {
                    pack_one(row.add(step * 64), row.add(low + step * 64), packed.add(step * 2 * TILE_ROW_BYTES));
                }
                return;
            }
            for group in 0..rows.div_ceil(GROUP) {
                let first = self.first + group * GROUP;
                for step in 0..steps {
                    let mut sources = [_mm512_loadu_si512(nothing.as_ptr().cast()); TILE_ROWS];
                    for r in 0..GROUP.min(rows - group * GROUP) {
                        let row = self.split.row(first + r).add(step * 64);
                        sources[r] = _mm512_loadu_si512(row.cast());
                        sources[GROUP + r] = _mm512_loadu_si512(row.add(low).cast());
                    }
                    store_tile(transpose(sources), packed.add((group * steps + step) * TILE_BYTES));
                }
            }
        }
    }

    /// Adds the products of one block of features.
    #[target_feature(enable = "avx512f,avx512bw,avx512bf16")]
    unsafe fn add_block(&mut self, tiles: &Tiles, block: &Block, row_bytes: usize) {
        let steps = self.steps();
        let packed = self.space.packed.as_ptr().cast::<u8>();
        let at = |step: usize, count: usize| Packed {
            first: packed.wrapping_add(step * row_bytes * TILE_ROWS),
            second: packed.wrapping_add((steps + step) * TILE_BYTES),
            row_bytes,
            count,
        };
        let two = self.product.rows > GROUP;
        let sums = self.space.sums.as_mut_ptr();
        let add = |a: TileRun, b: Packed| {
            // SAFETY: `a` and `b` hold `b.count` tiles, `sums` four.
            unsafe { if two { add_products_1x2(tiles, a, b, sums) } else { add_products(tiles, a, b, sums) } }
        };
        match block.source() {
            Source::InPlace(run) => add(run, at(0, steps)),
            Source::Decoded => {
                for step in (0..steps).step_by(PIECE_TILES) {
                    let count = PIECE_TILES.min(steps - step);
                    let piece = self.space.piece.as_mut_ptr().cast::<u8>();
                    for i in 0..count {
                        // SAFETY: the piece has room for `PIECE_TILES` tiles.
                        unsafe { store_tile(block.rows(step + i), piece.add(i * TILE_BYTES)) }
                    }
                    add(TileRun::packed(piece), at(step, count));
                }
            }
        }
    }

    /// Adds up the two parts of every sum and hands them out.
    #[target_feature(enable = "avx512f,avx512bw,avx512bf16")]
    unsafe fn finish_few(&self, feature: usize, columns: usize) {
        let column = feature - self.product.range.start;
        let sums = self.space.sums.as_ptr();
        // SAFETY: `sums` holds four tiles.
        unsafe {
            if columns == 2 {
                let (first, second) = (_mm512_loadu_ps(sums), _mm512_loadu_ps(sums.add(16)));
                let even = _mm512_set_epi32(30, 28, 26, 24, 22, 20, 18, 16, 14, 12, 10, 8, 6, 4, 2, 0);
                let odd = _mm512_add_epi32(even, _mm512_set1_epi32(1));
                let high = _mm512_permutex2var_ps(first, even, second);
                return self.put(0, column, _mm512_add_ps(high, _mm512_permutex2var_ps(first, odd, second)));
            }
            for first in (0..self.product.rows).step_by(GROUP) {
                let tile = sums.add(first / GROUP * (TILE_BYTES / 4));
                let mut features = [_mm512_setzero_si512(); TILE_ROWS];
                for f in 0..TILE_ROWS {
                    features[f] = _mm512_loadu_si512(tile.add(f * TILE_ROWS).cast());
                }
                let parts = transpose(features);
                for r in 0..GROUP.min(self.product.rows - first) {
                    let (high, low) = (_mm512_castsi512_ps(parts[r]), _mm512_castsi512_ps(parts[GROUP + r]));
                    self.put(first + r, column, _mm512_add_ps(high, low));
                }
            }
        }
    }

    #[target_feature(enable = "avx512f,avx512bw,avx512bf16")]
    unsafe fn many(&mut self, features: Range<usize>) {
        // SAFETY: the caller of `run` promised the level.
        let tiles = unsafe { Tiles::set_up(TILE_ROWS) };
        let mut pair = [0; 2];
        let mut count = 0;
        for feature in features.clone().step_by(TILE_ROWS) {
            match Block::new(&self.product.weight, feature) {
                // SAFETY: as above; `count` is below 2.
                Some(block) => unsafe {
                    block.prefetch_next();
                    self.pack_block(count, &block);
                    pair[count] = feature;
                    count += 1;
                },
                None => self.leave(feature..feature + TILE_ROWS),
            }
            if count == 2 || (count == 1 && feature + TILE_ROWS == features.end) {
                for row in (0..self.product.rows).step_by(TILE_ROWS) {
                    // SAFETY: as above.
                    unsafe { self.row_tile(&tiles, &pair[..count], row) }
                }
                count = 0;
            }
        }
    }

    /// Sixteen features into columns of tiles.
    #[target_feature(enable = "avx512f,avx512bw,avx512bf16")]
    unsafe fn pack_block(&mut self, which: usize, block: &Block) {
        let steps = self.steps();
        let packed = self.space.packed.as_mut_ptr().cast::<u8>();
        for step in 0..steps {
            // SAFETY: `packed` holds two rows of `steps` tiles.
            unsafe { store_tile(transpose(block.rows(step)), packed.add((which * steps + step) * TILE_BYTES)) }
        }
    }

    /// Sixteen rows by one or two blocks of features.
    #[target_feature(enable = "avx512f,avx512bw,avx512bf16")]
    unsafe fn row_tile(&mut self, tiles: &Tiles, pair: &[usize], row: usize) {
        let steps = self.steps();
        let a = TileRun {
            first: self.split.row(self.first + row),
            stride: self.split.stride_bytes(),
            step: TILE_ROW_BYTES,
        };
        let first = self.space.packed.as_ptr().cast::<u8>();
        // Without a second block the first is multiplied twice.
        let second = first.wrapping_add((pair.len() - 1) * steps * TILE_BYTES);
        let b = Packed { first, second, row_bytes: TILE_ROW_BYTES, count: steps };
        // SAFETY: split rows come in whole tiles; `sums` holds four.
        unsafe { products_2x2(tiles, (a, 2 * self.split.width()), b, self.space.sums.as_mut_ptr()) }
        for r in 0..TILE_ROWS.min(self.product.rows - row) {
            for (i, feature) in pair.iter().enumerate() {
                // SAFETY: sums are `high b`, `high b'`, `low b`, `low b'`.
                unsafe {
                    let high = self.space.sums.as_ptr().add(i * (TILE_BYTES / 4) + r * TILE_ROWS);
                    let low = high.add(2 * (TILE_BYTES / 4));
                    let sum = _mm512_add_ps(_mm512_loadu_ps(high), _mm512_loadu_ps(low));
                    self.put(row + r, feature - self.product.range.start, sum);
                }
            }
        }
    }

    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512bf16")]
    fn put(&self, row: usize, column: usize, sums: __m512) {
        let mut values = [0.0; 16];
        // SAFETY: there is room for 16 values.
        unsafe { _mm512_storeu_ps(values.as_mut_ptr(), sums) }
        self.product.put(row, column, &values);
    }
}

/// Tile products out of the first-level cache, to measure how fast they can be; returns the number of operations.
///
/// # Safety
/// The level must be `Amx`.
pub(crate) unsafe fn peak(rounds: usize) -> f64 {
    const COUNT: usize = 8;
    let (tiles, mut sums) = (vec![0_u8; 4 * COUNT * TILE_BYTES], [0.0_f32; TILE_BYTES]);
    let (a, b) = tiles.split_at(2 * COUNT * TILE_BYTES);
    let packed =
        Packed { first: b.as_ptr(), second: b[b.len() / 2..].as_ptr(), row_bytes: TILE_ROW_BYTES, count: COUNT };
    // SAFETY: the caller's promise; all factors lie in `tiles`, `sums` holds four.
    unsafe {
        let set_up = Tiles::set_up(TILE_ROWS);
        for _ in 0..rounds / COUNT {
            products_2x2(&set_up, (TileRun::packed(a.as_ptr()), a.len() / 2), packed, sums.as_mut_ptr());
        }
    }
    (2 * 4 * rounds / COUNT * COUNT * TILE_ROWS * TILE_ROWS * COLUMNS) as f64
}

/// Pairs of one row's high and low parts, in turn: a tile two columns wide.
#[inline]
#[target_feature(enable = "avx512f")]
unsafe fn pack_one(high: *const u8, low: *const u8, out: *mut u8) {
    // SAFETY: 64 bytes are read from either, 128 are written.
    unsafe {
        let (high, low) = (_mm512_loadu_si512(high.cast()), _mm512_loadu_si512(low.cast()));
        let front = _mm512_set_epi32(23, 7, 22, 6, 21, 5, 20, 4, 19, 3, 18, 2, 17, 1, 16, 0);
        let back = _mm512_add_epi32(front, _mm512_set1_epi32(8));
        _mm512_storeu_si512(out.cast(), _mm512_permutex2var_epi32(high, front, low));
        _mm512_storeu_si512(out.add(64).cast(), _mm512_permutex2var_epi32(high, back, low));
    }
}

#[inline]
#[target_feature(enable = "avx512f")]
unsafe fn store_tile(rows: [__m512i; TILE_ROWS], out: *mut u8) {
    for (r, row) in rows.iter().enumerate() {
        // SAFETY: the caller's promise: a tile fits.
        unsafe { _mm512_storeu_si512(out.add(r * TILE_ROW_BYTES).cast(), *row) }
    }
}

/// Sixteen by sixteen four-byte elements.
#[inline]
#[target_feature(enable = "avx512f")]
fn transpose(rows: [__m512i; TILE_ROWS]) -> [__m512i; TILE_ROWS] {
    let mut pairs = rows;
    for i in 0..8 {
        pairs[2 * i] = _mm512_unpacklo_epi32(rows[2 * i], rows[2 * i + 1]);
        pairs[2 * i + 1] = _mm512_unpackhi_epi32(rows[2 * i], rows[2 * i + 1]);
    }
    // Column `c` of each quarter, of four rows.
    let mut fours = pairs;
    for i in 0..4 {
        for half in 0..2 {
            let (a, b) = (pairs[4 * i + half], pairs[4 * i + 2 + half]);
            fours[4 * i + 2 * half] = _mm512_unpacklo_epi64(a, b);
            fours[4 * i + 2 * half + 1] = _mm512_unpackhi_epi64(a, b);
        }
    }
    let mut out = fours;
    for c in 0..4 {
        let low = _mm512_shuffle_i32x4::<0x88>(fours[c], fours[4 + c]);
        let high = _mm512_shuffle_i32x4::<0xdd>(fours[c], fours[4 + c]);
        let low2 = _mm512_shuffle_i32x4::<0x88>(fours[8 + c], fours[12 + c]);
        let high2 = _mm512_shuffle_i32x4::<0xdd>(fours[8 + c], fours[12 + c]);
        out[c] = _mm512_shuffle_i32x4::<0x88>(low, low2);
        out[8 + c] = _mm512_shuffle_i32x4::<0xdd>(low, low2);
        out[4 + c] = _mm512_shuffle_i32x4::<0x88>(high, high2);
        out[12 + c] = _mm512_shuffle_i32x4::<0xdd>(high, high2);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn transposition() {
        if !is_x86_feature_detected!("avx512f") {
            eprintln!("skipped: this processor has no AVX-512");
            return;
        }
        let mut rows = [[0_u32; 16]; 16];
        rows.iter_mut().enumerate().for_each(|(r, row)| {
            row.iter_mut().enumerate().for_each(|(c, value)| *value = (r * 16 + c) as u32);
        });
        // SAFETY: the processor has AVX-512, and the arrays hold 16 vectors.
        let turned: [[u32; 16]; 16] = unsafe {
            let turned = transpose(std::mem::transmute::<[[u32; 16]; 16], [__m512i; 16]>(rows));
            std::mem::transmute::<[__m512i; 16], [[u32; 16]; 16]>(turned)
        };
        for r in 0..16 {
            for c in 0..16 {
                assert_eq!(turned[c][r], rows[r][c], "row {r}, column {c}");
            }
        }
    }
}
