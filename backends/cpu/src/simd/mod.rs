//! Vectors of `f32` lanes, and the choice of an instruction set once at start.
//!
//! Operation code is written once over [`Simd`] and entered through [`SimdLevel::run`], which compiles it for each
//! instruction set. A value of a `Simd` type is the proof that the processor has the instructions: only `run` makes
//! one, so everything but raw loads and stores is safe to call.
//!
//! Results depend on the level (lane count, fused or unfused multiply-add) and on nothing else.

#[cfg(target_arch = "x86_64")]
pub(crate) mod amx;
#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
pub(crate) mod byte_dot;
mod math;
#[cfg(target_arch = "aarch64")]
mod neon;
mod portable;
#[cfg(target_arch = "x86_64")]
pub(crate) mod transpose;

use perilune_backend::BackendError;

pub(crate) use math::{dot, exp, sigmoid, situ, softplus};

/// The largest lane count of any level, for buffers on the stack and padding.
pub(crate) const MAX_LANES: usize = 16;

/// An instruction set.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum SimdLevel {
    /// Plain Rust on four lanes; multiply-add rounds twice. Runs everywhere.
    Scalar,
    /// 128-bit NEON (aarch64).
    Neon,
    /// 256-bit AVX2 with FMA and F16C (x86-64).
    Avx2,
    /// 512-bit AVX-512F and VL (x86-64).
    Avx512,
    /// AVX-512, and AMX tiles for products with bfloat16 and MXFP4 matrices (x86-64, Linux).
    Amx,
}

impl SimdLevel {
    /// The levels this processor can run, slowest first.
    pub fn available() -> Vec<SimdLevel> {
        let all = [SimdLevel::Scalar, SimdLevel::Neon, SimdLevel::Avx2, SimdLevel::Avx512, SimdLevel::Amx];
        all.into_iter().filter(|level| level.is_available()).collect()
    }

    /// The forced level if the processor has it, else the best one.
    pub(crate) fn choose(forced: Option<SimdLevel>) -> Result<SimdLevel, BackendError> {
        match forced {
            Some(level) if level.is_available() => Ok(level),
            Some(level) => Err(BackendError::Unsupported { op: "simd", what: format!("{level:?} on this processor") }),
            None => Ok(Self::available().last().copied().unwrap_or(SimdLevel::Scalar)),
        }
    }

    #[cfg(target_arch = "x86_64")]
    fn is_available(self) -> bool {
        let avx2 = is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma");
        let avx2 = avx2 && is_x86_feature_detected!("f16c");
        let avx512 = is_x86_feature_detected!("avx512f") && is_x86_feature_detected!("avx512vl");
        match self {
            SimdLevel::Scalar => true,
            SimdLevel::Neon => false,
            SimdLevel::Avx2 => avx2,
            SimdLevel::Avx512 => avx2 && avx512,
            SimdLevel::Amx => avx2 && avx512 && amx::is_available(),
        }
    }

    #[cfg(target_arch = "aarch64")]
    fn is_available(self) -> bool {
        matches!(self, SimdLevel::Scalar | SimdLevel::Neon)
    }

    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    fn is_available(self) -> bool {
        self == SimdLevel::Scalar
    }

    /// Runs `kernel` compiled for this level.
    pub(crate) fn run<K: Kernel>(self, kernel: K) -> K::Output {
        match self {
            // SAFETY: `choose` hands out a level only where the processor has its instructions.
            #[cfg(target_arch = "x86_64")]
            SimdLevel::Avx512 | SimdLevel::Amx => unsafe { avx512::enter(kernel) },
            // SAFETY: as above.
            #[cfg(target_arch = "x86_64")]
            SimdLevel::Avx2 => unsafe { avx2::enter(kernel) },
            #[cfg(target_arch = "aarch64")]
            SimdLevel::Neon => neon::enter(kernel),
            _ => kernel.run(portable::Portable),
        }
    }
}

/// Code over vectors. Implementations mark `run` and all they call `#[inline(always)]`, so that the whole body is
/// compiled with the level's instructions.
pub(crate) trait Kernel {
    /// What it returns.
    type Output;
    /// The body.
    fn run<S: Simd>(self, s: S) -> Self::Output;
}

