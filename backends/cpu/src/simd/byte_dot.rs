//! Dot products of bytes: sixteen features at a time, four columns in a step.
//!
//! Sums of whole numbers are exact, and scaled sums are added group by group in one order with a fused multiply-add, so
//! the bits of a result are the same with every implementation.

#[cfg(target_arch = "x86_64")]
use std::arch::x86_64::*;

/// Features that one step works on.
pub(crate) const FEATURES: usize = 16;

/// One implementation. A value is the proof that the processor has the instructions.
pub(crate) trait ByteDot: Copy {
    /// Sixteen whole sums.
    type Whole: Copy;
    /// Sixteen `f32` sums.
    type Sums: Copy;
    /// Sixty-four stored bytes, ready for [`ByteDot::add`].
    type Bytes: Copy;
    /// Rows that fit in the registers.
    const ROWS: usize;

    /// Asks memory for the line at `p`, which may be any address.
    #[inline(always)]
    fn prefetch(self, p: *const u8) {
        // SAFETY: SSE is part of x86-64, and a prefetch of any address is harmless. Other processors are left to foresee a
        // rising sequence by themselves.
        #[cfg(target_arch = "x86_64")]
        unsafe {
            _mm_prefetch::<_MM_HINT_T0>(p.cast());
        }
        #[cfg(not(target_arch = "x86_64"))]
        let _ = p;
    }
    /// Zeros.
    fn zero(self) -> Self::Sums;
    /// Sums of a group that begin with `start`.
    fn start(self, start: i32) -> Self::Whole;
    /// Bytes as they are stored: numbers plus 128.
    ///
    /// # Safety
    /// 64 bytes must be readable.
    unsafe fn load(self, p: *const u8) -> Self::Bytes;
    /// Low and high nibbles.
    ///
    /// # Safety
    /// 64 bytes must be readable.
    unsafe fn load_nibbles(self, p: *const u8) -> (Self::Bytes, Self::Bytes);
    /// `sum_f += Σ_j w_(f,j) x_j` over four columns, `x` being four signed bytes other than -128.
    fn add(self, sum: Self::Whole, w: Self::Bytes, x: i32) -> Self::Whole;
    /// `sums += whole · scale_f · x_scale`, with sixteen bfloat16 scales.
    ///
    /// # Safety
    /// `scales` must be readable for 32 bytes.
    unsafe fn scale(self, sums: Self::Sums, whole: Self::Whole, scales: *const u8, x_scale: f32) -> Self::Sums;
    /// The sums as values.
    fn values(self, sums: Self::Sums) -> [f32; FEATURES];
}

/// A value of a stored bfloat16.
#[inline(always)]
fn bf16(bytes: *const u8, i: usize) -> f32 {
    // SAFETY: the callers' promise: sixteen scales lie there.
    let bits = unsafe { bytes.cast::<u16>().add(i).read_unaligned() };
    f32::from_bits(u32::from(bits) << 16)
}

/// Plain loops.
#[derive(Clone, Copy)]
pub(crate) struct PlainBytes;

impl ByteDot for PlainBytes {
    type Whole = [i32; FEATURES];
    type Sums = [f32; FEATURES];
    type Bytes = [u8; 64];
    const ROWS: usize = 1;

    #[inline(always)]
    fn zero(self) -> Self::Sums {
        [0.0; FEATURES]
    }
    #[inline(always)]
    fn start(self, start: i32) -> Self::Whole {
        [start; FEATURES]
    }
    #[inline(always)]
    unsafe fn load(self, p: *const u8) -> Self::Bytes {
        // SAFETY: the caller's promise.
        unsafe { p.cast::<[u8; 64]>().read_unaligned() }
    }
    #[inline(always)]
    unsafe fn load_nibbles(self, p: *const u8) -> (Self::Bytes, Self::Bytes) {
        // SAFETY: the caller's promise.
        let (mut low, mut high) = unsafe { (self.load(p), self.load(p)) };
        low.iter_mut().for_each(|byte| *byte &= 15);
        high.iter_mut().for_each(|byte| *byte >>= 4);
        (low, high)
    }
    #[inline(always)]
    fn add(self, mut sum: Self::Whole, w: Self::Bytes, x: i32) -> Self::Whole {
        let x = x.to_le_bytes();
        for (sum, w) in sum.iter_mut().zip(w.chunks_exact(4)) {
            for j in 0..4 {
                *sum += i32::from(w[j]) * i32::from(x[j] as i8);
            }
        }
        sum
    }
    #[inline(always)]
    unsafe fn scale(self, mut sums: Self::Sums, whole: Self::Whole, scales: *const u8, x_scale: f32) -> Self::Sums {
        for (f, sum) in sums.iter_mut().enumerate() {
            *sum = (whole[f] as f32).mul_add(bf16(scales, f) * x_scale, *sum);
        }
        sums
    }
    #[inline(always)]
    fn values(self, sums: Self::Sums) -> [f32; FEATURES] {
        sums
    }
}

/// AVX2: the signs of the weights move to the activations, so that pairs of products never saturate.
#[cfg(target_arch = "x86_64")]
#[derive(Clone, Copy)]
pub(crate) struct Avx2Bytes(());

/// AVX-512 VNNI: four products and their sum in one instruction.
#[cfg(target_arch = "x86_64")]
#[derive(Clone, Copy)]
pub(crate) struct VnniBytes(());

#[cfg(target_arch = "x86_64")]
impl Avx2Bytes {
    /// # Safety
    /// The processor must have AVX2 and FMA.
    pub(crate) unsafe fn new() -> Self {
        Avx2Bytes(())
    }
}

