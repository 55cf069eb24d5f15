//! Checks of a GPU and its kernels: conformance, the tiny models, and how near kernels come to a plain copy.
//!
//! `tests/gpu/run` builds and calls it. On a machine without a GPU `--backend emulator` goes the same way at small sizes,
//! and `kernels` lists and writes what the checks launch, so that binaries can be built elsewhere.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // it is a test, and ends with what it found

mod checks;
mod device;
mod models;
mod options;
mod recorded;
mod table;

use std::process::ExitCode;

use anyhow::Result;
use perilune_gpu::{Driver, Gpu, Kernels};

use options::{Options, Size, What};

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("gpu-checks: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<()> {
    let options = Options::parse(std::env::args().skip(1))?;
    match &options.what {
        What::Kernels { out } => recorded::write(out),
        What::Traffic => recorded::traffic(),
        What::Checks { backend, kernels } => device::with(backend, kernels.as_deref(), Checks { size: options.size }),
    }
}

/// Everything, on whichever device.
struct Checks {
    size: Size,
}

impl device::OnDevice for Checks {
    fn run<D: Driver>(self, open: impl Fn() -> Result<D>, kernels: impl Kernels + Clone) -> Result<()> {
        let gpu = || Ok::<_, anyhow::Error>(Gpu::new(open()?, kernels.clone()));
        println!("device: {}", gpu()?.driver().info().name);
        checks::run(&gpu()?, self.size)?;
        models::run(&gpu, self.size)?;
        table::run(&gpu()?, self.size)
    }
}
