//! Products with bfloat16 and MXFP4 matrices on AMX tiles.
//!
//! For a few rows the matrix is the first factor, read once from where it lies, and the rows are packed (one row need not
//! be); for many rows the matrix is packed, 32 features at a time, and the rows are the first factor. The bits are the
//! same.

use std::arch::x86_64::*;
use std::ops::Range;

use perilune_tensor::QuantFormat;

use crate::product::Product;
use crate::simd::SimdLevel;
use crate::simd::amx::{
    Parts, RowTiles, TILE_BYTES, TILE_ROW_BYTES, TILE_ROWS, TileRun, Tiles, add_products, products_2x2,
};
use crate::split::{COLUMNS, PIECE_TILES, Split, TileSpace};
use crate::tile_decode::{Block, Source};

/// Rows up to which the matrix is read without packing: as many as a tile has columns.
const FEW: usize = TILE_ROWS;

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
        let columns = if self.product.rows == 1 { 1 } else { TILE_ROWS };
        // SAFETY: the caller of `run` promised the level; packed rows and blocks hold `steps` tiles each.
        unsafe {
            let parts = if columns == 1 { self.single_row() } else { self.pack_rows() };
            let tiles = Tiles::set_up(columns);
            for feature in features.step_by(TILE_ROWS) {
                let Some(block) = Block::new(&self.product.weight, feature) else {
                    self.leave(feature..feature + TILE_ROWS);
                    continue;
                };
                block.prefetch_next();
                self.space.sums[..columns * TILE_ROWS].fill(0.0);
                self.add_block(&tiles, &block, parts);
                self.finish_few(feature);
            }
        }
    }

    /// One row is a tile of one column as it is.
    fn single_row(&self) -> Parts {
        let row = self.split.row(self.first);
        let part = |p: usize| row.wrapping_add(p * self.split.part_bytes());
        Parts { first: [part(0), part(1), part(2)], row_bytes: 4, step: TILE_ROW_BYTES, count: self.steps() }
    }

    /// Rows into columns of tiles.
    #[target_feature(enable = "avx512f,avx512bw,avx512bf16")]
    unsafe fn pack_rows(&mut self) -> Parts {
        let (steps, rows) = (self.steps(), self.product.rows);
        let packed = self.space.packed.as_mut_ptr().cast::<u8>();
        let part = |p: usize| packed.wrapping_add(p * steps * TILE_BYTES);
        for p in 0..3 {
            for step in 0..steps {
                let mut sources = [_mm512_setzero_si512(); TILE_ROWS];
                for (r, source) in sources.iter_mut().enumerate().take(rows) {
                    let from = self.split.row(self.first + r).wrapping_add(p * self.split.part_bytes() + step * 64);
                    // SAFETY: a part of a row has `steps` times 64 bytes.
                    *source = unsafe { _mm512_loadu_si512(from.cast()) };
                }
                // SAFETY: `packed` holds three rows of `steps` tiles.
                unsafe { store_tile(transpose(sources), part(p).add(step * TILE_BYTES)) }
            }
        }
        let first = [part(0).cast_const(), part(1).cast_const(), part(2).cast_const()];
        Parts { first, row_bytes: TILE_ROW_BYTES, step: TILE_BYTES, count: steps }
    }

    /// Adds the products of one block of features.
    #[target_feature(enable = "avx512f,avx512bw,avx512bf16")]
    unsafe fn add_block(&mut self, tiles: &Tiles, block: &Block, parts: Parts) {
        let sums = self.space.sums.as_mut_ptr();
        match block.source() {
            // SAFETY: block and parts hold `steps` tiles, `sums` four.
            Source::InPlace(run) => unsafe { add_products(tiles, run, parts, sums) },
            Source::Decoded => {
                for step in (0..parts.count).step_by(PIECE_TILES) {
                    let count = PIECE_TILES.min(parts.count - step);
                    let piece = self.space.piece.as_mut_ptr().cast::<u8>();
                    for i in 0..count {
                        // SAFETY: the piece has room for `PIECE_TILES` tiles.
                        unsafe { store_tile(block.rows(step + i), piece.add(i * TILE_BYTES)) }
                    }
                    let first = parts.first.map(|part| part.wrapping_add(step * parts.step));
                    // SAFETY: as above.
                    unsafe { add_products(tiles, TileRun::packed(piece), Parts { first, count, ..parts }, sums) }
                }
            }
        }
    }

    /// Hands out the sums of sixteen features.
    #[target_feature(enable = "avx512f,avx512bw,avx512bf16")]
    unsafe fn finish_few(&self, feature: usize) {
        let column = feature - self.product.range.start;
        let sums = self.space.sums.as_ptr();
        // SAFETY: `sums` holds four tiles; of a single row, sixteen values.
        unsafe {
            if self.product.rows == 1 {
                return self.put(0, column, _mm512_loadu_ps(sums));
            }
            let mut features = [_mm512_setzero_si512(); TILE_ROWS];
            for (f, values) in features.iter_mut().enumerate() {
                *values = _mm512_loadu_si512(sums.add(f * TILE_ROWS).cast());
            }
            for (r, row) in transpose(features).iter().enumerate().take(self.product.rows) {
                self.put(r, column, _mm512_castsi512_ps(*row));
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
                for row in (0..self.product.rows).step_by(2 * TILE_ROWS) {
                    // SAFETY: as above.
                    unsafe { self.row_tiles(&tiles, &pair[..count], row) }
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
            block.prefetch(step);
            // SAFETY: `packed` holds three rows of `steps` tiles.
            unsafe { store_tile(transpose(block.rows(step)), packed.add((which * steps + step) * TILE_BYTES)) }
        }
    }

    /// Up to 32 rows by one or two blocks of features.
    #[target_feature(enable = "avx512f,avx512bw,avx512bf16")]
    unsafe fn row_tiles(&mut self, tiles: &Tiles, pair: &[usize], row: usize) {
        let (steps, rows) = (self.steps(), (self.product.rows - row).min(2 * TILE_ROWS));
        // Without a second tile of rows or block of features the first is multiplied twice.
        let second = if rows > TILE_ROWS { TILE_ROWS } else { 0 };
        let a = RowTiles {
            first: [self.split.row(self.first + row), self.split.row(self.first + row + second)],
            part: self.split.part_bytes(),
            stride: self.split.stride_bytes(),
        };
        let first = self.space.packed.as_ptr().cast::<u8>();
        let b = [first, first.wrapping_add((pair.len() - 1) * steps * TILE_BYTES)];
        // SAFETY: split rows come in whole tiles; `sums` holds four.
        unsafe { products_2x2(tiles, a, (b, steps), self.space.sums.as_mut_ptr()) }
        for r in 0..rows {
            for (i, feature) in pair.iter().enumerate() {
                let tile = r / TILE_ROWS * 2 + i;
                let at = tile * (TILE_BYTES / 4) + r % TILE_ROWS * TILE_ROWS;
                let sums = &self.space.sums[at..at + TILE_ROWS];
                self.product.put(row + r, feature - self.product.range.start, sums);
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
    const COUNT: usize = 4;
    let (tiles, mut sums) = (vec![0_u8; 8 * COUNT * TILE_BYTES], [0.0_f32; TILE_BYTES]);
    let (a, b) = tiles.split_at(6 * COUNT * TILE_BYTES);
    let rows = RowTiles {
        first: [a.as_ptr(), a[a.len() / 2..].as_ptr()],
        part: COUNT * TILE_ROW_BYTES,
        stride: 3 * COUNT * TILE_ROW_BYTES,
    };
    // SAFETY: the caller's promise; all factors lie in `tiles`, `sums` holds four.
    unsafe {
        let set_up = Tiles::set_up(TILE_ROWS);
        for _ in 0..rounds / COUNT {
            let b = [b.as_ptr(), b[b.len() / 2..].as_ptr()];
            products_2x2(&set_up, rows, (b, COUNT), sums.as_mut_ptr());
        }
    }
    (2 * 12 * (rounds / COUNT) * COUNT * TILE_ROWS * TILE_ROWS * COLUMNS) as f64
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
