//! Measured read bandwidth: the limit that decode is compared with.

use std::time::Instant;

use perilune_backend::BackendError;

use crate::CpuBackend;
use crate::simd::{Kernel, Simd};

/// Values of the buffer: 2 GiB, beyond the largest caches.
const LEN: usize = 1 << 29;
/// Values that one task reads.
const PIECE: usize = 1 << 20;
/// Passes after the first; the fastest counts.
const PASSES: usize = 4;

impl CpuBackend {
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
