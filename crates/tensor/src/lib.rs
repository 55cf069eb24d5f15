//! What a tensor is before it has a device: shape, element type, storage format, and bytes on the host.
//!
//! Nothing here computes. Operations live behind `perilune_backend::Backend`.

mod dtype;
mod host;
mod shape;
mod token;
mod token_mask;

pub use dtype::{DType, INT_FEATURES, INT_GROUP, MXFP4_GROUP, QuantFormat};
pub use host::{HostBytes, HostTensor};
pub use shape::{Shape, TensorSpec};
pub use token::TokenId;
pub use token_mask::TokenMask;
