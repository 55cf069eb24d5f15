//! Which device computes: one match arm and one [`Measured`] per backend.

use std::path::Path;

use clap::ValueEnum;
use perilune_backend::Backend;
use perilune_cpu::{CpuBackend, CpuLimits, CpuOptions};

use crate::error::ServerError;
use crate::gpu;

/// A device that can be asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum BackendKind {
    /// The processor.
    Cpu,
    /// An NVIDIA GPU.
    Cuda,
    /// An AMD GPU.
    Hip,
}

/// What the operator says of the device.
#[derive(Debug, Clone, Copy, Default)]
pub struct DeviceOptions<'a> {
    /// Threads that compute on a CPU; `None` for all cores.
    pub threads: Option<usize>,
    /// Folder of a GPU's kernels.
    pub kernels: Option<&'a Path>,
    /// Folder of the model that will run, where it is known: its kernels are looked for at once.
    pub model: Option<&'a Path>,
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
            BackendKind::Cuda | BackendKind::Hip => memory_bytes,
        }
    }

    /// Host memory that prefixes evicted from the device may take where the operator says nothing: a quarter of it.
    pub fn default_host_cache_bytes(self) -> usize {
        match self {
            // Its arena is host memory already, and may take that quarter itself; a copy beside it would only take room
            // from it.
            BackendKind::Cpu => 0,
            BackendKind::Cuda | BackendKind::Hip => device_memory_bytes(BackendKind::Cpu) as usize / 4,
        }
    }

    /// Starts the device and hands it over.
    ///
    /// # Errors
    /// `Flag` and `Backend` where it cannot be started; what the work fails with.
    pub fn with<W: WithBackend>(self, device: DeviceOptions<'_>, work: W) -> Result<W::Output, ServerError> {
        match self {
            BackendKind::Cpu => work.run(cpu(device)?),
            BackendKind::Cuda => gpu::with_cuda(device, work),
            BackendKind::Hip => gpu::with_hip(device, work),
        }
    }
}

fn cpu(device: DeviceOptions<'_>) -> Result<CpuBackend, ServerError> {
    if let Some(kernels) = device.kernels {
        let (flag, value) = ("--kernels", kernels.display().to_string());
        return Err(ServerError::Flag { flag, value, rule: "--backend cpu has none to load".into() });
    }
    Ok(CpuBackend::new(CpuOptions { threads: device.threads, ..CpuOptions::default() })?)
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
    kind.with(DeviceOptions { threads: Some(1), ..DeviceOptions::default() }, Ask).unwrap_or(0)
}
