//! Activations as three bfloat16 parts, for tile products: `x = high + middle + low`, all 24 significant bits.
//!
//! Products of a part and a bfloat16 weight are exact in `f32`, so three tile products lose no more than one product in
//! `f32` does. (Parts below the smallest normal number, 1e-38, count as 0.)
//!
//! Rows that meet the same matrix are packed together, up to sixteen, as columns of tiles: for every 32 of their values
//! the tiles of the three parts, one after the other. So a product reads matrices from where they lie.

use std::arch::x86_64::*;
use std::ops::Range;

use perilune_backend::BackendError;

use crate::CpuBackend;
use crate::product::Pick;
use crate::scratch::{Loan, ThreadScratch};
use crate::simd::amx::{PartTiles, TILE_BYTES, TILE_ROWS};
use crate::simd::transpose::transpose;
use crate::tensor::Parted;

/// Values of a row that one step of a product takes.
pub(crate) const COLUMNS: usize = 32;
/// Tiles of a piece of a matrix that is decoded before it is multiplied.
pub(crate) const PIECE_TILES: usize = 4;
/// Steps that one task packs.
const STEPS_AT_ONCE: usize = 8;
/// Of a thread, in `f32` for a column of the matrix: two rows of decoded tiles.
const DECODED: usize = 2 * TILE_BYTES / 4 / COLUMNS;
/// Of a thread, in `f32`: sums of four tiles, and two decoded pieces.
const FIXED_SCRATCH: usize = (4 + 2 * PIECE_TILES) * TILE_BYTES / 4;

/// Up to sixteen rows that were packed together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct RowTile {
    /// The first of them, and how many.
    pub(crate) first: usize,
    pub(crate) rows: usize,
    /// Columns of the tiles: as many as rows, or sixteen where a group has more rows than that.
    pub(crate) columns: usize,
    /// Where the tiles are, in `f32`.
    at: usize,
}

/// Packed rows, and room for the tiles of each thread.
pub(crate) struct Split<'a> {
    parts: Loan<'a>,
    width: usize,
    tiles: Vec<RowTile>,
    work: ThreadScratch<'a>,
}

/// Room that a thread needs while it multiplies.
pub(crate) struct TileSpace<'s> {
    /// Two rows of decoded tiles.
    pub(crate) decoded: &'s mut [f32],
    /// Four tiles.
    pub(crate) sums: &'s mut [f32],
    /// Two times [`PIECE_TILES`] tiles.
    pub(crate) piece: &'s mut [f32],
}

impl<'a> Split<'a> {
    /// Whether rows of this width can be split.
    pub(crate) fn fits(width: usize) -> bool {
        width > 0 && width.is_multiple_of(COLUMNS)
    }

    /// Splits the picked rows of `x`, `width` wide. Rows of one group meet the same matrices. The level must be `Amx` and
    /// the width fit.
    ///
    /// # Errors
    /// `OutOfMemory`.
    pub(crate) fn new(
        cpu: &'a CpuBackend,
        (x, width): (&[f32], usize),
        (pick, groups): (Pick<'_>, impl Iterator<Item = Range<usize>>),
    ) -> Result<Split<'a>, BackendError> {
        let tiles = row_tiles(groups, width);
        let len = tiles.last().map_or(0, |tile| tile.at + tile.columns * row_len(width));
        let rows: usize = tiles.iter().map(|tile| tile.rows).sum();
        let mut parts = cpu.scratch().take(len)?;
        let out = Parted::new(&mut parts);
        let chunks = width.div_ceil(COLUMNS * STEPS_AT_ONCE);
        cpu.parallel(tiles.len() * chunks, rows * width * 2, |_, task| {
            let (tile, chunk) = (tiles[task / chunks], task % chunks);
            let columns = chunk * COLUMNS * STEPS_AT_ONCE..width.min((chunk + 1) * COLUMNS * STEPS_AT_ONCE);
            let place = |column: usize| tile.at + tile.columns * row_len(column);
            // SAFETY: each task has these columns of a tile for itself.
            let out = unsafe { out.part(place(columns.start)..place(columns.end)) };
            let mut sources: [&[f32]; TILE_ROWS] = [&[]; TILE_ROWS];
            for (i, source) in sources.iter_mut().enumerate().take(tile.rows) {
                let row = pick.get(tile.first + i) * width;
                *source = &x[row + columns.start..row + columns.end];
            }
            // SAFETY: the level is `Amx`, which has these instructions; all sources are as long as the task's columns.
            unsafe { pack(&sources[..tile.rows], tile.columns, bytemuck::cast_slice_mut(out)) }
        })?;
        let work = ThreadScratch::new(cpu.scratch(), cpu.num_threads(), DECODED * width + FIXED_SCRATCH)?;
        Ok(Split { parts, width, tiles, work })
    }

    /// Number of columns of the matrices.
    pub(crate) fn width(&self) -> usize {
        self.width
    }

