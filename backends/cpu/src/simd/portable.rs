//! Four lanes of plain Rust: the level that runs everywhere.
//!
//! No fused multiply-add: without the instruction it would be a library call per lane.

use super::{Kernel, Simd};

/// Proof of nothing; plain Rust needs none.
#[derive(Clone, Copy)]
pub(crate) struct Portable;

const E2M1: [f32; 8] = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0];

#[inline(always)]
fn lanes(f: impl Fn(usize) -> f32) -> [f32; 4] {
    [f(0), f(1), f(2), f(3)]
}

fn power_of_two(n: i32) -> f32 {
    f32::from_bits(((n + 127) as u32) << 23)
}

impl Simd for Portable {
    type V = [f32; 4];
    const LANES: usize = 4;
    const WIDE: bool = false;

    #[inline(never)]
    fn apart<K: Kernel>(self, kernel: K) -> K::Output {
        kernel.run(self)
    }
    #[inline(always)]
    fn splat(self, x: f32) -> Self::V {
        [x; 4]
    }
    #[inline(always)]
    unsafe fn load_ptr(self, p: *const f32) -> Self::V {
        // SAFETY: the caller's promise.
        unsafe { p.cast::<[f32; 4]>().read_unaligned() }
    }
    #[inline(always)]
    unsafe fn store_ptr(self, p: *mut f32, v: Self::V) {
        // SAFETY: the caller's promise.
        unsafe { p.cast::<[f32; 4]>().write_unaligned(v) }
    }
    #[inline(always)]
    unsafe fn load_bf16(self, p: *const u8) -> Self::V {
        // SAFETY: the caller's promise.
        let bits = unsafe { p.cast::<[u16; 4]>().read_unaligned() };
        lanes(|i| f32::from_bits(u32::from(bits[i]) << 16))
    }
    #[inline(always)]
    unsafe fn load_f16(self, p: *const u8) -> Self::V {
        // SAFETY: the caller's promise.
        let bits = unsafe { p.cast::<[u16; 4]>().read_unaligned() };
        lanes(|i| half::f16::from_bits(bits[i]).to_f32())
    }
    #[inline(always)]
    unsafe fn load_e2m1(self, p: *const u8) -> Self::V {
        // SAFETY: the caller's promise.
        let bytes = unsafe { p.cast::<[u8; 2]>().read_unaligned() };
        lanes(|i| {
            let nibble = bytes[i / 2] >> (4 * (i % 2)) & 15;
            let magnitude = E2M1[usize::from(nibble & 7)];
            if nibble & 8 == 0 { magnitude } else { -magnitude }
        })
    }

    #[inline(always)]
    fn add(self, a: Self::V, b: Self::V) -> Self::V {
        lanes(|i| a[i] + b[i])
    }
    #[inline(always)]
    fn sub(self, a: Self::V, b: Self::V) -> Self::V {
        lanes(|i| a[i] - b[i])
    }
    #[inline(always)]
    fn mul(self, a: Self::V, b: Self::V) -> Self::V {
        lanes(|i| a[i] * b[i])
    }
    #[inline(always)]
    fn div(self, a: Self::V, b: Self::V) -> Self::V {
        lanes(|i| a[i] / b[i])
    }
    #[inline(always)]
    fn fma(self, a: Self::V, b: Self::V, c: Self::V) -> Self::V {
        lanes(|i| a[i] * b[i] + c[i])
    }
    #[inline(always)]
    fn max(self, a: Self::V, b: Self::V) -> Self::V {
        lanes(|i| if a[i] > b[i] { a[i] } else { b[i] })
    }
    #[inline(always)]
    fn min(self, a: Self::V, b: Self::V) -> Self::V {
        lanes(|i| if a[i] < b[i] { a[i] } else { b[i] })
    }
    #[inline(always)]
    fn round(self, a: Self::V) -> Self::V {
        // Adding and taking away 1.5 * 2^23 drops the fraction; exact for the magnitudes below 2^22 used here.
        lanes(|i| (a[i] + 12_582_912.0) - 12_582_912.0)
    }
    #[inline(always)]
    fn abs(self, a: Self::V) -> Self::V {
        lanes(|i| a[i].abs())
    }
    #[inline(always)]
    fn scale2(self, v: Self::V, n: Self::V) -> Self::V {
        lanes(|i| {
            let n = n[i] as i32;
            v[i] * power_of_two(n / 2) * power_of_two(n - n / 2)
        })
    }
    #[inline(always)]
    fn select_lt(self, a: Self::V, b: Self::V, if_true: Self::V, if_false: Self::V) -> Self::V {
        lanes(|i| if a[i] < b[i] { if_true[i] } else { if_false[i] })
    }
    #[inline(always)]
    fn sum(self, v: Self::V) -> f32 {
        (v[0] + v[2]) + (v[1] + v[3])
    }
}
