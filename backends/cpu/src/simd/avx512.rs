//! Sixteen lanes with AVX-512F. VL is asked for as well: without it the compiler keeps sums out of half the registers, as the
//! narrower operations that end a sum do not reach them.
//!
//! BF16 and VNNI instructions are left aside on purpose: they round activations to 8 bits of mantissa.
#![allow(clippy::undocumented_unsafe_blocks)] // one reason for all: an `Avx512` exists only below `enter`

use std::arch::x86_64::*;

use super::{Kernel, Simd};

/// Proof that the processor has AVX-512F and VL.
#[derive(Clone, Copy)]
pub(crate) struct Avx512(());

/// Runs a kernel with AVX-512.
///
/// # Safety
/// The processor must have AVX-512F and VL, AVX2, FMA and F16C.
#[target_feature(enable = "avx512f,avx512vl,avx2,fma,f16c")]
pub(crate) unsafe fn enter<K: Kernel>(kernel: K) -> K::Output {
    kernel.run(Avx512(()))
}

/// The same, never merged into its caller.
#[target_feature(enable = "avx512f,avx512vl,avx2,fma,f16c")]
#[inline(never)]
unsafe fn apart<K: Kernel>(s: Avx512, kernel: K) -> K::Output {
    kernel.run(s)
}

/// The sixteen E2M1 values by nibble.
static E2M1: [f32; 16] = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0];

impl Simd for Avx512 {
    type V = __m512;
    const LANES: usize = 16;
    const WIDE: bool = true;

    #[inline(always)]
    fn apart<K: Kernel>(self, kernel: K) -> K::Output {
        unsafe { apart(self, kernel) }
    }
    #[inline(always)]
    fn splat(self, x: f32) -> Self::V {
        unsafe { _mm512_set1_ps(x) }
    }
    #[inline(always)]
    unsafe fn load_ptr(self, p: *const f32) -> Self::V {
        unsafe { _mm512_loadu_ps(p) }
    }
    #[inline(always)]
    unsafe fn store_ptr(self, p: *mut f32, v: Self::V) {
        unsafe { _mm512_storeu_ps(p, v) }
    }
    #[inline(always)]
    unsafe fn load_first(self, p: *const f32, n: usize) -> Self::V {
        unsafe { _mm512_maskz_loadu_ps((1 << n) - 1, p) }
    }
    #[inline(always)]
    unsafe fn store_first(self, p: *mut f32, n: usize, v: Self::V) {
        unsafe { _mm512_mask_storeu_ps(p, (1 << n) - 1, v) }
    }
    #[inline(always)]
    unsafe fn load_bf16(self, p: *const u8) -> Self::V {
        unsafe {
            let wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256(p.cast()));
            _mm512_castsi512_ps(_mm512_slli_epi32::<16>(wide))
        }
    }
    #[inline(always)]
    unsafe fn load_f16(self, p: *const u8) -> Self::V {
        unsafe { _mm512_cvtph_ps(_mm256_loadu_si256(p.cast())) }
    }
    #[inline(always)]
    unsafe fn load_e2m1(self, p: *const u8) -> Self::V {
        unsafe {
            let packed = _mm_loadl_epi64(p.cast());
            let mask = _mm_set1_epi8(15);
            let low = _mm_and_si128(packed, mask);
            let high = _mm_and_si128(_mm_srli_epi16::<4>(packed), mask);
            let nibbles = _mm512_cvtepu8_epi32(_mm_unpacklo_epi8(low, high));
            _mm512_permutexvar_ps(nibbles, _mm512_loadu_ps(E2M1.as_ptr()))
        }
    }

    #[inline(always)]
    fn add(self, a: Self::V, b: Self::V) -> Self::V {
        unsafe { _mm512_add_ps(a, b) }
    }
    #[inline(always)]
    fn sub(self, a: Self::V, b: Self::V) -> Self::V {
        unsafe { _mm512_sub_ps(a, b) }
    }
    #[inline(always)]
    fn mul(self, a: Self::V, b: Self::V) -> Self::V {
        unsafe { _mm512_mul_ps(a, b) }
    }
    #[inline(always)]
    fn div(self, a: Self::V, b: Self::V) -> Self::V {
        unsafe { _mm512_div_ps(a, b) }
    }
    #[inline(always)]
    fn fma(self, a: Self::V, b: Self::V, c: Self::V) -> Self::V {
        unsafe { _mm512_fmadd_ps(a, b, c) }
    }
    #[inline(always)]
    fn max(self, a: Self::V, b: Self::V) -> Self::V {
        unsafe { _mm512_max_ps(a, b) }
    }
    #[inline(always)]
    fn min(self, a: Self::V, b: Self::V) -> Self::V {
        unsafe { _mm512_min_ps(a, b) }
    }
    #[inline(always)]
    fn round(self, a: Self::V) -> Self::V {
        unsafe { _mm512_roundscale_ps::<{ _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC }>(a) }
    }
    #[inline(always)]
    fn abs(self, a: Self::V) -> Self::V {
        unsafe { _mm512_abs_ps(a) }
    }
    #[inline(always)]
    fn scale2(self, v: Self::V, n: Self::V) -> Self::V {
        unsafe { _mm512_scalef_ps(v, n) }
    }
    #[inline(always)]
    fn select_lt(self, a: Self::V, b: Self::V, if_true: Self::V, if_false: Self::V) -> Self::V {
        unsafe { _mm512_mask_blend_ps(_mm512_cmp_ps_mask::<_CMP_LT_OQ>(a, b), if_false, if_true) }
    }
    #[inline(always)]
    fn sum(self, v: Self::V) -> f32 {
        unsafe {
            let high = _mm512_castps512_ps256(_mm512_shuffle_f32x4::<0b1110>(v, v));
            let eight = _mm256_add_ps(_mm512_castps512_ps256(v), high);
            let four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps::<1>(eight));
            let two = _mm_add_ps(four, _mm_movehl_ps(four, four));
            _mm_cvtss_f32(_mm_add_ss(two, _mm_shuffle_ps::<1>(two, two)))
        }
    }
}
