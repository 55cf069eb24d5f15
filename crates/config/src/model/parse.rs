//! From `config.json` to a [`ModelConfig`], refusing whatever the forward pass would get wrong.
//!
//! A missing optional key means that its feature is off (`kimi-k3.md` 1.3). Keys without an effect on the forward pass
//! are not read.

use std::path::Path;

use super::{
    ExpertStorage, FfnActivation, HeadKind, KdaDecay, KdaDims, LatentMoe, LatentNorm, LayerKind, MlaDims, ModelConfig,
    MoeDims, OutGateRank, OutputGate, RouterNorm, quantization,
};
use crate::ConfigError;
use crate::file::read_text;
use crate::generation::{token_id, token_ids};
use crate::keys::{Found, Keys, MAX_EXTENT, whole};

/// Most layers accepted.
const MAX_LAYERS: usize = 1024;
/// Most routed experts accepted.
const MAX_EXPERTS: usize = 1 << 14;
/// Most vocabulary entries accepted.
const MAX_VOCAB: usize = 1 << 24;

impl ModelConfig {
    /// Reads `config.json` of a checkpoint directory.
    ///
    /// # Errors
    /// `Io`, `Parse`, `Missing`, `Unsupported`.
    pub fn from_dir(dir: &Path) -> Result<Self, ConfigError> {
        Self::from_file(&dir.join("config.json"))
    }

    /// Reads a configuration file.
    ///
    /// # Errors
    /// As [`ModelConfig::from_dir`].
    pub fn from_file(path: &Path) -> Result<Self, ConfigError> {
        parse(path, &read_text(path)?)
    }

    /// Reads the text of a configuration file.
    ///
    /// # Errors
    /// As [`ModelConfig::from_dir`], without `Io`.
    pub fn from_json_str(text: &str) -> Result<Self, ConfigError> {
        parse(Path::new("config.json"), text)
    }
}

fn parse(path: &Path, text: &str) -> Result<ModelConfig, ConfigError> {
    let value = serde_json::from_str(text)
        .map_err(|error| ConfigError::Parse { path: path.to_owned(), reason: error.to_string() })?;
    let top = Keys::root(path, &value)?;
    top.one_of("model_type", &["kimi_k3", "kimi_linear"])?;
    let keys = top.child("text_config")?.unwrap_or(top);
    keys.one_of("model_type", &["kimi_k3", "kimi_linear"])?;
    refuse_unknown_features(&keys)?;
    for keys in [&top, &keys] {
        check_architectures(keys)?;
    }

    let vocab_size = whole(&keys.require(&["vocab_size"])?, 1, MAX_VOCAB)?;
    let token = |key| either(&top, &keys, key)?.map(|found| token_id(&found, vocab_size - 1)).transpose();
    token("pad_token_id")?;
    let ends = either(&top, &keys, "eos_token_id")?;
    let layers = layers(&keys)?;
    let config = ModelConfig {
        vocab_size,
        hidden_size: keys.extent(&["hidden_size"])?,
        rms_norm_eps: keys.positive(&["rms_norm_eps"])?,
        kda: kda(&keys)?,
        mla: mla(&keys)?,
        intermediate_size: keys.extent(&["intermediate_size"])?,
        moe: moe(&keys)?,
        activation: activation(&keys)?,
        attn_res_block_size: keys.optional_extent(&["attn_res_block_size"])?,
        head: head(&top, &keys)?,
        max_positions: max_positions(&keys)?,
        bos_token: token("bos_token_id")?,
        eos_tokens: ends.map_or(Ok(Vec::new()), |found| token_ids(&found, vocab_size - 1))?,
        experts_declared: experts_declared(&top, &keys)?,
        layers,
    };
    quantization::check_widths(&config, path)?;
    Ok(config)
}

/// Keys that would change the forward pass in a way nothing here implements.
fn refuse_unknown_features(keys: &Keys<'_>) -> Result<(), ConfigError> {
    let nope = keys.require(&["mla_use_nope"])?;
    if nope.value.as_bool() != Some(true) {
        return Err(nope.refuse("true is expected: rotary positions are not implemented"));
    }
    for key in ["rope_scaling", "rope_parameters"] {
        let Some(found) = keys.find(&[key])? else { continue };
        let kind = found.value.get("rope_type").or_else(|| found.value.get("type"));
        if !found.value.is_object() || kind.is_some_and(|kind| kind != "default") {
            return Err(found.refuse("null is expected: rotary positions are not implemented"));
        }
    }
    if keys.optional_count(&["num_nextn_predict_layers"])?.unwrap_or(0) != 0 {
        let found = keys.require(&["num_nextn_predict_layers"])?;
        return Err(found.refuse("0 is expected: multi-token prediction layers are not implemented"));
    }
    keys.one_of("moe_router_activation_func", &["sigmoid"])?;
    keys.one_of("topk_method", &["noaux_tc"])
}

