//! Products with matrices of whole numbers: bytes times bytes, exact within a group of 32 columns.

use perilune_tensor::{INT_FEATURES, INT_GROUP, QuantFormat};

use crate::byte_rows::{ByteRow, ByteRows};
use crate::product::Product;
use crate::simd::SimdLevel;
#[cfg(target_arch = "x86_64")]
use crate::simd::byte_dot::{Avx2Bytes, VnniBytes};
use crate::simd::byte_dot::{ByteDot, PlainBytes};

/// Bytes from those at hand to the ones that memory is asked for: a page, which the processor does not look beyond.
const AHEAD: usize = 4096;

/// A product whose rows have been rounded to bytes.
pub(crate) struct IntProduct<'a, 's> {
    pub(crate) product: &'s Product<'a>,
    pub(crate) rows: &'s ByteRows<'s>,
    /// Which of those rows is the first of the product.
    pub(crate) first: usize,
}

impl IntProduct<'_, '_> {
    /// Computes all features; the first one of the product is a multiple of 16.
    pub(crate) fn run(&self, level: SimdLevel) {
        match level {
            #[cfg(target_arch = "x86_64")]
            // SAFETY: the level has AVX2 and FMA; the rest is checked here.
            SimdLevel::Avx512 | SimdLevel::Amx => unsafe { if has_vnni() { self.vnni() } else { self.avx2() } },
            #[cfg(target_arch = "x86_64")]
            // SAFETY: the level has AVX2 and FMA.
            SimdLevel::Avx2 => unsafe { self.avx2() },
            _ => self.all(PlainBytes),
        }
    }

    /// # Safety
    /// The processor must have these instructions.
    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx512f,avx512bw,avx512vnni")]
    unsafe fn vnni(&self) {
        // SAFETY: the caller's promise.
        self.all(unsafe { VnniBytes::new() });
    }

    /// # Safety
    /// The processor must have these instructions.
    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx2,fma")]
    unsafe fn avx2(&self) {
        // SAFETY: the caller's promise.
        self.all(unsafe { Avx2Bytes::new() });
    }

    #[inline(always)]
    fn all<D: ByteDot>(&self, d: D) {
        let range = self.product.range.clone();
        // Rows inside, so that a block of features stays in the first-level cache.
        for feature in range.clone().step_by(INT_FEATURES) {
            let mut row = 0;
            while row < self.product.rows {
                let left = (self.product.rows - row).min(D::ROWS);
                row += match left {
                    8.. => self.tile::<D, 8>(d, (row, feature)),
                    4.. => self.tile::<D, 4>(d, (row, feature)),
                    2.. => self.tile::<D, 2>(d, (row, feature)),
                    _ => self.tile::<D, 1>(d, (row, feature)),
                };
            }
        }
    }

    /// `R` rows by sixteen features; returns `R`.
    #[inline(always)]
    fn tile<D: ByteDot, const R: usize>(&self, d: D, (row, feature): (usize, usize)) -> usize {
        let mut x = [ByteRow { numbers: &[], scales: &[], sums: &[] }; R];
        for r in 0..R {
            x[r] = self.rows.row(self.first + row + r);
        }
        let sums = match self.product.weight.format {
            QuantFormat::Int4 => self.sums::<D, R, 4>(d, x, feature),
            _ => self.sums::<D, R, 8>(d, x, feature),
        };
        for r in 0..R {
            self.product.put(row + r, feature - self.product.range.start, &d.values(sums[r]));
        }
        R
    }

    #[inline(always)]
    fn sums<D: ByteDot, const R: usize, const BITS: usize>(
        &self,
        d: D,
        x: [ByteRow<'_>; R],
        feature: usize,
    ) -> [D::Sums; R] {
        let offset = if BITS == 8 { 128 } else { 8 };
        let (data, scales) = self.product.weight.int_block(feature);
        let group_bytes = INT_FEATURES * INT_GROUP * BITS / 8;
        let mut sums = [d.zero(); R];
        for g in 0..self.product.weight.in_features / INT_GROUP {
            let mut whole = [d.start(0); R];
            for r in 0..R {
                whole[r] = d.start(-offset * x[r].sums[g]);
            }
            let group = data[g * group_bytes..(g + 1) * group_bytes].as_ptr();
            for step in 0..BITS {
                d.prefetch(group.wrapping_add(AHEAD + step * 64));
                // SAFETY: a group has `BITS` steps of 64 bytes; `numbers` has 8 words for it.
                unsafe {
                    if BITS == 8 {
                        let w = d.load(group.add(step * 64));
                        for r in 0..R {
                            whole[r] = d.add(whole[r], w, *x[r].numbers.get_unchecked(g * 8 + step));
                        }
                    } else {
                        let (low, high) = d.load_nibbles(group.add(step * 64));
                        for r in 0..R {
                            whole[r] = d.add(whole[r], low, *x[r].numbers.get_unchecked(g * 8 + 2 * step));
                            whole[r] = d.add(whole[r], high, *x[r].numbers.get_unchecked(g * 8 + 2 * step + 1));
                        }
                    }
                }
            }
            let scales = scales[g * 2 * INT_FEATURES..(g + 1) * 2 * INT_FEATURES].as_ptr();
            for r in 0..R {
                // SAFETY: sixteen scales lie there.
                sums[r] = unsafe { d.scale(sums[r], whole[r], scales, x[r].scales[g]) };
            }
        }
        sums
    }
}

/// Byte products in registers, to measure how fast they can be; returns the number of operations.
pub(crate) fn peak(level: SimdLevel, rounds: usize) -> f64 {
    match level {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: the level has AVX2 and FMA; the rest is checked here.
        SimdLevel::Avx512 | SimdLevel::Amx if has_vnni() => unsafe { peak_vnni(rounds) },
        #[cfg(target_arch = "x86_64")]
        // SAFETY: the levels have AVX2 and FMA.
        SimdLevel::Avx2 | SimdLevel::Avx512 | SimdLevel::Amx => unsafe { peak_avx2(rounds) },
        _ => peak_of(PlainBytes, rounds),
    }
}

/// # Safety
/// The processor must have these instructions.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512bw,avx512vnni")]
unsafe fn peak_vnni(rounds: usize) -> f64 {
    // SAFETY: the caller's promise.
    peak_of(unsafe { VnniBytes::new() }, rounds)
}

/// # Safety
/// The processor must have these instructions.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma")]
unsafe fn peak_avx2(rounds: usize) -> f64 {
    // SAFETY: the caller's promise.
    peak_of(unsafe { Avx2Bytes::new() }, rounds)
}

#[inline(always)]
fn peak_of<D: ByteDot>(d: D, rounds: usize) -> f64 {
    const CHAINS: usize = 8;
    let bytes = std::hint::black_box([3_u8; 64]);
    // SAFETY: 64 bytes lie there.
    let w = unsafe { d.load(bytes.as_ptr()) };
    let x = std::hint::black_box(0x0102_0304);
    let mut sums = [d.start(0); CHAINS];
    for _ in 0..rounds {
        for sum in &mut sums {
            *sum = d.add(*sum, w, x);
        }
    }
    std::hint::black_box(&sums);
    (2 * 64 * CHAINS * rounds) as f64
}

#[cfg(target_arch = "x86_64")]
fn has_vnni() -> bool {
    is_x86_feature_detected!("avx512vnni") && is_x86_feature_detected!("avx512bw")
}
