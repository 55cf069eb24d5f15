//! AMD GPUs: `perilune_gpu`'s functions on HIP's run-time library.
//!
//! The library is loaded when a device is opened, so a program with this crate starts on machines without it. No toolkit is
//! needed, to build or to run: kernels are binaries. `docs/adr/0016` says why the functions are declared here.

mod api;
mod device;
mod error;
mod library;

pub use api::HipApi;
pub use device::open;
pub use error::HipError;
