//! The one source of a kernel becomes CUDA C++ and HIP C++, without a device or a toolkit, and its argument layout is
//! what a launcher expects.
#![cfg(feature = "compile")]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // all of it is test code

use perilune_kernels_dsl::catalogue::{Shapes, variants};
use perilune_kernels_dsl::compile::{KernelSource, source};
use perilune_kernels_dsl::norm::RmsNormProblem;
use perilune_kernels_dsl::{Access, Lengths, ScalarGroup, ScalarType, Target};

fn rms_norm(target: Target) -> KernelSource {
    source(&RmsNormProblem { rows: 4, width: 7168 }.plan(target).kernel(), target).unwrap()
}

#[test]
fn cuda_source_uses_shuffles_barriers_and_wide_loads() {
    let kernel = rms_norm(Target::CUDA);
    for part in ["__global__", "__shfl", "__syncthreads", "float_4", "__grid_constant__"] {
        assert!(kernel.text.contains(part), "`{part}` is missing from\n{}", kernel.text);
    }
}

#[test]
fn hip_source_uses_shuffles_and_barriers() {
    let kernel = rms_norm(Target::HIP);
    // The structure of scalars is a value: a pointer would have to stay filled as long as a recorded launch is replayed.
    for part in ["__global__", "__shfl", "__syncthreads", "info_st const info_argument)"] {
        assert!(kernel.text.contains(part), "`{part}` is missing from\n{}", kernel.text);
    }
}

#[test]
fn layout_of_arguments() {
    let kernel = rms_norm(Target::CUDA);
    assert_eq!((kernel.units, kernel.plane, kernel.shared_bytes), (256, 32, 32));
    assert_eq!(kernel.abi.buffers, [Access::Read, Access::Read, Access::Write]);
    let sizes = ScalarGroup { scalar_type: ScalarType::U64, count: 1, offset: 0 };
    let floats = ScalarGroup { scalar_type: ScalarType::F32, count: 2, offset: 8 };
    assert_eq!(kernel.abi.scalars, [sizes, floats]);
    assert_eq!(kernel.abi.lengths, Some(Lengths { count: 3, offset: 16 }));
    assert_eq!(kernel.abi.info_bytes, 40);
}

#[test]
fn every_kernel_of_the_catalogue_becomes_cuda_and_hip() {
    let models = Shapes::known().unwrap();
    for target in [Target::CUDA, Target::HIP] {
        for variant in variants(&models, target) {
            let kernel = source(&variant, target).unwrap_or_else(|e| panic!("{e}"));
            assert_eq!(kernel.units % target.plane, 0, "{variant}");
            assert!(kernel.shared_bytes <= 64 << 10, "{variant}: {} bytes of shared memory", kernel.shared_bytes);
        }
    }
}
