//! The contract between model code and devices: operations cut where the best kernels fuse.
//!
//! A backend implements [`Backend`]; everything above it is device-independent. Each operation takes one struct with
//! named, shape-documented fields whose `dims()` checks all shapes once for every backend. Operations enqueue and never
//! allocate device memory: outputs, workspaces and states belong to the caller. Faults surface at [`Download::wait`] or
//! [`Backend::synchronize`].
//!
//! Letters in shapes: `N` token rows of the step, `H` hidden size, `V` vocabulary, `P = heads * head_dim` of KDA,
//! `A` MLA heads, `C` latent rank, `E` experts, `K` experts per token, `S` segments.

mod arena;
mod backend;
mod batch;
mod check;
mod device;
mod distribution;
mod draft;
mod error;
mod experts;
mod graph;
mod kda;
mod mla;
mod random;
mod replay;
mod sample;
mod token_wise;
mod weight;

pub use arena::{Snapshots, UnitLayout, check_elements};
pub use backend::Backend;
pub use batch::{BlockTables, Segments};
pub use device::{DeviceInfo, DeviceTensor, Download};
pub use distribution::distribution;
pub use draft::{
    BlockMask, DraftAppend, DraftAttend, DraftAttention, DraftHeads, DraftPages, GroupedHeads, Pairing, RotaryTable,
};
pub use error::BackendError;
pub use experts::{Expert, MoeExperts, MoeExpertsDims, MoeRoute, MoeRouteDims, Renormalize};
pub use graph::{NoGraph, StepGraph};
pub use kda::{Kda, KdaDims, KdaGate, KdaParams};
pub use mla::{Mla, MlaDims, MlaParams};
pub use random::{RandomStream, uniform, uniform_of};
pub use replay::{KdaFold, KdaVerify};
pub use sample::{Choice, Penalties, RowDistribution, Sample, SampleRow, SampledRow, TokenCount, TopLogprob};
pub use token_wise::{
    Activation, AttnResidual, Embed, GatedAct, Linear, LinearDims, LinearPart, RmsNorm, SelectRows, Write,
};
pub use weight::Weight;
