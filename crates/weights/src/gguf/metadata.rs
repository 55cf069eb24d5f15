//! What a file says of its model.

use perilune_config::{
    FfnActivation, KdaDecay, LatentNorm, LayerKind, ModelConfig, OutGateRank, OutputGate, RouterNorm,
};

use super::GgufVocabulary;
use super::container::Value;
use crate::WeightsError;

/// The architectures that can be expressed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Architecture {
    KimiLinear,
    KimiK3,
}

impl Architecture {
    fn name(self) -> &'static str {
        match self {
            Architecture::KimiLinear => "kimi-linear",
            Architecture::KimiK3 => "kimi-k3",
        }
    }
}

/// Which architecture a model has there.
///
/// # Errors
/// `Gguf` where it mixes features of both, or has one that neither has.
pub(crate) fn architecture(config: &ModelConfig) -> Result<Architecture, WeightsError> {
    let refuse = |what: &'static str| Err(WeightsError::Gguf { what });
    let Some(moe) = &config.moe else { return refuse("its models have experts, this one has none") };
    if moe.num_groups != 1 || moe.layer_freq != 1 {
        return refuse("its experts are not grouped, and every layer after the dense ones has them");
    }
    let situ = matches!(config.activation, FfnActivation::Situ { .. });
    let full_gate = config.kda.out_gate == OutGateRank::Full;
    let k3 = config.attn_res_block_size.is_some();
    let bounded = matches!(config.kda.decay, KdaDecay::Bounded { .. });
    if k3 && !(situ && full_gate) {
        return refuse("attention residuals come with SiTU and a full output gate there");
    }
    let gated = config.mla.output_gate == OutputGate::Sigmoid;
    if !k3 && (situ || full_gate || bounded || gated || moe.latent.is_some()) {
        return refuse("without attention residuals, none of K3's other features can be expressed");
    }
    if moe.latent.is_some_and(|latent| latent.norm == LatentNorm::Off) {
        return refuse("latent experts are normalised there");
    }
    if moe.renormalize == RouterNorm::Off && !k3 {
        return refuse("routing weights are normalised there");
    }
    Ok(if k3 { Architecture::KimiK3 } else { Architecture::KimiLinear })
}

/// The tokenizer's part: none, or one that names every token by its number.
pub(crate) fn vocabulary(config: &ModelConfig, vocabulary: GgufVocabulary) -> Vec<(String, Value)> {
    let entry = |key: &str, value| (format!("tokenizer.ggml.{key}"), value);
    match vocabulary {
        GgufVocabulary::None => vec![entry("model", Value::Text("no_vocab"))],
        GgufVocabulary::Numbered => vec![
            entry("model", Value::Text("llama")),
            entry("tokens", Value::Texts((0..config.vocab_size).map(|id| format!("[{id}]")).collect())),
            entry("add_bos_token", Value::Bool(false)),
        ],
    }
}

pub(crate) fn metadata(config: &ModelConfig, arch: Architecture) -> Vec<(String, Value)> {
    let mut list = List { prefix: arch.name(), values: Vec::new() };
    list.values.push(("general.architecture".into(), Value::Text(arch.name())));
    list.number("vocab_size", config.vocab_size);
    list.number("context_length", config.max_positions.unwrap_or(32_768));
    list.number("embedding_length", config.hidden_size);
    list.number("block_count", config.num_layers());
    list.number("feed_forward_length", config.intermediate_size);
    list.put("attention.layer_norm_rms_epsilon", Value::F32(config.rms_norm_eps));
    list.attention(config, arch);
    list.experts(config, arch);
    if let (FfnActivation::Situ { beta, linear_beta }, Some(block)) = (config.activation, config.attn_res_block_size) {
        list.put("activation.situ_beta", Value::F32(beta));
        list.put("activation.situ_linear_beta", Value::F32(linear_beta.unwrap_or(0.0)));
        list.number("attn_res.block_size", block);
    }
    list.values
}

struct List {
    prefix: &'static str,
    values: Vec<(String, Value)>,
}

impl List {
    fn put(&mut self, key: &str, value: Value) {
        self.values.push((format!("{}.{key}", self.prefix), value));
    }

    fn number(&mut self, key: &str, value: usize) {
        self.put(key, Value::U32(u32::try_from(value).unwrap_or(u32::MAX)));
    }

    fn attention(&mut self, config: &ModelConfig, arch: Architecture) {
        let (kda, mla) = (&config.kda, &config.mla);
        self.number("attention.head_count", mla.num_heads);
        // Latents are one key head; a layer without any is recurrent.
        let heads = config.layers.iter().map(|kind| u32::from(*kind == LayerKind::Mla));
        self.put("attention.head_count_kv", Value::Numbers(heads.collect()));
        self.number("attention.key_length", mla.latent_width());
        if arch == Architecture::KimiK3 {
            self.number("attention.value_length", mla.kv_lora_rank);
        }
        self.number("attention.key_length_mla", mla.qk_nope_head_dim + mla.qk_rope_head_dim);
        self.number("attention.value_length_mla", mla.v_head_dim);
        if let Some(rank) = mla.q_lora_rank {
            self.number("attention.q_lora_rank", rank);
        }
        self.number("attention.kv_lora_rank", mla.kv_lora_rank);
        self.number("rope.dimension_count", mla.qk_rope_head_dim);
        self.number("ssm.conv_kernel", kda.conv_kernel);
        self.number("kda.head_dim", kda.head_dim);
        if let KdaDecay::Bounded { lower_bound } = kda.decay {
            self.put("kda.gate_lower_bound", Value::F32(lower_bound));
        }
    }

    fn experts(&mut self, config: &ModelConfig, arch: Architecture) {
        let Some(moe) = &config.moe else { return };
        let sigmoid = 2;
        self.number("expert_count", moe.num_experts);
        self.number("expert_used_count", moe.top_k);
        self.number("expert_feed_forward_length", moe.intermediate_size);
        self.number("expert_shared_count", moe.num_shared_experts);
        self.number("leading_dense_block_count", moe.first_layer);
        self.put("expert_weights_scale", Value::F32(moe.routed_scaling_factor));
        self.number("expert_gating_func", sigmoid);
        if arch == Architecture::KimiK3 {
            self.put("expert_weights_norm", Value::Bool(moe.renormalize == RouterNorm::Sum));
        }
        if let Some(latent) = moe.latent {
            self.number("expert_latent_length", latent.width);
        }
    }
}
