//! Which device computes: one match arm and one [`Measured`] per backend.

use clap::ValueEnum;
use perilune_backend::Backend;
use perilune_cpu::{CpuBackend, CpuLimits, CpuOptions};

use crate::error::ServerError;

/// A device that can be asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum BackendKind {
    /// The processor.
    Cpu,
}

/// A backend as `bench` measures it.
pub trait Measured: Backend {
    /// What the device can do at most.
    ///
    /// # Errors
    /// Where the device refuses.
    fn limits(&self) -> Result<CpuLimits, ServerError>;
}

impl Measured for CpuBackend {
    fn limits(&self) -> Result<CpuLimits, ServerError> {
        Ok(self.measure_limits()?)
    }
}

/// What is done with a device once it is known which one it is.
pub trait WithBackend {
    /// What comes of it.
    type Output;
    /// The work.
    ///
    /// # Errors
    /// Whatever the work fails with.
    fn run<B: Measured>(self, backend: B) -> Result<Self::Output, ServerError>;
}

impl BackendKind {
    /// Memory for latents and states beyond which an arena does not grow by itself, of `memory_bytes` there are.
    pub fn wanted_cache_bytes(self, memory_bytes: usize) -> usize {
        match self {
            // Stored prefixes fill what they get, and the machine has other programs.
            BackendKind::Cpu => memory_bytes / 4,
        }
    }

    /// Host memory that prefixes evicted from the device may take where the operator says nothing.
    pub fn default_host_cache_bytes(self) -> usize {
        match self {
            // Its arena is host memory already; a copy beside it would only take room from it.
            BackendKind::Cpu => 0,
        }
    }

    /// Starts the device and hands it over.
    ///
    /// # Errors
    /// `Backend` where it cannot be started; what the work fails with.
    pub fn with<W: WithBackend>(self, threads: Option<usize>, work: W) -> Result<W::Output, ServerError> {
        match self {
            BackendKind::Cpu => work.run(CpuBackend::new(CpuOptions { threads, ..CpuOptions::default() })?),
        }
    }
}

/// Memory of a device in bytes; 0 where it cannot be asked.
pub fn device_memory_bytes(kind: BackendKind) -> u64 {
    struct Ask;
    impl WithBackend for Ask {
        type Output = u64;
        fn run<B: Measured>(self, backend: B) -> Result<u64, ServerError> {
            Ok(backend.info().memory_bytes as u64)
        }
    }
    kind.with(Some(1), Ask).unwrap_or(0)
}
