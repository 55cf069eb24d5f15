//! placeholder
use std::sync::Arc;

use cubecl::prelude::*;
use cubecl_core::Compiler;
use cubecl_core::ir::features::Features;
use cubecl_core::ir::{
    AddressType, DeviceIdentity, DeviceProperties, HardwareProperties, MemoryDeviceProperties, TargetProperties,
};
use cubecl_cpp::shared::{CompilationOptions, CppCompiler, CppSupportedFeatures};
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

fn main() {
    let out = std::path::PathBuf::from(std::env::args().nth(2).unwrap());
    for family in ["cuda", "hip"] {
        std::fs::create_dir_all(out.join(family)).unwrap();
        let supports_features = CppSupportedFeatures { grid_constants: family == "cuda", ..Default::default() };
        let (text, shared, ext, units) = if family == "cuda" {
            let d = definition(Target::CUDA);
            println!("{:?}", d.info);
            let o = CompilationOptions { warp_size: 32, supports_features, ..Default::default() };
            let k = CppCompiler::<Cuda>::default().compile(d, &o).unwrap();
            (k.source, k.shared_memory_size, "cu", 256)
        } else {
            let d = definition(Target::HIP);
            let o = CompilationOptions { warp_size: 64, supports_features, ..Default::default() };
            let k = CppCompiler::<Hip>::default().compile(d, &o).unwrap();
            (k.source, k.shared_memory_size, "hip", 256)
        };
        let file = format!("{family}/rms_norm.{ext}");
        std::fs::write(out.join(&file), &text).unwrap();
        let list = serde_json::json!([{"name": "rms_norm", "source": file, "units": units, "shared_bytes": shared}]);
        std::fs::write(out.join(format!("{family}.json")), list.to_string()).unwrap();
    }
}
