//! Measured limits of the machine: read bandwidth, multiply-adds of `f32`, products of bytes and of tiles.

use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use perilune_backend::BackendError;

use crate::simd::{Kernel, Simd};
use crate::{CpuBackend, int_product};
#[cfg(target_arch = "x86_64")]
use crate::{SimdLevel, tile_product};

/// Values of the buffer: 2 GiB, beyond the largest caches.
const LEN: usize = 1 << 29;
/// Values that one task reads.
const PIECE: usize = 1 << 20;
/// Passes after the first; the fastest counts.
const PASSES: usize = 4;

/// Rounds of one task that measures arithmetic; each task takes some milliseconds.
const ROUNDS: usize = 1 << 18;
/// Sums that a task adds to in turn.
const CHAINS: usize = 12;

/// What the machine can do at most, all threads together, in 10^9 a second.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct CpuLimits {
    /// Bytes read from memory.
    pub read_gb: f64,
    /// Operations on `f32`, a multiply-add counting as two.
    pub f32_gflop: f64,
    /// Operations on bytes, as above.
    pub byte_gop: f64,
    /// Operations on bfloat16 in tiles, as above; `None` without tiles. A product of an `f32` row takes three of them.
    pub tile_gflop: Option<f64>,
}

impl CpuBackend {
    /// Measures all limits; takes a few seconds and, for a while, 2 GiB.
    ///
    /// # Errors
    /// `OutOfMemory`.
    pub fn measure_limits(&self) -> Result<CpuLimits, BackendError> {
        let level = self.level();
        let f32_gflop = self.best_rate(&|| level.run(MultiplyAdd));
        let byte_gop = self.best_rate(&|| int_product::peak(level, ROUNDS));
        Ok(CpuLimits {
            read_gb: self.measure_read_bandwidth()?,
            f32_gflop: f32_gflop?,
            byte_gop: byte_gop?,
            tile_gflop: self.tile_rate()?,
        })
    }

    #[cfg(target_arch = "x86_64")]
    fn tile_rate(&self) -> Result<Option<f64>, BackendError> {
        if self.level() != SimdLevel::Amx {
            return Ok(None);
        }
        // SAFETY: the level is `Amx`.
        self.best_rate(&|| unsafe { tile_product::peak(ROUNDS / 16) }).map(Some)
    }

    #[cfg(not(target_arch = "x86_64"))]
    fn tile_rate(&self) -> Result<Option<f64>, BackendError> {
        Ok(None)
    }

    /// The best rate of several passes of `work`, which says how many operations it did, on every thread.
    fn best_rate(&self, work: &(dyn Fn() -> f64 + Sync)) -> Result<f64, BackendError> {
        let tasks = 8 * self.num_threads();
        let mut best: f64 = 0.0;
        for _ in 0..=PASSES {
            let done = Mutex::new(0.0);
            let start = Instant::now();
            self.parallel(tasks, LEN, |_, _| {
                let operations = work();
                *done.lock().unwrap_or_else(PoisonError::into_inner) += operations;
            })?;
            let total = *done.lock().unwrap_or_else(PoisonError::into_inner);
            best = best.max(total / start.elapsed().as_secs_f64() / 1e9);
        }
        Ok(best)
    }

    /// Reads 2 GiB with all threads a few times; the fastest pass, in GB/s (10^9 bytes per second).
    ///
    /// # Errors
    /// `OutOfMemory`.
    pub fn measure_read_bandwidth(&self) -> Result<f64, BackendError> {
        let mut buffer = self.scratch().take(LEN)?;
        // Zero pages that were never written share one physical page; writing makes them real.
        buffer.fill(1.0);
        let mut best: f64 = 0.0;
        for _ in 0..=PASSES {
            let start = Instant::now();
            self.parallel(LEN / PIECE, LEN, |_, task| {
                std::hint::black_box(self.level().run(Sum(&buffer[task * PIECE..(task + 1) * PIECE])));
            })?;
            best = best.max((LEN * 4) as f64 / start.elapsed().as_secs_f64() / 1e9);
        }
        self.scratch().forget(buffer);
        Ok(best)
    }
}

/// Multiply-adds in registers.
struct MultiplyAdd;

impl Kernel for MultiplyAdd {
    type Output = f64;

    #[inline(always)]
    fn run<S: Simd>(self, s: S) -> f64 {
        let (factor, term) = (s.splat(std::hint::black_box(0.5)), s.splat(std::hint::black_box(0.25)));
        let mut sums = [s.splat(0.0); CHAINS];
        for _ in 0..ROUNDS {
            for sum in &mut sums {
                *sum = s.fma(*sum, factor, term);
            }
        }
        let mut all = sums[0];
        for sum in sums {
            all = s.add(all, sum);
        }
        std::hint::black_box(s.sum(all));
        (2 * ROUNDS * CHAINS * S::LANES) as f64
    }
}

/// Adds up values with enough sums at once to wait for memory only.
struct Sum<'a>(&'a [f32]);

impl Kernel for Sum<'_> {
    type Output = f32;

    #[inline(always)]
    fn run<S: Simd>(self, s: S) -> f32 {
        const CHAINS: usize = 8;
        let mut sums = [s.splat(0.0); CHAINS];
        for block in self.0.chunks_exact(CHAINS * S::LANES) {
            for (chain, sum) in sums.iter_mut().enumerate() {
                *sum = s.add(*sum, s.load(block, chain * S::LANES));
            }
        }
        sums.into_iter().map(|sum| s.sum(sum)).sum()
    }
}
