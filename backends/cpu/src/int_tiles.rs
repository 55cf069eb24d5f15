//! Products of many rows of bytes with matrices of whole numbers, on AMX tiles.
//!
//! A group of 32 columns is one tile product; its whole sums are exact, and they are scaled and added as
//! [`crate::simd::byte_dot`] does it, so that the bits are the same as without tiles.

use std::arch::x86_64::*;

use perilune_tensor::{INT_FEATURES, INT_GROUP, QuantFormat};

use crate::byte_rows::ByteRows;
use crate::product::Product;
use crate::simd::amx::{TILE_BYTES, TILE_ROWS, Tiles, byte_product};

/// Bytes of a group of sixteen features, one number a byte.
const GROUP_BYTES: usize = INT_FEATURES * INT_GROUP;
/// Tiles of sums, used in turn so that a store need not wait for the loads before it.
const TURNS: usize = 4;

/// A product whose rows have been rounded to bytes.
pub(crate) struct IntTiles<'a, 's> {
    pub(crate) product: &'s Product<'a>,
    pub(crate) rows: &'s ByteRows<'s>,
    /// Which of those rows is the first of the product.
    pub(crate) first: usize,
    /// Sixteen features of unpacked numbers.
    pub(crate) space: &'s mut [u8],
}

/// A tile of sums in memory.
#[repr(C, align(64))]
struct Sums([i32; TILE_BYTES / 4 * TURNS]);

impl IntTiles<'_, '_> {
    /// Rows from which on tiles pay.
    pub(crate) const LEAST_ROWS: usize = 16;

    /// Computes all features.
    ///
    /// # Safety
    /// The level must be `Amx`, the format one of whole numbers, the first feature a multiple of 16.
    #[target_feature(enable = "avx512f,avx512bw")]
    pub(crate) unsafe fn run(mut self) {
        // SAFETY: the caller's promise.
        let tiles = unsafe { Tiles::set_up_bytes() };
        for feature in self.product.range.clone().step_by(INT_FEATURES) {
            let (data, scales) = self.product.weight.int_block(feature);
            let numbers = if self.product.weight.format == QuantFormat::Int4 {
                self.unpack(data);
                self.space.as_ptr()
            } else {
                data.as_ptr()
            };
            for row in (0..self.product.rows).step_by(TILE_ROWS) {
                // SAFETY: rows come in whole tiles; numbers and scales are those of sixteen features.
                unsafe { self.row_tile(&tiles, (row, feature), (numbers, scales)) }
            }
        }
    }

    /// Nibbles of sixteen features into bytes.
    #[target_feature(enable = "avx512f,avx512bw")]
    fn unpack(&mut self, data: &[u8]) {
        let mask = _mm512_set1_epi8(15);
        for (from, to) in data.chunks_exact(64).zip(self.space.chunks_exact_mut(128)) {
            // SAFETY: 64 bytes are read, 128 written.
            unsafe {
                let bytes = _mm512_loadu_si512(from.as_ptr().cast());
                let high = _mm512_and_si512(_mm512_srli_epi16::<4>(bytes), mask);
                _mm512_storeu_si512(to.as_mut_ptr().cast(), _mm512_and_si512(bytes, mask));
                _mm512_storeu_si512(to.as_mut_ptr().add(64).cast(), high);
            }
        }
    }

    /// Sixteen rows by sixteen features.
    #[target_feature(enable = "avx512f,avx512bw")]
    unsafe fn row_tile(&self, tiles: &Tiles, (row, feature): (usize, usize), (numbers, scales): (*const u8, &[u8])) {
        let offset = if self.product.weight.format == QuantFormat::Int4 { 8 } else { 128 };
        let first = self.rows.row(self.first + row);
        let x_scales = self.rows.scales_from(self.first + row);
        let (words, groups) = (self.rows.stride_bytes() / 4, self.product.weight.in_features / INT_GROUP);
        let mut whole = Sums([0; TILE_BYTES / 4 * TURNS]);
        let mut sums = [_mm512_setzero_ps(); TILE_ROWS];
        for g in 0..groups {
            let turn = g % TURNS * (TILE_BYTES / 4);
            // SAFETY: sixteen rows of the group's bytes lie there, and a group of sixteen features.
            unsafe {
                let a = (first.numbers.as_ptr().cast::<u8>().add(g * INT_GROUP), self.rows.stride_bytes());
                byte_product(tiles, a, numbers.add(g * GROUP_BYTES), whole.0.as_mut_ptr().add(turn));
                let bits = _mm256_loadu_si256(scales.as_ptr().add(g * 2 * INT_FEATURES).cast());
                let scale = _mm512_castsi512_ps(_mm512_slli_epi32::<16>(_mm512_cvtepu16_epi32(bits)));
                for r in 0..TILE_ROWS {
                    let (x_scale, x_sum) = (x_scales[r * words + g], x_scales[r * words + groups + g].to_bits() as i32);
                    let product = _mm512_loadu_si512(whole.0.as_ptr().add(turn + r * TILE_ROWS).cast());
                    let product = _mm512_add_epi32(product, _mm512_set1_epi32(-offset * x_sum));
                    let factor = _mm512_mul_ps(scale, _mm512_set1_ps(x_scale));
                    sums[r] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(product), factor, sums[r]);
                }
            }
        }
        for (r, sum) in sums.iter().enumerate().take(self.product.rows - row) {
            let mut values = [0.0; INT_FEATURES];
            // SAFETY: there is room for 16 values.
            unsafe { _mm512_storeu_ps(values.as_mut_ptr(), *sum) }
            self.product.put(row + r, feature - self.product.range.start, &values);
        }
    }
}
