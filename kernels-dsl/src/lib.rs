//! GPU kernels, written once in CubeCL and compiled ahead of time for CUDA and HIP.
//!
//! Each operation has the split problem → plan → kernel: the *problem* is the sizes of one call, the *plan* a pure,
//! unit-tested choice of geometry for a target, the kernel takes the plan as a compile-time value. CubeCL's words
//! (cube, plane, unit) stay in this folder. Nothing here depends on other crates of the project.

pub mod norm;
mod reduce;
mod target;

pub use reduce::Geometry;
pub use target::Target;