/// The mixer of each layer from the two lists of 1-based layer numbers, which must partition the layers.
fn layers(keys: &Keys<'_>) -> Result<Vec<LayerKind>, ConfigError> {
    let num_layers = whole(&keys.require(&["num_hidden_layers"])?, 1, MAX_LAYERS)?;
    let lists = linear_attn(keys)?;
    let mut kinds: Vec<Option<LayerKind>> = vec![None; num_layers];
    for (key, kind) in [("kda_layers", LayerKind::Kda), ("full_attn_layers", LayerKind::Mla)] {
        let found = lists.require(&[key])?;
        let entries = found.value.as_array().ok_or_else(|| found.refuse("a list of layer numbers is expected"))?;
        for entry in entries {
            let here = Found { path: found.path, key: found.key.clone(), value: entry };
            let number = whole(&here, 1, num_layers)?;
            if kinds[number - 1].replace(kind).is_some() {
                return Err(here.refuse("each layer stands in one of kda_layers and full_attn_layers, once"));
            }
        }
    }
    let missing = kinds.iter().position(Option::is_none);
    kinds.into_iter().collect::<Option<Vec<_>>>().ok_or_else(|| ConfigError::Unsupported {
        path: keys.path().to_owned(),
        key: "linear_attn_config".into(),
        found: format!("without layer {}", missing.unwrap_or_default() + 1),
        rule: format!("each of the layers 1 to {num_layers} stands in kda_layers or full_attn_layers"),
    })
}

fn linear_attn<'a>(keys: &Keys<'a>) -> Result<Keys<'a>, ConfigError> {
    keys.require(&["linear_attn_config"])?;
    match keys.child("linear_attn_config")? {
        Some(child) => Ok(child),
        None => Err(keys.require(&["linear_attn_config"])?.refuse("an object is expected")),
    }
}

fn kda(keys: &Keys<'_>) -> Result<KdaDims, ConfigError> {
    let linear = linear_attn(keys)?;
    let decay = match linear.optional_number(&["gate_lower_bound"])? {
        None => KdaDecay::Softplus,
        Some((lower_bound, _)) if lower_bound < 0.0 => KdaDecay::Bounded { lower_bound },
        Some((_, found)) => return Err(found.refuse("a number below 0 is expected")),
    };
    let full_rank = linear.flag(&["use_full_rank_gate"])?.unwrap_or(false);
    let dims = KdaDims {
        num_heads: linear.extent(&["num_heads"])?,
        head_dim: linear.extent(&["head_dim"])?,
        conv_kernel: whole(&linear.require(&["short_conv_kernel_size"])?, 2, 16)?,
        decay,
        out_gate: if full_rank { OutGateRank::Full } else { OutGateRank::Low },
    };
    bounded(&linear.require(&["num_heads"])?, dims.width())?;
    Ok(dims)
}

fn mla(keys: &Keys<'_>) -> Result<MlaDims, ConfigError> {
    let num_heads = keys.extent(&["num_attention_heads"])?;
    if let Some(kv_heads) = keys.find(&["num_key_value_heads"])?
        && whole(&kv_heads, 1, MAX_EXTENT)? != num_heads
    {
        return Err(kv_heads.refuse(format!("it must equal num_attention_heads, {num_heads}")));
    }
    let gated = keys.flag(&["mla_use_output_gate"])?.unwrap_or(false);
    let dims = MlaDims {
        num_heads,
        q_lora_rank: keys.optional_extent(&["q_lora_rank"])?,
        kv_lora_rank: keys.extent(&["kv_lora_rank"])?,
        qk_nope_head_dim: keys.extent(&["qk_nope_head_dim"])?,
        qk_rope_head_dim: keys.extent(&["qk_rope_head_dim"])?,
        v_head_dim: keys.extent(&["v_head_dim"])?,
        output_gate: if gated { OutputGate::Sigmoid } else { OutputGate::Off },
    };
    let heads = keys.require(&["num_attention_heads"])?;
    bounded(&heads, dims.query_width())?;
    bounded(&heads, dims.expanded_width())?;
    Ok(dims)
}

/// Refuses a head count whose product with the head width leaves the accepted range.
fn bounded(heads: &Found<'_>, width: usize) -> Result<(), ConfigError> {
    if width <= MAX_EXTENT {
        Ok(())
    } else {
        Err(heads.refuse(format!("heads times head width is at most {MAX_EXTENT}")))
    }
}

