//! Sixteen rows of a stored matrix as tiles of bfloat16.

use std::arch::x86_64::*;

use perilune_tensor::{MXFP4_GROUP, QuantFormat};

use crate::matrix::{Matrix, RowPtr};
use crate::simd::amx::{TILE_ROWS, TileRun};

/// Scales that leave every value a normal bfloat16.
const PLAIN_SCALES: std::ops::RangeInclusive<u8> = 2..=252;

/// Sixteen features.
#[derive(Clone, Copy)]
pub(crate) struct Block {
    kind: Kind,
    /// The first row.
    row: RowPtr,
}

#[derive(Clone, Copy)]
enum Kind {
    /// Rows of so many bytes.
    Bf16 { row_bytes: usize },
    /// Rows of so many groups of 16 bytes, a scale for each.
    Mxfp4 { groups: usize },
}

/// Where the tiles of two blocks come from.
#[derive(Clone, Copy)]
pub(crate) enum Source {
    /// From the matrix itself.
    InPlace(TileRun),
    /// From groups that must be decoded.
    Packed([Groups; 2]),
}

/// Sixteen rows of groups of 16 bytes, a scale for each.
#[derive(Clone, Copy)]
pub(crate) struct Groups {
    row: RowPtr,
    /// Groups of a row.
    count: usize,
}

impl Block {
    /// The features from `feature` on; `None` where the format has no tiles or a scale needs more care than they take.
    pub(crate) fn new(weight: &Matrix<'_>, feature: usize) -> Option<Block> {
        let row = weight.row(feature);
        match weight.format {
            QuantFormat::Bf16 => Some(Block { kind: Kind::Bf16 { row_bytes: 2 * weight.in_features }, row }),
            QuantFormat::Mxfp4 => {
                let scales = weight.scales(feature..feature + TILE_ROWS);
                let plain = scales.iter().fold(true, |plain, scale| plain & PLAIN_SCALES.contains(scale));
                plain.then_some(Block { kind: Kind::Mxfp4 { groups: weight.in_features / MXFP4_GROUP }, row })
            }
            _ => None,
        }
    }

    /// Asks for the sixteen rows after these, whose packed bytes are too few for the processor to foresee.
    #[target_feature(enable = "sse")]
    pub(crate) fn prefetch_next(&self) {
        const LINE: usize = 64;
        let Kind::Mxfp4 { groups } = self.kind else { return };
        let scales = TILE_ROWS * groups;
        for (start, bytes) in [(self.row.data(), 16 * scales), (self.row.scales(), scales)] {
            for line in (bytes..2 * bytes).step_by(LINE) {
                _mm_prefetch::<_MM_HINT_T0>(start.wrapping_add(line).cast());
            }
        }
    }

    /// Tiles of these features and of the second ones, which are of the same matrix.
    pub(crate) fn source(&self, second: &Block) -> Source {
        match self.kind {
            Kind::Bf16 { row_bytes } => {
                Source::InPlace(TileRun::across([self.row.data(), second.row.data()], row_bytes))
            }
            Kind::Mxfp4 { groups: count } => Source::Packed([self.row, second.row].map(|row| Groups { row, count })),
        }
    }
}

impl Groups {
    /// The `step`-th 32 columns of the sixteen rows.
    ///
    /// # Safety
    /// The rows must have them.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw")]
    pub(crate) unsafe fn tile(&self, step: usize) -> [__m512i; TILE_ROWS] {
        let mut rows = [_mm512_setzero_si512(); TILE_ROWS];
        for (r, row) in rows.iter_mut().enumerate() {
            let group = r * self.count + step;
            // SAFETY: the caller's promise.
            *row = unsafe { decode(self.row.data().add(16 * group), *self.row.scales().add(group)) };
        }
        rows
    }
}

/// The sixteen E2M1 values as bfloat16, twice.
static E2M1: [u16; 32] = {
    let magnitudes: [u16; 8] = [0, 0x3f00, 0x3f80, 0x3fc0, 0x4000, 0x4040, 0x4080, 0x40c0];
    let mut all = [0; 32];
    let mut i = 0;
    while i < 32 {
        all[i] = magnitudes[i % 8] | (((i / 8 % 2) as u16) << 15);
        i += 1;
    }
    all
};
/// Values of the table that are not zero.
const NOT_ZERO: u32 = 0xfefe_fefe;

/// A group of 32: the scale goes into the exponents of the table.
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
unsafe fn decode(packed: *const u8, scale: u8) -> __m512i {
    // SAFETY: a group has 16 bytes.
    unsafe {
        let shift = _mm512_set1_epi16((i16::from(scale) - 127) << 7);
        let table = _mm512_loadu_si512(E2M1.as_ptr().cast());
        let table = _mm512_mask_add_epi16(table, NOT_ZERO, table, shift);
        let bytes = _mm512_cvtepu8_epi32(_mm_loadu_si128(packed.cast()));
        let nibbles = _mm512_or_si512(bytes, _mm512_slli_epi32::<12>(bytes));
        _mm512_permutexvar_epi16(_mm512_and_si512(nibbles, _mm512_set1_epi32(0x000f_000f)), table)
    }
}
