//! Every operation against the reference, and the law of equal bits, at each instruction set of this processor.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // all of it is test code

use perilune_cpu::{CpuBackend, CpuOptions, KdaPrefill, SimdLevel};

/// A backend of one level, or of the best available one where the processor does not have it.
fn backend(level: SimdLevel, threads: usize) -> CpuBackend {
    let simd = SimdLevel::available().contains(&level).then_some(level);
    if simd.is_none() {
        eprintln!("this processor has no {level:?}; the best level is tested instead");
    }
    CpuBackend::new(CpuOptions { simd, threads: Some(threads), ..CpuOptions::default() }).unwrap()
}

macro_rules! level {
    ($name:ident, $level:expr) => {
        mod $name {
            use super::*;
            perilune_conformance::conformance_tests!(backend($level, 2));
            perilune_conformance::bit_invariance_tests!(backend($level, 2));
        }
    };
}

level!(scalar, SimdLevel::Scalar);
#[cfg(target_arch = "x86_64")]
level!(avx2, SimdLevel::Avx2);
#[cfg(target_arch = "x86_64")]
level!(avx512, SimdLevel::Avx512);
#[cfg(target_arch = "x86_64")]
level!(amx, SimdLevel::Amx);
#[cfg(target_arch = "aarch64")]
level!(neon, SimdLevel::Neon);

mod one_thread {
    use super::*;
    perilune_conformance::bit_invariance_tests!(backend(SimdLevel::available().pop().unwrap(), 1));
}

/// The chunkwise form keeps the reference's tolerance; it does not promise equal bits.
#[test]
fn chunkwise_kda() {
    for simd in SimdLevel::available() {
        let options = CpuOptions { simd: Some(simd), kda_prefill: KdaPrefill::Chunkwise, ..CpuOptions::default() };
        perilune_conformance::check_kda(&CpuBackend::new(options).unwrap());
    }
}
