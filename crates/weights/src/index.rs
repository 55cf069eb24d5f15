//! Reads `model.safetensors.index.json`: which shard holds which tensor.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use serde_json::Value;

use crate::WeightsError;

/// Tensor names of each shard file.
pub(crate) type ShardNames = BTreeMap<String, BTreeSet<String>>;

/// The shards an index file names.
pub(crate) fn read(path: &Path) -> Result<ShardNames, WeightsError> {
    let fault = |reason: String| WeightsError::Index { path: path.to_owned(), reason };
    let text = std::fs::read_to_string(path).map_err(|source| WeightsError::Io { path: path.to_owned(), source })?;
    let value: Value = serde_json::from_str(&text).map_err(|error| fault(format!("not valid JSON: {error}")))?;
    let map = value.get("weight_map").and_then(Value::as_object);
    let map = map.ok_or_else(|| fault("`weight_map` must be an object".into()))?;
    let mut shards = ShardNames::new();
    for (tensor, file) in map {
        let file = file.as_str().ok_or_else(|| fault(format!("`weight_map.{tensor}` must be a file name")))?;
        let plain = Path::new(file).file_name().is_some_and(|name| name == file);
        if !plain {
            return Err(fault(format!("`weight_map.{tensor}` is {file:?}, expected a file name without a folder")));
        }
        shards.entry(file.to_owned()).or_default().insert(tensor.clone());
    }
    if shards.is_empty() {
        return Err(fault("`weight_map` is empty".into()));
    }
    Ok(shards)
}
