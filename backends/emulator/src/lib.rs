//! A GPU driver for tests: generated CUDA C++ compiled by the system's C++ compiler, the threads of a block run as fibers.
//!
//! It executes the text that a device compiler would get, behind the same driver and argument layout as a device, at any
//! plane width, and finds what a device would hide: units that diverge at a barrier or in a shuffle, accesses outside of
//! a launch's buffers or out of alignment, races on shared memory. `device/runtime.cpp` says how. Slow by design.
#![cfg(unix)]

mod compiler;
mod driver;
mod dsl;
mod memory;
mod native;
mod recording;
mod traffic;

pub use compiler::{CompilerError, compiler_available};
pub use driver::{Emulator, EmulatorOptions};
pub use dsl::OnDemand;
pub use recording::EmulatedGraph;
pub use traffic::Traffic;
