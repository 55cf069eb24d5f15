//! A tensor in device memory.

use std::sync::Arc;

use perilune_backend::DeviceTensor;
use perilune_tensor::TensorSpec;

use crate::{Driver, Region};

/// A tensor on a [`Driver`]'s device.
pub struct GpuTensor<D: Driver> {
    spec: TensorSpec,
    /// Keeps the allocation alive.
    memory: Arc<D::Memory>,
    region: Region,
}

impl<D: Driver> GpuTensor<D> {
    pub(crate) fn new(spec: TensorSpec, memory: Arc<D::Memory>, region: Region) -> GpuTensor<D> {
        GpuTensor { spec, memory, region }
    }

    /// Where its elements lie; exactly as many bytes as the elements take.
    pub fn region(&self) -> Region {
        self.region
    }
}

impl<D: Driver> std::fmt::Debug for GpuTensor<D> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "GpuTensor({} in {:?})", self.spec, self.memory)
    }
}

impl<D: Driver> DeviceTensor for GpuTensor<D> {
    fn spec(&self) -> &TensorSpec {
        &self.spec
    }
}
