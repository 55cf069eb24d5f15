//! Weights as they are stored: reading a vector of a row in its format.

use perilune_backend::Weight;
use perilune_tensor::{MXFP4_GROUP, QuantFormat};

use crate::simd::{MAX_LANES, Simd};
use crate::tensor::CpuTensor;

/// A matrix `[out, in]` in host memory, at any address.
#[derive(Clone, Copy)]
pub(crate) struct Matrix<'a> {
    pub(crate) format: QuantFormat,
    data: &'a [u8],
    scales: &'a [u8],
    pub(crate) out_features: usize,
    pub(crate) in_features: usize,
}

/// Where a row of a matrix, or of anything stored like one, begins.
#[derive(Clone, Copy)]
pub(crate) struct RowPtr {
    data: *const u8,
    scales: *const u8,
}

impl RowPtr {
    /// A row without scales.
    pub(crate) fn plain(data: &[u8]) -> RowPtr {
        RowPtr { data: data.as_ptr(), scales: std::ptr::null() }
    }

    /// Its first byte.
    #[cfg(target_arch = "x86_64")]
    pub(crate) fn data(&self) -> *const u8 {
        self.data
    }

    /// Its first scale.
    #[cfg(target_arch = "x86_64")]
    pub(crate) fn scales(&self) -> *const u8 {
        self.scales
    }
}

impl<'a> Matrix<'a> {
    /// The matrix of a weight whose shapes have been checked.
    pub(crate) fn of(weight: &'a Weight<CpuTensor>) -> Matrix<'a> {
        Matrix {
            format: weight.format,
            data: weight.data.bytes(),
            scales: weight.scales.as_ref().map_or(&[], CpuTensor::bytes),
            out_features: weight.out_features(),
            in_features: weight.in_features(),
        }
    }

    /// Scales of some rows.
    #[cfg(target_arch = "x86_64")]
    pub(crate) fn scales(&self, rows: std::ops::Range<usize>) -> &'a [u8] {
        let groups = self.scales.len() / self.out_features;
        &self.scales[rows.start * groups..rows.end * groups]
    }

    /// Data and scales from a feature on that begins sixteen of them, in a format of whole numbers.
    pub(crate) fn int_block(&self, feature: usize) -> (&'a [u8], &'a [u8]) {
        let width = self.data.len() / self.out_features;
        let scales = self.scales.len() / self.out_features;
        (&self.data[feature * width..], &self.scales[feature * scales..])
    }

    /// Row `o` in a format whose rows lie one after the other.
    #[inline(always)]
    pub(crate) fn row(&self, o: usize) -> RowPtr {
        let width = self.data.len() / self.out_features;
        let groups = self.scales.len() / self.out_features;
        RowPtr { data: self.data[o * width..].as_ptr(), scales: self.scales[o * groups..].as_ptr() }
    }
}

/// How elements of a row are read.
pub(crate) trait Format {
    /// `LANES` elements from column `i`, a multiple of `LANES`.
    ///
    /// # Safety
    /// The row must have them.
    unsafe fn load<S: Simd>(s: S, row: RowPtr, i: usize) -> S::V;

    /// The element in column `i`.
    ///
    /// # Safety
    /// The row must have it.
    unsafe fn get(row: RowPtr, i: usize) -> f32;

    /// `n < LANES` elements from column `i`, then zeros.
    ///
    /// # Safety
    /// The row must have them.
    #[inline(always)]
    unsafe fn load_tail<S: Simd>(s: S, row: RowPtr, i: usize, n: usize) -> S::V {
        let mut lanes = [0.0; MAX_LANES];
        for (j, lane) in lanes.iter_mut().enumerate().take(n) {
            // SAFETY: the caller's promise.
            *lane = unsafe { Self::get(row, i + j) };
        }
        s.load(&lanes, 0)
    }
}

/// Little-endian `f32`.
pub(crate) struct F32;
/// bfloat16.
pub(crate) struct Bf16;
/// IEEE half.
pub(crate) struct F16;
/// E2M1 nibbles with a power-of-two scale for 32 columns.
pub(crate) struct Mxfp4;

impl Format for F32 {
    #[inline(always)]
    unsafe fn load<S: Simd>(s: S, row: RowPtr, i: usize) -> S::V {
        // SAFETY: the caller's promise.
        unsafe { s.load_ptr(row.data.cast::<f32>().add(i)) }
    }
    #[inline(always)]
    unsafe fn get(row: RowPtr, i: usize) -> f32 {
        // SAFETY: the caller's promise.
        unsafe { row.data.cast::<f32>().add(i).read_unaligned() }
    }
    #[inline(always)]
    unsafe fn load_tail<S: Simd>(s: S, row: RowPtr, i: usize, n: usize) -> S::V {
        // SAFETY: the caller's promise.
        unsafe { s.load_first(row.data.cast::<f32>().add(i), n) }
    }
}

impl Format for Bf16 {
    #[inline(always)]
    unsafe fn load<S: Simd>(s: S, row: RowPtr, i: usize) -> S::V {
        // SAFETY: the caller's promise.
        unsafe { s.load_bf16(row.data.add(2 * i)) }
    }
    #[inline(always)]
    unsafe fn get(row: RowPtr, i: usize) -> f32 {
        // SAFETY: the caller's promise.
        half::bf16::from_bits(unsafe { row.data.cast::<u16>().add(i).read_unaligned() }).to_f32()
    }
}

impl Format for F16 {
    #[inline(always)]
    unsafe fn load<S: Simd>(s: S, row: RowPtr, i: usize) -> S::V {
        // SAFETY: the caller's promise.
        unsafe { s.load_f16(row.data.add(2 * i)) }
    }
    #[inline(always)]
    unsafe fn get(row: RowPtr, i: usize) -> f32 {
        // SAFETY: the caller's promise.
        half::f16::from_bits(unsafe { row.data.cast::<u16>().add(i).read_unaligned() }).to_f32()
    }
}

impl Mxfp4 {
    /// `2^(byte - 127)`; 255 is NaN.
    #[inline(always)]
    fn scale(byte: u8) -> f32 {
        match byte {
            0 => f32::from_bits(0x0040_0000),
            255 => f32::NAN,
            e => f32::from_bits(u32::from(e) << 23),
        }
    }
}

impl Format for Mxfp4 {
    #[inline(always)]
    unsafe fn load<S: Simd>(s: S, row: RowPtr, i: usize) -> S::V {
        // SAFETY: the caller's promise; `LANES` divides the group, so one scale serves the vector.
        let (values, scale) = unsafe { (s.load_e2m1(row.data.add(i / 2)), *row.scales.add(i / MXFP4_GROUP)) };
        s.mul(values, s.splat(Self::scale(scale)))
    }
    #[inline(always)]
    unsafe fn get(row: RowPtr, i: usize) -> f32 {
        const MAGNITUDES: [f32; 8] = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0];
        // SAFETY: the caller's promise.
        let (byte, scale) = unsafe { (*row.data.add(i / 2), *row.scales.add(i / MXFP4_GROUP)) };
        let nibble = byte >> (4 * (i % 2)) & 15;
        let magnitude = MAGNITUDES[usize::from(nibble & 7)] * Self::scale(scale);
        if nibble & 8 == 0 { magnitude } else { -magnitude }
    }
}
