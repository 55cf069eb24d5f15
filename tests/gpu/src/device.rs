//! Which device the checks run on.

use std::path::Path;

use anyhow::{Result, bail};
use perilune_gpu::{Driver, Kernels};

/// Work for a device that may be opened several times.
pub(crate) trait OnDevice {
    /// Does it.
    fn run<D: Driver>(self, open: impl Fn() -> Result<D>, kernels: impl Kernels + Clone) -> Result<()>;
}

/// Runs `work` on the backend of this name.
pub(crate) fn with(backend: &str, kernels: Option<&Path>, work: impl OnDevice) -> Result<()> {
    match (backend, kernels) {
        #[cfg(feature = "cuda")]
        ("cuda", Some(folder)) => on(|| Ok(perilune_cuda::open(0)?), folder, work),
        #[cfg(feature = "hip")]
        ("hip", Some(folder)) => on(|| Ok(perilune_hip::open(0)?), folder, work),
        #[cfg(feature = "emulator")]
        ("emulator", None) => work.run(|| emulator(32), perilune_emulator::OnDemand),
        ("cuda" | "hip", None) => bail!("--backend {backend} needs --kernels DIR"),
        _ => {
            let _ = work;
            bail!("backend `{backend}` is unknown, was left out of this build, or takes no --kernels")
        }
    }
}

#[cfg(any(feature = "cuda", feature = "hip"))]
fn on<D: Driver>(open: impl Fn() -> Result<D>, folder: &Path, work: impl OnDevice) -> Result<()> {
    let architecture = open()?.info().architecture.clone();
    let kernels = perilune_gpu::Folder::open(folder, &architecture)?;
    work.run(open, kernels)
}

/// An emulator that keeps what it compiled.
#[cfg(feature = "emulator")]
pub(crate) fn emulator(plane: usize) -> Result<perilune_emulator::Emulator> {
    let cache = std::env::temp_dir().join("perilune-gpu-checks");
    Ok(perilune_emulator::Emulator::new(perilune_emulator::EmulatorOptions { plane, seed: 1, cache })?)
}
