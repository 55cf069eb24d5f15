//! The constant part of every kernel's definition: a description of the target in CubeCL's words.

use std::sync::Arc;

use cubecl::prelude::*;
use cubecl_core::ir::features::Features;
use cubecl_core::ir::{DeviceIdentity, DeviceProperties, HardwareProperties, MemoryDeviceProperties, TargetProperties};

use crate::{Geometry, Target};

/// What a kernel's constructor takes before its own arguments.
pub struct Builder {
    properties: Arc<DeviceProperties>,
}

impl Builder {
    /// For a target.
    pub fn new(target: Target) -> Builder {
        let plane = target.plane as u32;
        let hardware = HardwareProperties {
            load_width: 128,
            vector_register_count: None,
            plane_size_min: plane,
            plane_size_max: plane,
            max_bindings: 32,
            max_shared_memory_size: 65536,
            max_cube_count: (i32::MAX as u32, 65535, 65535),
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
        let properties = DeviceProperties::new(Features::default(), memory, hardware, timing, identity);
        Builder { properties: Arc::new(properties) }
    }

    /// Settings, device and target of a kernel: 64-bit offsets, no bounds checks, a one-dimensional cube.
    pub fn parts(&self, geometry: Geometry) -> (KernelSettings, Arc<DeviceProperties>, Arc<TargetProperties>) {
        let cube = *CubeDim::new_1d(geometry.units as u32);
        let settings = KernelSettings::new(cube, ExecutionMode::Unchecked, cubecl_core::ir::AddressType::U64);
        (settings, self.properties.clone(), Arc::new(TargetProperties::default()))
    }

    /// A buffer argument.
    pub fn buffer() -> BufferCompilationArg {
        BufferCompilationArg { inplace: None }
    }
}
