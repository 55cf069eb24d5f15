//! Activations as pairs of bfloat16, for tile products: `x ≈ high + low`, 16 significant bits in all.
//!
//! A product with a bfloat16 weight is then exact up to 2^-17 of its value, and two tile products give it. The sums of
//! high and low parts are kept apart and added at the end.

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
/// Sums of up to four tiles, and the tiles of a decoded piece of a matrix, in `f32`.
const FIXED_SCRATCH: usize = (4 + PIECE_TILES) * TILE_BYTES / 4;
/// Tiles of a piece of a matrix that is decoded before it is multiplied.
pub(crate) const PIECE_TILES: usize = 8;

/// Rows of two parts each, and room for the tiles of each thread.
pub(crate) struct Split<'a> {
    parts: Loan<'a>,
    width: usize,
    work: ThreadScratch<'a>,
}

/// Room that a thread needs while it multiplies.
pub(crate) struct TileSpace<'s> {
    /// Packed tiles of two rows of tiles.
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
        // Two rows of tiles hold as much as 32 rows of bfloat16.
        let work = ThreadScratch::new(cpu.scratch(), cpu.num_threads(), 16 * width + FIXED_SCRATCH)?;
        Ok(Split { parts, width, work })
    }

    /// 16-bit values from a row to the next.
    fn stride(width: usize) -> usize {
        2 * width + GAP
    }

    /// Number of columns.
    pub(crate) fn width(&self) -> usize {
        self.width
    }

    /// Bytes from a row to the next.
    pub(crate) fn stride_bytes(&self) -> usize {
        2 * Self::stride(self.width)
    }

    /// High parts of row `i`; the low ones follow `2 width` bytes later.
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
        let (packed, rest) = all.split_at_mut(16 * self.width);
        let (sums, piece) = rest.split_at_mut(4 * TILE_BYTES / 4);
        TileSpace { packed, sums, piece }
    }
}

/// `x` into high parts, then low ones. A value that is not finite makes both, or the low one, not a number.
#[target_feature(enable = "avx512f,avx512bw,avx512bf16")]
fn split_row(x: &[f32], out: &mut [u16]) {
    let (high, low) = out.split_at_mut(x.len());
    for ((x, high), low) in x.chunks_exact(16).zip(high.chunks_exact_mut(16)).zip(low.chunks_exact_mut(16)) {
        // SAFETY: each chunk holds 16 values.
        unsafe {
            let value = _mm512_loadu_ps(x.as_ptr());
            let part = _mm512_cvtneps_pbh(value);
            let wide = _mm512_cvtpbh_ps(part);
            let rest = _mm512_cvtneps_pbh(_mm512_sub_ps(value, wide));
            _mm256_storeu_si256(high.as_mut_ptr().cast(), std::mem::transmute::<__m256bh, __m256i>(part));
            _mm256_storeu_si256(low.as_mut_ptr().cast(), std::mem::transmute::<__m256bh, __m256i>(rest));
        }
    }
}
