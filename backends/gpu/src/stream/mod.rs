//! The [`Driver`](crate::Driver) of everything that has streams, events and graphs in the manner of CUDA and HIP.
//!
//! A vendor's crate is a table of functions, [`StreamApi`]; order of frees, staging of results, packing of parameters and
//! recordings are here, once, and tested without a device.

mod api;
mod driver;
#[cfg(test)]
mod fake;
mod owned;
mod staging;

pub use api::{ApiError, Handle, LoadedKernel, RawLaunch, StreamApi};
pub use driver::StreamDriver;
pub use owned::{StreamEvent, StreamFunction, StreamMemory, StreamRecording};
