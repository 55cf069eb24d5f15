//! Kernels compiled from their source when they are first asked for.

use perilune_backend::BackendError;
use perilune_gpu::{Artifact, KernelEntry, Kernels};
use perilune_kernels_dsl::compile::source;
use perilune_kernels_dsl::{Target, Variant};

/// Every kernel, from CubeCL to CUDA C++ on demand.
#[derive(Debug, Clone, Copy, Default)]
pub struct OnDemand;

impl Kernels for OnDemand {
    fn find(&self, variant: &Variant, target: Target) -> Result<Artifact, BackendError> {
        let kernel = source(variant, target).map_err(|e| BackendError::Device(e.to_string()))?;
        let entry = KernelEntry {
            sha256: String::new(),
            file: format!("{}.cu", kernel.name),
            name: kernel.name,
            entry: kernel.entry,
            units: kernel.units,
            plane: kernel.plane,
            shared_bytes: kernel.shared_bytes,
            abi: kernel.abi,
        };
        Ok(Artifact { entry, code: kernel.text.into_bytes().into() })
    }
}