    /// The tiles of some rows, which are a group or, from a multiple of sixteen rows on, a part of one.
    pub(crate) fn tiles(&self, rows: Range<usize>) -> &[RowTile] {
        let first = self.tiles.partition_point(|tile| tile.first < rows.start);
        let count = self.tiles[first..].partition_point(|tile| tile.first < rows.end);
        &self.tiles[first..first + count]
    }

    /// The packed values of a tile.
    pub(crate) fn parts(&self, tile: &RowTile) -> PartTiles {
        PartTiles { first: self.parts[tile.at..].as_ptr().cast(), columns: tile.columns }
    }

    /// Room of a thread.
    ///
    /// # Safety
    /// No two may be alive at once for the same thread.
    pub(crate) unsafe fn space(&self, thread: usize) -> TileSpace<'_> {
        // SAFETY: the caller's promise.
        let all = unsafe { self.work.of(thread) };
        let (decoded, rest) = all.split_at_mut(DECODED * self.width);
        let (sums, piece) = rest.split_at_mut(4 * TILE_BYTES / 4);
        TileSpace { decoded, sums, piece }
    }
}

/// Length of three parts of a row, in `f32`, two of a part's values each.
const fn row_len(width: usize) -> usize {
    3 * width / 2
}

/// Cuts groups of rows into tiles.
fn row_tiles(groups: impl Iterator<Item = Range<usize>>, width: usize) -> Vec<RowTile> {
    let mut tiles = Vec::new();
    let mut at = 0;
    for group in groups {
        for first in group.clone().step_by(TILE_ROWS) {
            let rows = TILE_ROWS.min(group.end - first);
            let columns = if group.len() > TILE_ROWS { TILE_ROWS } else { rows };
            tiles.push(RowTile { first, rows, columns, at });
            at += columns * row_len(width);
        }
    }
    tiles
}

/// Parts of up to sixteen rows into tiles of `columns` columns. A value that is not finite leaves one that is not a number.
#[target_feature(enable = "avx512f,avx512bw,avx512bf16")]
fn pack(rows: &[&[f32]], columns: usize, out: &mut [u8]) {
    let tile = PartTiles::tile_bytes(columns);
    for step in 0..rows[0].len() / COLUMNS {
        let out = &mut out[step * 3 * tile..(step + 1) * 3 * tile];
        let mut split = [[_mm512_setzero_si512(); TILE_ROWS]; 3];
        for (r, row) in rows.iter().enumerate() {
            let parts = split_values(&row[step * COLUMNS..(step + 1) * COLUMNS]);
            for p in 0..3 {
                split[p][r] = parts[p];
            }
        }
        for (p, split) in split.into_iter().enumerate() {
            let out = &mut out[p * tile..(p + 1) * tile];
            // SAFETY: a tile of one column has 64 bytes, any other sixteen rows of four bytes a column.
            unsafe {
                if columns == 1 {
                    _mm512_storeu_si512(out.as_mut_ptr().cast(), split[0]);
                    continue;
                }
                let mask = u16::MAX >> (TILE_ROWS - columns);
                for (j, row) in transpose(split).into_iter().enumerate() {
                    _mm512_mask_storeu_epi32(out.as_mut_ptr().add(j * 4 * columns).cast(), mask, row);
                }
            }
        }
    }
}

/// The high, middle and low parts of 32 values.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512bf16")]
fn split_values(x: &[f32]) -> [__m512i; 3] {
    let x = &x[..COLUMNS];
    // SAFETY: there are 32 values.
    let (mut first, mut second) = unsafe { (_mm512_loadu_ps(x.as_ptr()), _mm512_loadu_ps(x[16..].as_ptr())) };
    let mut parts = [_mm512_setzero_si512(); 3];
    for part in &mut parts {
        let (a, b) = (_mm512_cvtneps_pbh(first), _mm512_cvtneps_pbh(second));
        first = _mm512_sub_ps(first, _mm512_cvtpbh_ps(a));
        second = _mm512_sub_ps(second, _mm512_cvtpbh_ps(b));
        // SAFETY: both types are 32 bytes of any kind.
        let (a, b) =
            unsafe { (std::mem::transmute::<__m256bh, __m256i>(a), std::mem::transmute::<__m256bh, __m256i>(b)) };
        *part = _mm512_inserti64x4::<1>(_mm512_castsi256_si512(a), b);
    }
    parts
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_become_tiles() {
        let tiles = row_tiles([0..1, 1..6, 6..40].into_iter(), 64);
        let shapes: Vec<_> = tiles.iter().map(|tile| (tile.first, tile.rows, tile.columns)).collect();
        assert_eq!(shapes, [(0, 1, 1), (1, 5, 5), (6, 16, 16), (22, 16, 16), (38, 2, 16)]);
        for (tile, next) in tiles.iter().zip(&tiles[1..]) {
            assert_eq!(next.at - tile.at, tile.columns * 96);
        }
    }
}
