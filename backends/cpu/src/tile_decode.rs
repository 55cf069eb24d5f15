//! Sixteen rows of a stored matrix as tiles of bfloat16.

use std::arch::x86_64::*;

use perilune_tensor::{MXFP4_GROUP, QuantFormat};

use crate::matrix::{Matrix, RowPtr};
use crate::simd::amx::{TILE_ROW_BYTES, TILE_ROWS, TileRun};

/// Scales that leave every value a normal bfloat16.
const PLAIN_SCALES: std::ops::RangeInclusive<u8> = 2..=252;

/// Bytes that memory hands over at a time.
const LINE: usize = 64;

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
    /// Decodes the `step`-th 32 columns of the sixteen rows into a tile.
    ///
    /// # Safety
    /// The rows must have them; `out` must have room for a tile.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vbmi")]
    pub(crate) unsafe fn decode(&self, step: usize, out: *mut u8) {
        self.ask_ahead(step);
        for r in 0..TILE_ROWS {
            let group = r * self.count + step;
            // SAFETY: the caller's promise.
            unsafe {
                let row = decode(self.row.data().add(16 * group), *self.row.scales().add(group));
                _mm512_storeu_si512(out.add(r * TILE_ROW_BYTES).cast(), row);
            }
        }
    }

    /// Asks for as many bytes as a step takes, of the sixteen rows after the next sixteen, which are another block's: a few
    /// at a time, as a processor waits that asks for more than it can keep in mind. Any address will do.
    #[inline]
    #[target_feature(enable = "sse")]
    fn ask_ahead(&self, step: usize) {
        const STEP: usize = 16 * TILE_ROWS;
        let data = self.row.data().wrapping_add((2 * self.count + step) * STEP);
        for line in (0..STEP).step_by(LINE) {
            _mm_prefetch::<_MM_HINT_T0>(data.wrapping_add(line).cast());
        }
        if step.is_multiple_of(LINE / TILE_ROWS) {
            let scales = self.row.scales().wrapping_add((2 * self.count + step) * TILE_ROWS);
            _mm_prefetch::<_MM_HINT_T0>(scales.cast());
        }
    }
}

/// Values of the nibbles under one scale, as bfloat16, twice: five bits of an index are read, four count.
#[derive(Clone, Copy)]
#[repr(align(64))]
struct Table([u16; 32]);

/// The table of each scale: the scale goes into the exponents of all values but zero.
static TABLES: [Table; 256] = {
    let magnitudes: [u16; 8] = [0, 0x3f00, 0x3f80, 0x3fc0, 0x4000, 0x4040, 0x4080, 0x40c0];
    let mut tables = [Table([0; 32]); 256];
    let mut scale = *PLAIN_SCALES.start() as usize;
    while scale <= *PLAIN_SCALES.end() as usize {
        let mut i = 0;
        while i < 32 {
            let magnitude = magnitudes[i % 8] as i32;
            let scaled = if magnitude == 0 { 0 } else { magnitude + (scale as i32 - 127) * 128 };
            tables[scale].0[i] = scaled as u16 | (((i / 8 % 2) as u16) << 15);
            i += 1;
        }
        scale += 1;
    }
    tables
};

/// For each of 32 words, at which bit of eight bytes its nibble begins. The bits above it do not count.
static NIBBLES: [u8; 64] = {
    let mut starts = [0; 64];
    let mut i = 0;
    while i < 64 {
        starts[i] = (4 * (i / 2 % 16)) as u8;
        i += 1;
    }
    starts
};

/// A group of 32.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vbmi")]
unsafe fn decode(packed: *const u8, scale: u8) -> __m512i {
    // SAFETY: a group has 16 bytes; the table has 64.
    unsafe {
        let table = _mm512_load_si512(TABLES[usize::from(scale)].0.as_ptr().cast());
        let first = _mm512_broadcastq_epi64(_mm_loadl_epi64(packed.cast()));
        let halves = _mm512_mask_broadcastq_epi64(first, 0xf0, _mm_loadl_epi64(packed.add(8).cast()));
        let nibbles = _mm512_multishift_epi64_epi8(_mm512_loadu_si512(NIBBLES.as_ptr().cast()), halves);
        _mm512_permutexvar_epi16(nibbles, table)
    }
}
