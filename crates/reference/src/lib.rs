//! The meaning of each operation as plain f32 loops.
//!
//! Written to be read beside the model's specification, not to be fast: every backend is tested against these functions.
//! Rows are slices, row-major; weights are `[out, in]`. Nothing here allocates cleverly, runs in parallel or knows a
//! backend.

pub mod activation;
pub mod draft;
pub mod int_groups;
pub mod kda;
pub mod kda_chunk;
pub mod kda_replay;
pub mod linear;
pub mod mla;
pub mod moe;
pub mod mxfp4;
pub mod norm;
pub mod residual;
pub mod sample;