#[cfg(target_arch = "x86_64")]
impl VnniBytes {
    /// # Safety
    /// The processor must have AVX-512F, BW and VNNI.
    pub(crate) unsafe fn new() -> Self {
        VnniBytes(())
    }
}

#[cfg(target_arch = "x86_64")]
#[allow(clippy::undocumented_unsafe_blocks)] // one reason for all: an `Avx2Bytes` is the proof
impl ByteDot for Avx2Bytes {
    type Whole = [__m256i; 2];
    type Sums = [__m256; 2];
    type Bytes = [__m256i; 2];
    const ROWS: usize = 2;

    #[inline(always)]
    fn zero(self) -> Self::Sums {
        unsafe { [_mm256_setzero_ps(); 2] }
    }
    #[inline(always)]
    fn start(self, start: i32) -> Self::Whole {
        unsafe { [_mm256_set1_epi32(start); 2] }
    }
    #[inline(always)]
    unsafe fn load(self, p: *const u8) -> Self::Bytes {
        unsafe { [_mm256_loadu_si256(p.cast()), _mm256_loadu_si256(p.add(32).cast())] }
    }
    #[inline(always)]
    unsafe fn load_nibbles(self, p: *const u8) -> (Self::Bytes, Self::Bytes) {
        unsafe {
            let ([a, b], mask) = (self.load(p), _mm256_set1_epi8(15));
            let low = [_mm256_and_si256(a, mask), _mm256_and_si256(b, mask)];
            let (a, b) = (_mm256_srli_epi16::<4>(a), _mm256_srli_epi16::<4>(b));
            (low, [_mm256_and_si256(a, mask), _mm256_and_si256(b, mask)])
        }
    }
    #[inline(always)]
    fn add(self, mut sum: Self::Whole, w: Self::Bytes, x: i32) -> Self::Whole {
        unsafe {
            let (x, ones, offset) = (_mm256_set1_epi32(x), _mm256_set1_epi16(1), _mm256_set1_epi8(-128));
            for i in 0..2 {
                // w x = 128 x + (w - 128) x, and the second product is one of a magnitude and a signed byte.
                let signed = _mm256_xor_si256(w[i], offset);
                let pairs = _mm256_maddubs_epi16(_mm256_abs_epi8(signed), _mm256_sign_epi8(x, signed));
                let rest = _mm256_maddubs_epi16(offset, x);
                let rest = _mm256_madd_epi16(rest, ones);
                sum[i] = _mm256_add_epi32(sum[i], _mm256_add_epi32(rest, _mm256_madd_epi16(pairs, ones)));
            }
        }
        sum
    }
    #[inline(always)]
    unsafe fn scale(self, mut sums: Self::Sums, whole: Self::Whole, scales: *const u8, x_scale: f32) -> Self::Sums {
        unsafe {
            let x_scale = _mm256_set1_ps(x_scale);
            for i in 0..2 {
                let bits = _mm256_cvtepu16_epi32(_mm_loadu_si128(scales.add(16 * i).cast()));
                let factor = _mm256_mul_ps(_mm256_castsi256_ps(_mm256_slli_epi32::<16>(bits)), x_scale);
                sums[i] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(whole[i]), factor, sums[i]);
            }
        }
        sums
    }
    #[inline(always)]
    fn values(self, sums: Self::Sums) -> [f32; FEATURES] {
        let mut values = [0.0; FEATURES];
        unsafe {
            _mm256_storeu_ps(values.as_mut_ptr(), sums[0]);
            _mm256_storeu_ps(values.as_mut_ptr().add(8), sums[1]);
        }
        values
    }
}

#[cfg(target_arch = "x86_64")]
#[allow(clippy::undocumented_unsafe_blocks)] // one reason for all: a `VnniBytes` is the proof
impl ByteDot for VnniBytes {
    type Whole = __m512i;
    type Sums = __m512;
    type Bytes = __m512i;
    const ROWS: usize = 8;

    #[inline(always)]
    fn zero(self) -> Self::Sums {
        unsafe { _mm512_setzero_ps() }
    }
    #[inline(always)]
    fn start(self, start: i32) -> Self::Whole {
        unsafe { _mm512_set1_epi32(start) }
    }
    #[inline(always)]
    unsafe fn load(self, p: *const u8) -> Self::Bytes {
        unsafe { _mm512_loadu_si512(p.cast()) }
    }
    #[inline(always)]
    unsafe fn load_nibbles(self, p: *const u8) -> (Self::Bytes, Self::Bytes) {
        unsafe {
            let (bytes, mask) = (self.load(p), _mm512_set1_epi8(15));
            (_mm512_and_si512(bytes, mask), _mm512_and_si512(_mm512_srli_epi16::<4>(bytes), mask))
        }
    }
    #[inline(always)]
    fn add(self, sum: Self::Whole, w: Self::Bytes, x: i32) -> Self::Whole {
        unsafe { _mm512_dpbusd_epi32(sum, w, _mm512_set1_epi32(x)) }
    }
    #[inline(always)]
    unsafe fn scale(self, sums: Self::Sums, whole: Self::Whole, scales: *const u8, x_scale: f32) -> Self::Sums {
        unsafe {
            let bits = _mm512_slli_epi32::<16>(_mm512_cvtepu16_epi32(_mm256_loadu_si256(scales.cast())));
            let factor = _mm512_mul_ps(_mm512_castsi512_ps(bits), _mm512_set1_ps(x_scale));
            _mm512_fmadd_ps(_mm512_cvtepi32_ps(whole), factor, sums)
        }
    }
    #[inline(always)]
    fn values(self, sums: Self::Sums) -> [f32; FEATURES] {
        let mut values = [0.0; FEATURES];
        unsafe { _mm512_storeu_ps(values.as_mut_ptr(), sums) }
        values
    }
}
