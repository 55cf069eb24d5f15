//! NVIDIA GPUs: `perilune_gpu`'s functions on CUDA's driver library.
//!
//! The library is loaded when a device is opened, so a program with this crate starts on machines without it. No toolkit is
//! needed, to build or to run: kernels are binaries.

mod api;
mod device;
mod error;

pub use api::CudaApi;
pub use device::open;
pub use error::CudaError;
