//! Writes tensors as safetensors: one file, or shards of limited size with an index.
//!
//! Contents are made one tensor at a time while writing, so that a checkpoint larger than memory can be written.

use std::borrow::Cow;
use std::path::Path;

use perilune_tensor::{DType, TensorSpec};
use safetensors::{Dtype, View};
use serde_json::{Map, Value, json};

use crate::WeightsError;
use crate::safetensors_dir::{INDEX_FILE, SINGLE_FILE};

/// Makes the bytes of one tensor; called once, when it is its turn.
pub(crate) type MakeBytes<'a> = Box<dyn Fn() -> Vec<u8> + 'a>;

/// A tensor to write.
pub struct TensorToWrite<'a> {
    /// Name in the checkpoint.
    pub name: String,
    /// Shape and element type.
    pub spec: TensorSpec,
    /// Makes little-endian bytes, exactly as many as `spec` needs.
    pub bytes: MakeBytes<'a>,
}

/// How a checkpoint is divided into files.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sharding {
    /// One file.
    Single,
    /// Files of at most this many bytes of tensors (more only where one tensor alone is larger), with an index.
    UpTo {
        /// Bytes.
        bytes: u64,
    },
}

/// Writes a checkpoint into an existing directory.
///
/// # Errors
/// `Io` where a file cannot be written.
pub fn write_tensors(tensors: Vec<TensorToWrite<'_>>, sharding: Sharding, dir: &Path) -> Result<(), WeightsError> {
    let Sharding::UpTo { bytes } = sharding else { return write_file(&dir.join(SINGLE_FILE), &tensors) };
    let total: usize = tensors.iter().map(|tensor| tensor.spec.size_bytes()).sum();
    let shards = divide(tensors, bytes);
    let mut map = Map::new();
    for (at, shard) in shards.iter().enumerate() {
        let file = format!("model-{:05}-of-{:05}.safetensors", at + 1, shards.len());
        write_file(&dir.join(&file), shard)?;
        map.extend(shard.iter().map(|tensor| (tensor.name.clone(), Value::from(file.as_str()))));
    }
    let index = json!({ "metadata": { "total_size": total }, "weight_map": map });
    let path = dir.join(INDEX_FILE);
    std::fs::write(&path, index.to_string()).map_err(|source| WeightsError::Io { path, source })
}

/// Fills shards in order.
fn divide(tensors: Vec<TensorToWrite<'_>>, limit: u64) -> Vec<Vec<TensorToWrite<'_>>> {
    let mut shards: Vec<Vec<TensorToWrite<'_>>> = Vec::new();
    let mut room = 0;
    for tensor in tensors {
        let size = tensor.spec.size_bytes() as u64;
        match shards.last_mut() {
            Some(shard) if size <= room => shard.push(tensor),
            _ => {
                shards.push(vec![tensor]);
                room = limit;
            }
        }
        room = room.saturating_sub(size);
    }
    shards
}

fn write_file(path: &Path, tensors: &[TensorToWrite<'_>]) -> Result<(), WeightsError> {
    let views = tensors.iter().map(|tensor| (tensor.name.as_str(), LazyView(tensor)));
    safetensors::serialize_to_file(views, None, path).map_err(|error| WeightsError::Io {
        path: path.to_owned(),
        source: match error {
            safetensors::SafeTensorError::IoError(source) => source,
            other => std::io::Error::other(other.to_string()),
        },
    })
}

struct LazyView<'a>(&'a TensorToWrite<'a>);

impl View for LazyView<'_> {
    fn dtype(&self) -> Dtype {
        match self.0.spec.dtype {
            DType::F32 => Dtype::F32,
            DType::Bf16 => Dtype::BF16,
            DType::F16 => Dtype::F16,
            DType::U32 => Dtype::U32,
            DType::U8 => Dtype::U8,
        }
    }

    fn shape(&self) -> &[usize] {
        self.0.spec.shape.dims()
    }

    fn data(&self) -> Cow<'_, [u8]> {
        Cow::Owned((self.0.bytes)())
    }

    fn data_len(&self) -> usize {
        self.0.spec.size_bytes()
    }
}