/// Operations on vectors of [`Simd::LANES`] `f32` lanes.
pub(crate) trait Simd: Copy + 'static {
    /// A vector.
    type V: Copy;
    /// Lanes of a vector: 4, 8 or 16.
    const LANES: usize;
    /// Whether there are registers for a tile of 24 accumulators.
    const WIDE: bool;

    fn splat(self, x: f32) -> Self::V;
    /// # Safety
    /// `p` must be readable for `LANES` values; no alignment is needed, here and below.
    unsafe fn load_ptr(self, p: *const f32) -> Self::V;
    /// # Safety
    /// `p` must be writable for `LANES` values.
    unsafe fn store_ptr(self, p: *mut f32, v: Self::V);
    /// # Safety
    /// `p` must be readable for `2 * LANES` bytes.
    unsafe fn load_bf16(self, p: *const u8) -> Self::V;
    /// # Safety
    /// `p` must be readable for `2 * LANES` bytes.
    unsafe fn load_f16(self, p: *const u8) -> Self::V;
    /// E2M1 nibbles, low nibble first, unscaled.
    /// # Safety
    /// `p` must be readable for `LANES / 2` bytes.
    unsafe fn load_e2m1(self, p: *const u8) -> Self::V;

    fn add(self, a: Self::V, b: Self::V) -> Self::V;
    fn sub(self, a: Self::V, b: Self::V) -> Self::V;
    fn mul(self, a: Self::V, b: Self::V) -> Self::V;
    fn div(self, a: Self::V, b: Self::V) -> Self::V;
    /// `a b + c`.
    fn fma(self, a: Self::V, b: Self::V, c: Self::V) -> Self::V;
    /// The larger lane; `b` where either is NaN.
    fn max(self, a: Self::V, b: Self::V) -> Self::V;
    /// The smaller lane; `b` where either is NaN.
    fn min(self, a: Self::V, b: Self::V) -> Self::V;
    /// Nearest whole number.
    fn round(self, a: Self::V) -> Self::V;
    fn abs(self, a: Self::V) -> Self::V;
    /// `v 2^n` for whole `n` in `-252..=252`.
    fn scale2(self, v: Self::V, n: Self::V) -> Self::V;
    /// `x` in lanes where `a < b`, else `y`.
    fn select_lt(self, a: Self::V, b: Self::V, if_true: Self::V, if_false: Self::V) -> Self::V;
    /// Sum of the lanes by halving: always the same tree.
    fn sum(self, v: Self::V) -> f32;

    /// Runs a kernel in a function of its own: an inner loop that many kernels share is compiled once, and what surrounds it
    /// does not take registers from it.
    fn apart<K: Kernel>(self, kernel: K) -> K::Output;

    /// `n < LANES` values, then zeros. No call is made in it, as one would keep vectors around it out of registers.
    /// # Safety
    /// `p` must be readable for `n` values.
    #[inline(always)]
    unsafe fn load_first(self, p: *const f32, n: usize) -> Self::V {
        let mut lanes = [0.0; MAX_LANES];
        for (i, lane) in lanes.iter_mut().enumerate().take(Self::LANES) {
            if i < n {
                // SAFETY: the caller's promise.
                *lane = unsafe { p.add(i).read_unaligned() };
            }
        }
        // SAFETY: `lanes` holds MAX_LANES >= LANES values.
        unsafe { self.load_ptr(lanes.as_ptr()) }
    }
    /// Writes the first `n < LANES` values.
    /// # Safety
    /// `p` must be writable for `n` values.
    #[inline(always)]
    unsafe fn store_first(self, p: *mut f32, n: usize, v: Self::V) {
        let mut lanes = [0.0; MAX_LANES];
        // SAFETY: `lanes` holds MAX_LANES >= LANES values.
        unsafe { self.store_ptr(lanes.as_mut_ptr(), v) };
        for (i, lane) in lanes.iter().enumerate().take(Self::LANES) {
            if i < n {
                // SAFETY: the caller's promise.
                unsafe { p.add(i).write_unaligned(*lane) };
            }
        }
    }

    /// `LANES` values of `x` from `i`; lanes past the end of `x` are 0.
    #[inline(always)]
    fn load(self, x: &[f32], i: usize) -> Self::V {
        if i + Self::LANES <= x.len() {
            // SAFETY: just checked.
            return unsafe { self.load_ptr(x.as_ptr().add(i)) };
        }
        let i = i.min(x.len());
        // SAFETY: `x` has that many values from `i`, fewer than `LANES`.
        unsafe { self.load_first(x.as_ptr().add(i), x.len() - i) }
    }

    /// Writes `v` to `out` from `i`; lanes past the end of `out` are dropped.
    #[inline(always)]
    fn store(self, out: &mut [f32], i: usize, v: Self::V) {
        if i + Self::LANES <= out.len() {
            // SAFETY: just checked.
            return unsafe { self.store_ptr(out.as_mut_ptr().add(i), v) };
        }
        let i = i.min(out.len());
        // SAFETY: `out` has that many values from `i`, fewer than `LANES`.
        unsafe { self.store_first(out.as_mut_ptr().add(i), out.len() - i, v) }
    }
}
