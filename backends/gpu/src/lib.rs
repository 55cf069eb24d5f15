//! The [`perilune_backend::Backend`] trait over kernels that were compiled ahead of time.
//!
//! Four layers, each of which a reader can take alone: [`Driver`] is what a vendor's library offers in about ten methods;
//! [`Manifest`] says of each compiled kernel how it is launched; the launcher packs arguments and checks them against the
//! manifest; the operations (one file each) turn an operation into a problem, the problem into a plan
//! (`perilune-kernels-dsl`), and the plan into launches.
//!
//! Nothing here knows CUDA, HIP or CubeCL.

mod arena;
mod backend;
mod driver;
mod folder;
mod host_sample;
mod kernels;
mod launcher;
mod manifest;
mod memory;
mod ops;
mod recording;
mod scratch;
pub mod stream;
mod tables;
mod tensor;

pub use backend::Gpu;
pub use driver::{Cubes, Driver, DriverInfo, Launch, Region};
pub use folder::{Folder, FolderError};
pub use kernels::{Artifact, Kernels};
pub use manifest::{KernelEntry, Manifest, ManifestError};
pub use recording::GpuGraph;
pub use tensor::GpuTensor;