fn moe(keys: &Keys<'_>) -> Result<Option<MoeDims>, ConfigError> {
    let Some(experts) = keys.find(&["num_experts", "num_local_experts"])? else { return Ok(None) };
    let num_experts = whole(&experts, 1, MAX_EXPERTS)?;
    let (num_groups, topk_groups) = groups(keys, num_experts)?;
    let chosen = keys.require(&["num_experts_per_token", "num_experts_per_tok"])?;
    let eligible = topk_groups * (num_experts / num_groups);
    let top_k = whole(&chosen, 1, eligible)?;
    let scale = keys.find(&["routed_scaling_factor"])?;
    let renormalize = keys.flag(&["moe_renormalize", "norm_topk_prob"])?.unwrap_or(true);
    let dims = MoeDims {
        num_experts,
        top_k,
        num_shared_experts: keys.optional_count(&["num_shared_experts", "n_shared_experts"])?.unwrap_or(0),
        intermediate_size: keys.extent(&["moe_intermediate_size"])?,
        latent: latent(keys)?,
        num_groups,
        topk_groups,
        renormalize: if renormalize { RouterNorm::Sum } else { RouterNorm::Off },
        routed_scaling_factor: if scale.is_some() { keys.positive(&["routed_scaling_factor"])? } else { 1.0 },
        first_layer: keys.optional_count(&["first_k_dense_replace"])?.unwrap_or(0),
        layer_freq: keys.optional_extent(&["moe_layer_freq"])?.unwrap_or(1),
    };
    if dims.num_shared_experts > 0 {
        bounded(&keys.require(&["num_shared_experts", "n_shared_experts"])?, dims.shared_width())?;
    }
    Ok(Some(dims))
}

fn groups(keys: &Keys<'_>, num_experts: usize) -> Result<(usize, usize), ConfigError> {
    if !keys.flag(&["use_grouped_topk"])?.unwrap_or(true) {
        return Ok((1, 1));
    }
    let Some(found) = keys.find(&["num_expert_group", "n_group"])? else { return Ok((1, 1)) };
    let num_groups = whole(&found, 1, num_experts)?;
    if !num_experts.is_multiple_of(num_groups) || (num_groups > 1 && num_experts / num_groups < 2) {
        return Err(found.refuse(format!("it must divide the {num_experts} experts into groups of at least two")));
    }
    let eligible = keys.find(&["topk_group"])?.map(|found| whole(&found, 1, num_groups)).transpose()?;
    Ok((num_groups, eligible.unwrap_or(num_groups)))
}

fn latent(keys: &Keys<'_>) -> Result<Option<LatentMoe>, ConfigError> {
    let normed = keys.flag(&["latent_moe_use_norm"])?.unwrap_or(false);
    let norm = if normed { LatentNorm::Rms } else { LatentNorm::Off };
    Ok(keys.optional_extent(&["routed_expert_hidden_size"])?.map(|width| LatentMoe { width, norm }))
}

/// The activation of feed-forward networks and its caps.
pub(crate) fn activation(keys: &Keys<'_>) -> Result<FfnActivation, ConfigError> {
    let found = keys.require(&["hidden_act"])?;
    match found.value.as_str() {
        Some("silu") => Ok(FfnActivation::Silu),
        Some("situ") => {
            let linear_beta = match keys.optional_number(&["activation_situ_linear_beta"])? {
                None => None,
                Some((cap, found)) if cap < 0.0 => {
                    return Err(found.refuse(format!("0, null or a number greater than 0 is expected, not {cap}")));
                }
                Some((cap, _)) => (cap > 0.0).then_some(cap),
            };
            Ok(FfnActivation::Situ { beta: keys.positive(&["activation_situ_beta"])?, linear_beta })
        }
        _ => Err(found.refuse("silu or situ is expected")),
    }
}

fn head(top: &Keys<'_>, keys: &Keys<'_>) -> Result<HeadKind, ConfigError> {
    let outer = top.flag(&["tie_word_embeddings"])?.unwrap_or(false);
    let tied = keys.flag(&["tie_word_embeddings"])?.unwrap_or(outer);
    Ok(if tied { HeadKind::Tied } else { HeadKind::Separate })
}

fn max_positions(keys: &Keys<'_>) -> Result<Option<usize>, ConfigError> {
    let found =
        keys.find(&["max_position_embeddings"])?.map_or_else(|| keys.find(&["model_max_length"]), |f| Ok(Some(f)))?;
    found.map(|found| whole(&found, 1, 1 << 32)).transpose()
}

/// The value under a key of the outer object, else of the text model.
fn either<'a>(top: &Keys<'a>, keys: &Keys<'a>, key: &str) -> Result<Option<Found<'a>>, ConfigError> {
    top.find(&[key])?.map_or_else(|| keys.find(&[key]), |found| Ok(Some(found)))
}

/// `architectures` only names classes of another library, but what is no list of names is no such file.
fn check_architectures(keys: &Keys<'_>) -> Result<(), ConfigError> {
    let Some(found) = keys.find(&["architectures"])? else { return Ok(()) };
    let names = found.value.as_array();
    match names {
        Some(names) if names.iter().all(|name| name.is_string()) => Ok(()),
        _ => Err(found.refuse("a list of names is expected")),
    }
}

fn experts_declared(top: &Keys<'_>, keys: &Keys<'_>) -> Result<ExpertStorage, ConfigError> {
    match quantization::read(keys)? {
        ExpertStorage::Plain => quantization::read(top),
        packed => Ok(packed),
    }
}
