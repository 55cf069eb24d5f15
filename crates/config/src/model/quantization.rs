//! Reads `quantization_config`: the one format of packed experts there is, or a refusal.
//!
//! Source: `kimi-k3.md` 2.4. Which tensors are packed is not read from here; the loader sees it in the checkpoint.

use std::path::Path;

use serde_json::json;

use super::{ExpertStorage, ModelConfig};
use crate::ConfigError;
use crate::keys::Keys;

const FORMAT: &str = "mxfp4-pack-quantized";

/// The declared storage of the routed experts.
pub(super) fn read(keys: &Keys<'_>) -> Result<ExpertStorage, ConfigError> {
    let Some(quant) = keys.child("quantization_config")? else { return Ok(ExpertStorage::Plain) };
    quant.require(&["quant_method"])?;
    quant.one_of("quant_method", &["compressed-tensors"])?;
    quant.require(&["format"])?;
    quant.one_of("format", &[FORMAT])?;
    if let Some(found) = quant.find(&["kv_cache_scheme"])? {
        return Err(found.refuse("null is expected: the cache is not quantised by the checkpoint"));
    }
    if let Some(groups) = quant.find(&["config_groups"])? {
        let map = groups.value.as_object().ok_or_else(|| groups.refuse("an object is expected"))?;
        for group in map.values() {
            check_weights(group).map_err(|(key, rule)| groups.refuse(format!("`weights.{key}` must be {rule}")))?;
        }
    }
    Ok(ExpertStorage::Mxfp4)
}

/// What the scheme must say where it says anything.
fn check_weights(group: &serde_json::Value) -> Result<(), (&'static str, &'static str)> {
    let rules = [
        ("num_bits", json!(4), "4"),
        ("type", json!("float"), "float"),
        ("strategy", json!("group"), "group"),
        ("group_size", json!(32), "32"),
        ("symmetric", json!(true), "true"),
        ("dynamic", json!(false), "false"),
    ];
    let Some(weights) = group.get("weights") else { return Ok(()) };
    for (key, wanted, rule) in rules {
        if weights.get(key).is_some_and(|value| *value != wanted) {
            return Err((key, rule));
        }
    }
    Ok(())
}

/// MXFP4 needs whole groups of 32 input columns in all three expert matrices.
pub(super) fn check_widths(config: &ModelConfig, path: &Path) -> Result<(), ConfigError> {
    let (ExpertStorage::Mxfp4, Some(moe)) = (config.experts_declared, config.moe) else { return Ok(()) };
    let latent_key = if moe.latent.is_some() { "routed_expert_hidden_size" } else { "hidden_size" };
    let widths = [(latent_key, config.expert_width()), ("moe_intermediate_size", moe.intermediate_size)];
    for (key, width) in widths {
        if !width.is_multiple_of(perilune_tensor::MXFP4_GROUP) {
            return Err(ConfigError::Unsupported {
                path: path.to_owned(),
                key: key.into(),
                found: width.to_string(),
                rule: "MXFP4 experts need a multiple of 32".into(),
            });
        }
    }
    Ok(())
}
