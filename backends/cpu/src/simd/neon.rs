//! Four lanes with NEON, which every aarch64 processor has.
#![allow(clippy::undocumented_unsafe_blocks)] // one reason for all: NEON is part of the aarch64 baseline

use std::arch::aarch64::*;

use super::{Kernel, Simd};

/// Four NEON lanes.
#[derive(Clone, Copy)]
pub(crate) struct Neon(());

/// Runs a kernel with NEON.
pub(crate) fn enter<K: Kernel>(kernel: K) -> K::Output {
    kernel.run(Neon(()))
}

/// The sixteen E2M1 values by nibble.
static E2M1: [f32; 16] = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0];

/// `2^n` for whole `n` in `-126..=127`.
#[inline(always)]
fn power_of_two(n: int32x4_t) -> float32x4_t {
    unsafe { vreinterpretq_f32_s32(vshlq_n_s32::<23>(vaddq_s32(n, vdupq_n_s32(127)))) }
}

impl Simd for Neon {
    type V = float32x4_t;
    const LANES: usize = 4;
    const WIDE: bool = true;

    #[inline(never)]
    fn apart<K: Kernel>(self, kernel: K) -> K::Output {
        kernel.run(self)
    }
    #[inline(always)]
    fn splat(self, x: f32) -> Self::V {
        unsafe { vdupq_n_f32(x) }
    }
    #[inline(always)]
    unsafe fn load_ptr(self, p: *const f32) -> Self::V {
        unsafe { vreinterpretq_f32_u8(vld1q_u8(p.cast())) }
    }
    #[inline(always)]
    unsafe fn store_ptr(self, p: *mut f32, v: Self::V) {
        unsafe { vst1q_u8(p.cast(), vreinterpretq_u8_f32(v)) }
    }
    #[inline(always)]
    unsafe fn load_bf16(self, p: *const u8) -> Self::V {
        unsafe { vreinterpretq_f32_u32(vshll_n_u16::<16>(vreinterpret_u16_u8(vld1_u8(p)))) }
    }
    #[inline(always)]
    unsafe fn load_f16(self, p: *const u8) -> Self::V {
        let bits = unsafe { p.cast::<[u16; 4]>().read_unaligned() };
        let lanes = bits.map(|b| half::f16::from_bits(b).to_f32());
        unsafe { vld1q_f32(lanes.as_ptr()) }
    }
    #[inline(always)]
    unsafe fn load_e2m1(self, p: *const u8) -> Self::V {
        let bytes = unsafe { p.cast::<[u8; 2]>().read_unaligned() };
        let nibble = |i: usize| usize::from(bytes[i / 2] >> (4 * (i % 2)) & 15);
        let lanes = [E2M1[nibble(0)], E2M1[nibble(1)], E2M1[nibble(2)], E2M1[nibble(3)]];
        unsafe { vld1q_f32(lanes.as_ptr()) }
    }

    #[inline(always)]
    fn add(self, a: Self::V, b: Self::V) -> Self::V {
        unsafe { vaddq_f32(a, b) }
    }
    #[inline(always)]
    fn sub(self, a: Self::V, b: Self::V) -> Self::V {
        unsafe { vsubq_f32(a, b) }
    }
    #[inline(always)]
    fn mul(self, a: Self::V, b: Self::V) -> Self::V {
        unsafe { vmulq_f32(a, b) }
    }
    #[inline(always)]
    fn div(self, a: Self::V, b: Self::V) -> Self::V {
        unsafe { vdivq_f32(a, b) }
    }
    #[inline(always)]
    fn fma(self, a: Self::V, b: Self::V, c: Self::V) -> Self::V {
        unsafe { vfmaq_f32(c, a, b) }
    }
    #[inline(always)]
    fn max(self, a: Self::V, b: Self::V) -> Self::V {
        unsafe { vbslq_f32(vcgtq_f32(a, b), a, b) }
    }
    #[inline(always)]
    fn min(self, a: Self::V, b: Self::V) -> Self::V {
        unsafe { vbslq_f32(vcltq_f32(a, b), a, b) }
    }
    #[inline(always)]
    fn round(self, a: Self::V) -> Self::V {
        unsafe { vrndnq_f32(a) }
    }
    #[inline(always)]
    fn abs(self, a: Self::V) -> Self::V {
        unsafe { vabsq_f32(a) }
    }
    #[inline(always)]
    fn scale2(self, v: Self::V, n: Self::V) -> Self::V {
        unsafe {
            let n = vcvtnq_s32_f32(n);
            let half = vshrq_n_s32::<1>(n);
            vmulq_f32(vmulq_f32(v, power_of_two(half)), power_of_two(vsubq_s32(n, half)))
        }
    }
    #[inline(always)]
    fn select_lt(self, a: Self::V, b: Self::V, if_true: Self::V, if_false: Self::V) -> Self::V {
        unsafe { vbslq_f32(vcltq_f32(a, b), if_true, if_false) }
    }
    #[inline(always)]
    fn sum(self, v: Self::V) -> f32 {
        unsafe {
            let two = vadd_f32(vget_low_f32(v), vget_high_f32(v));
            vget_lane_f32::<0>(two) + vget_lane_f32::<1>(two)
        }
    }
}
