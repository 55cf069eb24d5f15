//! The native CPU backend: weights as they are stored, activations in `f32`, one parallel loop per operation. Products
//! take activations in the form that the hardware multiplies fastest ([`prepared`]): three bfloat16 parts on AMX tiles,
//! bytes for matrices of whole numbers, else `f32`.
//!
//! Law: the result of a row depends on that row and the history of its sequence alone, bit for bit, whatever the batch,
//! the chunking and the number of threads; only the SIMD level changes bits. Every reduction therefore has one order.
//! (`KdaPrefill::Chunkwise` is the one option that trades this law for another order of work.)
//!
//! One file per operation; [`simd`] is what they are written in, [`pool`] what runs them, [`tile`] and [`product`] the
//! inner loops of all matrix work.

// Tiles and what feeds them exist on x86-64 alone.
#![cfg_attr(not(target_arch = "x86_64"), allow(dead_code, unused_mut))]

mod activation;
mod backend;
mod byte_rows;
mod cores;
mod draft;
mod draft_attend;
mod embed;
mod int_product;
#[cfg(target_arch = "x86_64")]
mod int_tiles;
mod kda;
mod kda_chunk;
mod kda_head;
mod kda_recurrence;
mod kda_replay;
mod limits;
mod linear;
mod matrix;
mod memory;
mod mla;
mod mla_attend;
mod moe;
mod norm;
mod pool;
mod prepared;
mod product;
mod residual;
mod route;
mod runs;
mod sample;
mod scratch;
mod select;
mod simd;
#[cfg(target_arch = "x86_64")]
mod split;
mod tensor;
mod tile;
#[cfg(target_arch = "x86_64")]
mod tile_decode;
#[cfg(target_arch = "x86_64")]
mod tile_product;

pub use backend::{CpuBackend, CpuOptions, KdaPrefill};
pub use limits::CpuLimits;
pub use pool::Pinning;
pub use simd::SimdLevel;
pub use tensor::CpuTensor;
