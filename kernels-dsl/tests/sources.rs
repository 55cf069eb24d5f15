//! The one source of a kernel becomes CUDA C++ and HIP C++, without a device or a toolkit.

use std::sync::Arc;

use cubecl::prelude::*;
use cubecl_core::Compiler;
use cubecl_core::ir::features::Features;
use cubecl_core::ir::{
    AddressType, DeviceIdentity, DeviceProperties, HardwareProperties, MemoryDeviceProperties, TargetProperties,
};
use cubecl_cpp::shared::{CompilationOptions, CppCompiler};
use cubecl_cpp::target::{Cuda, Hip};
use perilune_kernels_dsl::Target;
use perilune_kernels_dsl::norm::{RmsNormProblem, rms_norm};

fn properties(target: Target) -> Arc<DeviceProperties> {
    let hardware = HardwareProperties {
        load_width: 128,
        vector_register_count: None,
        plane_size_min: target.plane as u32,
        plane_size_max: target.plane as u32,
        max_bindings: 32,
        max_shared_memory_size: 65536,
        max_cube_count: (u32::MAX, 65535, 65535),
        max_units_per_cube: target.max_units as u32,
        max_cube_dim: (1024, 1024, 64),
        num_streaming_multiprocessors: None,
        num_tensor_cores: None,
        min_tensor_cores_dim: None,
        num_cpu_cores: None,
        last_level_cache_size: None,
        max_vector_size: VectorSize::MAX,
        cube_mma_reserved_shared_memory: 0,
    };
    let identity = DeviceIdentity { name: "offline".into(), fingerprint: "offline".into(), physical: None };
    let memory = MemoryDeviceProperties::new(u64::MAX, 256);
    let timing = cubecl_core::profile::TimingMethod::Device;
    Arc::new(DeviceProperties::new(Features::default(), memory, hardware, timing, identity))
}

fn definition(target: Target) -> KernelDefinition {
    let plan = RmsNormProblem { rows: 4, width: 7168 }.plan(target);
    let cube = *CubeDim::new_1d(plan.geometry.units as u32);
    let settings = KernelSettings::new(cube, ExecutionMode::Unchecked, AddressType::U64);
    let buffer = || BufferCompilationArg { inplace: None };
    rms_norm::RmsNorm::new(
        settings,
        properties(target),
        Arc::new(TargetProperties::default()),
        buffer(),
        buffer(),
        buffer(),
        (),
        (),
        (),
        plan.vector,
        plan.geometry,
    )
    .define()
}

#[test]
fn cuda_source_uses_shuffles_barriers_and_wide_loads() {
    let options = CompilationOptions { warp_size: 32, ..Default::default() };
    let source = CppCompiler::<Cuda>::default().compile(definition(Target::CUDA), &options).unwrap().to_string();
    for part in ["__global__", "__shfl", "__syncthreads", "_4"] {
        assert!(source.contains(part), "`{part}` is missing from\n{source}");
    }
}

#[test]
fn hip_source_uses_shuffles_and_barriers() {
    let options = CompilationOptions { warp_size: 64, ..Default::default() };
    let source = CppCompiler::<Hip>::default().compile(definition(Target::HIP), &options).unwrap().to_string();
    for part in ["__global__", "__shfl", "__syncthreads"] {
        assert!(source.contains(part), "`{part}` is missing from\n{source}");
    }
}
