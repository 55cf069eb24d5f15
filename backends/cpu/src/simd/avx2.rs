//! Eight lanes with AVX2, FMA and F16C.
#![allow(clippy::undocumented_unsafe_blocks)] // one reason for all: an `Avx2` exists only below `enter`

use std::arch::x86_64::*;

use super::{Kernel, Simd};

/// Proof that the processor has AVX2, FMA and F16C.
#[derive(Clone, Copy)]
pub(crate) struct Avx2(());

/// Runs a kernel with AVX2.
///
/// # Safety
/// The processor must have AVX2, FMA and F16C.
#[target_feature(enable = "avx2,fma,f16c")]
pub(crate) unsafe fn enter<K: Kernel>(kernel: K) -> K::Output {
    kernel.run(Avx2(()))
}

/// The same, never merged into its caller.
#[target_feature(enable = "avx2,fma,f16c")]
#[inline(never)]
unsafe fn apart<K: Kernel>(s: Avx2, kernel: K) -> K::Output {
    kernel.run(s)
}

/// The eight E2M1 magnitudes.
static E2M1: [f32; 8] = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0];

/// `2^n` for whole `n` in `-126..=127`.
#[inline(always)]
fn power_of_two(n: __m256i) -> __m256 {
    unsafe { _mm256_castsi256_ps(_mm256_slli_epi32::<23>(_mm256_add_epi32(n, _mm256_set1_epi32(127)))) }
}

/// All bits of the first `n` lanes.
#[inline(always)]
fn first(n: usize) -> __m256i {
    unsafe { _mm256_cmpgt_epi32(_mm256_set1_epi32(n as i32), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7)) }
}

impl Simd for Avx2 {
    type V = __m256;
    const LANES: usize = 8;
    const WIDE: bool = false;

    #[inline(always)]
    fn apart<K: Kernel>(self, kernel: K) -> K::Output {
        unsafe { apart(self, kernel) }
    }
    #[inline(always)]
    fn splat(self, x: f32) -> Self::V {
        unsafe { _mm256_set1_ps(x) }
    }
    #[inline(always)]
    unsafe fn load_ptr(self, p: *const f32) -> Self::V {
        unsafe { _mm256_loadu_ps(p) }
    }
    #[inline(always)]
    unsafe fn store_ptr(self, p: *mut f32, v: Self::V) {
        unsafe { _mm256_storeu_ps(p, v) }
    }
    #[inline(always)]
    unsafe fn load_first(self, p: *const f32, n: usize) -> Self::V {
        unsafe { _mm256_maskload_ps(p, first(n)) }
    }
    #[inline(always)]
    unsafe fn store_first(self, p: *mut f32, n: usize, v: Self::V) {
        unsafe { _mm256_maskstore_ps(p, first(n), v) }
    }
    #[inline(always)]
    unsafe fn load_bf16(self, p: *const u8) -> Self::V {
        unsafe {
            let wide = _mm256_cvtepu16_epi32(_mm_loadu_si128(p.cast()));
            _mm256_castsi256_ps(_mm256_slli_epi32::<16>(wide))
        }
    }
    #[inline(always)]
    unsafe fn load_f16(self, p: *const u8) -> Self::V {
        unsafe { _mm256_cvtph_ps(_mm_loadu_si128(p.cast())) }
    }
    #[inline(always)]
    unsafe fn load_e2m1(self, p: *const u8) -> Self::V {
        unsafe {
            let packed = _mm_cvtsi32_si128(p.cast::<i32>().read_unaligned());
            let mask = _mm_set1_epi8(15);
            let low = _mm_and_si128(packed, mask);
            let high = _mm_and_si128(_mm_srli_epi16::<4>(packed), mask);
            let nibbles = _mm256_cvtepu8_epi32(_mm_unpacklo_epi8(low, high));
            let magnitude = _mm256_permutevar8x32_ps(_mm256_loadu_ps(E2M1.as_ptr()), nibbles);
            let sign = _mm256_slli_epi32::<28>(_mm256_and_si256(nibbles, _mm256_set1_epi32(8)));
            _mm256_or_ps(magnitude, _mm256_castsi256_ps(sign))
        }
    }

    #[inline(always)]
    fn add(self, a: Self::V, b: Self::V) -> Self::V {
        unsafe { _mm256_add_ps(a, b) }
    }
    #[inline(always)]
    fn sub(self, a: Self::V, b: Self::V) -> Self::V {
        unsafe { _mm256_sub_ps(a, b) }
    }
    #[inline(always)]
    fn mul(self, a: Self::V, b: Self::V) -> Self::V {
        unsafe { _mm256_mul_ps(a, b) }
    }
    #[inline(always)]
    fn div(self, a: Self::V, b: Self::V) -> Self::V {
        unsafe { _mm256_div_ps(a, b) }
    }
    #[inline(always)]
    fn fma(self, a: Self::V, b: Self::V, c: Self::V) -> Self::V {
        unsafe { _mm256_fmadd_ps(a, b, c) }
    }
    #[inline(always)]
    fn max(self, a: Self::V, b: Self::V) -> Self::V {
        unsafe { _mm256_max_ps(a, b) }
    }
    #[inline(always)]
    fn min(self, a: Self::V, b: Self::V) -> Self::V {
        unsafe { _mm256_min_ps(a, b) }
    }
    #[inline(always)]
    fn round(self, a: Self::V) -> Self::V {
        unsafe { _mm256_round_ps::<{ _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC }>(a) }
    }
    #[inline(always)]
    fn abs(self, a: Self::V) -> Self::V {
        unsafe { _mm256_andnot_ps(_mm256_set1_ps(-0.0), a) }
    }
    #[inline(always)]
    fn scale2(self, v: Self::V, n: Self::V) -> Self::V {
        unsafe {
            let n = _mm256_cvtps_epi32(n);
            let half = _mm256_srai_epi32::<1>(n);
            let first = _mm256_mul_ps(v, power_of_two(half));
            _mm256_mul_ps(first, power_of_two(_mm256_sub_epi32(n, half)))
        }
    }
    #[inline(always)]
    fn select_lt(self, a: Self::V, b: Self::V, if_true: Self::V, if_false: Self::V) -> Self::V {
        unsafe { _mm256_blendv_ps(if_false, if_true, _mm256_cmp_ps::<_CMP_LT_OQ>(a, b)) }
    }
    #[inline(always)]
    fn sum(self, v: Self::V) -> f32 {
        unsafe {
            let four = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps::<1>(v));
            let two = _mm_add_ps(four, _mm_movehl_ps(four, four));
            _mm_cvtss_f32(_mm_add_ss(two, _mm_shuffle_ps::<1>(two, two)))
        }
    }
}
