//! GPU kernels, written once in CubeCL and compiled ahead of time for CUDA and HIP.
//!
//! Each operation has the split problem → plan → kernel: the *problem* is the sizes of one call, the *plan* a pure,
//! unit-tested choice of geometry for a target, the kernel takes the plan's [`Variant`] as compile-time values.
//! CubeCL's words (cube, plane, unit) stay in this folder. Nothing here depends on other crates of the project.
//!
//! Without features the crate has no dependency: problems, plans, and the names under which a launcher finds compiled
//! kernels. `catalogue` lists what a model needs; with `compile`, [`compile::source`] turns a [`Variant`] into CUDA or HIP
//! C++ (`docs/adr/0005`).

mod abi;
pub mod attn_residual;
#[cfg(feature = "catalogue")]
pub mod catalogue;
#[cfg(feature = "compile")]
pub mod compile;
mod element;
pub mod gated_act;
pub mod gather;
pub mod kda;
pub mod linear;
#[cfg(feature = "compile")]
mod math;
pub mod mla;
pub mod moe_experts;
pub mod moe_route;
pub mod norm;
#[cfg(feature = "compile")]
mod reduce;
mod target;
mod variant;

pub use abi::{Abi, Access, Lengths, Scalar, ScalarGroup, ScalarType};
pub use element::{Element, Weights};
pub use target::{Dialect, Geometry, Target};
pub use variant::Variant;
