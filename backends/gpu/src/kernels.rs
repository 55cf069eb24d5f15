//! Where compiled kernels come from.

use std::sync::Arc;

use perilune_backend::BackendError;
use perilune_kernels_dsl::{Target, Variant};

use crate::KernelEntry;

/// A compiled kernel: how to launch it, and its code in whatever form the driver loads.
#[derive(Debug, Clone)]
pub struct Artifact {
    /// What the manifest says of it.
    pub entry: KernelEntry,
    /// A CUDA or HIP binary; for the emulator, CUDA C++.
    pub code: Arc<[u8]>,
}

/// A source of compiled kernels: a folder that was built before, or a compiler.
pub trait Kernels: Send + Sync + 'static {
    /// The kernel of a variant for a target.
    ///
    /// # Errors
    /// `Unsupported` where the kernel was not built.
    fn find(&self, variant: &Variant, target: Target) -> Result<Artifact, BackendError>;
}
