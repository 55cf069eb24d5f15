//! Finds, maps and checks checkpoint tensors; writes random checkpoints.
//!
//! [`SafetensorsDir`] maps the files, [`Checkpoint`] resolves the names of one model in them and checks shapes and
//! element types, [`check_finite`] reads every value once. Weights keep the format they are stored in; nothing here
//! computes with them.

mod checkpoint;
mod draft_schema;
mod error;
mod finite;
mod gguf;
mod index;
mod progress;
mod quantize;
mod random;
mod safetensors_dir;
mod schema;
mod source;
mod writer;

pub use checkpoint::{Checkpoint, HostWeight};
pub use draft_schema::{DraftNames, expected_draft_tensors};
pub use error::WeightsError;
pub use finite::check_finite;
pub use gguf::{GgufFormat, GgufOptions, GgufVocabulary, write_gguf};
pub use progress::{Progress, Stage};
pub use quantize::Quantize;
pub use random::{RandomOptions, StoredExperts, write_random_checkpoint, write_random_draft};
pub use safetensors_dir::SafetensorsDir;
pub use schema::{Expected, Layout, expected_tensors};
pub use source::{MemorySource, WeightSource};
pub use writer::{Sharding, TensorToWrite, write_tensors};
