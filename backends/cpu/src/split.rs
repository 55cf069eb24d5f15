//! Activations as three bfloat16 parts, for tile products: `x = high + middle + low`, all 24 significant bits.
//!
//! Products of a part and a bfloat16 weight are exact in `f32`, so three tile products lose no more than one product in
//! `f32` does. (Parts below the smallest normal number, 1e-38, count as 0.)

use std::arch::x86_64::*;

use perilune_backend::BackendError;

use crate::CpuBackend;
use crate::product::Pick;
use crate::scratch::{Loan, ThreadScratch};
use crate::simd::amx::{TILE_BYTES, TILE_ROWS};
use crate::tensor::Parted;

/// Columns of a tile.
pub(crate) const COLUMNS: usize = 32;
/// Values between two rows beyond their parts: keeps rows of a power of two from falling on the same cache sets.
const GAP: usize = 32;
/// Packed tiles of a thread: three parts of sixteen rows, in `f32` for a column. (Packing a matrix takes two.)
const PACKED: usize = 3 * TILE_ROWS / 2;
/// Sums of up to four tiles, and the tiles of a decoded piece of a matrix, in `f32`.
const FIXED_SCRATCH: usize = (4 + PIECE_TILES) * TILE_BYTES / 4;
/// Tiles of a piece of a matrix that is decoded before it is multiplied.
pub(crate) const PIECE_TILES: usize = 8;

/// Rows of three parts each, and room for the tiles of each thread.
pub(crate) struct Split<'a> {
    parts: Loan<'a>,
    width: usize,
    work: ThreadScratch<'a>,
}

/// Room that a thread needs while it multiplies.
pub(crate) struct TileSpace<'s> {
    /// Packed tiles of three rows of tiles.
    pub(crate) packed: &'s mut [f32],
    /// Four tiles.
    pub(crate) sums: &'s mut [f32],
    /// [`PIECE_TILES`] tiles.
    pub(crate) piece: &'s mut [f32],
}

impl<'a> Split<'a> {
    /// Whether rows of this width can be split.
    pub(crate) fn fits(width: usize) -> bool {
        width > 0 && width.is_multiple_of(COLUMNS)
    }

    /// Splits the picked rows of `x`, `width` wide; the level must be `Amx` and the width fit.
    ///
    /// # Errors
    /// `OutOfMemory`.
    pub(crate) fn new(
        cpu: &'a CpuBackend,
        (x, width): (&[f32], usize),
        (pick, rows): (Pick<'_>, usize),
    ) -> Result<Split<'a>, BackendError> {
        // Whole tiles are read, from any row on.
        let mut parts = cpu.scratch().take((rows + TILE_ROWS) * Self::stride(width) / 2)?;
        let out = Parted::new(&mut parts);
        cpu.parallel(rows, rows * width * 2, |_, i| {
            let row = pick.get(i);
            // SAFETY: each task has a row of its own.
            let out = unsafe { out.row(i, Self::stride(width) / 2) };
            // SAFETY: the level is `Amx`, which has these instructions.
            unsafe { split_row(&x[row * width..(row + 1) * width], bytemuck::cast_slice_mut(out)) }
        })?;
        let work = ThreadScratch::new(cpu.scratch(), cpu.num_threads(), PACKED * width + FIXED_SCRATCH)?;
        Ok(Split { parts, width, work })
    }

    /// 16-bit values from a row to the next.
    fn stride(width: usize) -> usize {
        3 * width + GAP
    }

    /// Number of columns.
    pub(crate) fn width(&self) -> usize {
        self.width
    }

    /// Bytes from a row to the next.
    pub(crate) fn stride_bytes(&self) -> usize {
        2 * Self::stride(self.width)
    }

    /// Bytes from a part of a row to the next part.
    pub(crate) fn part_bytes(&self) -> usize {
        2 * self.width
    }

    /// High parts of row `i`; the middle ones and the low ones follow.
    pub(crate) fn row(&self, i: usize) -> *const u8 {
        bytemuck::cast_slice::<f32, u8>(&self.parts)[i * self.stride_bytes()..].as_ptr()
    }

    /// Room of a thread.
    ///
    /// # Safety
    /// No two may be alive at once for the same thread.
    pub(crate) unsafe fn space(&self, thread: usize) -> TileSpace<'_> {
        // SAFETY: the caller's promise.
        let all = unsafe { self.work.of(thread) };
        let (packed, rest) = all.split_at_mut(PACKED * self.width);
        let (sums, piece) = rest.split_at_mut(4 * TILE_BYTES / 4);
        TileSpace { packed, sums, piece }
    }
}

/// `x` into high parts, then middle ones, then low ones. A value that is not finite leaves one that is not a number.
#[target_feature(enable = "avx512f,avx512bw,avx512bf16")]
fn split_row(x: &[f32], out: &mut [u16]) {
    let width = x.len();
    for (c, x) in x.chunks_exact(16).enumerate() {
        // SAFETY: the chunk holds 16 values.
        let mut rest = unsafe { _mm512_loadu_ps(x.as_ptr()) };
        for part in 0..3 {
            let rounded = _mm512_cvtneps_pbh(rest);
            rest = _mm512_sub_ps(rest, _mm512_cvtpbh_ps(rounded));
            let to = &mut out[part * width + 16 * c..][..16];
            // SAFETY: `to` holds 16 values, and both types are 32 bytes of any kind.
            unsafe {
                _mm256_storeu_si256(to.as_mut_ptr().cast(), std::mem::transmute::<__m256bh, __m256i>(rounded));
            }
        }
    }
}
