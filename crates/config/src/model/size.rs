//! Figures that follow from a configuration alone: parameters, and bytes a request occupies.
//!
//! Sources: `kimi-k3.md` 1.2 (release facts) and section 4.

use perilune_tensor::DType;

use super::{FfnKind, HeadKind, LatentNorm, LayerKind, ModelConfig, MoeDims, OutGateRank, OutputGate};

/// How many weights a model has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ParameterCount {
    /// All of them.
    pub total: u64,
    /// Those that take part in one token: without the embedding table (one row of it is read) and without the routed
    /// experts that are not chosen.
    pub active: u64,
}

impl ModelConfig {
    /// Counts the weights.
    pub fn parameters(&self) -> ParameterCount {
        let hidden = self.hidden_size as u64;
        let table = self.vocab_size as u64 * hidden;
        let head = if self.head == HeadKind::Separate { table } else { 0 };
        let mut always = head + hidden;
        let (mut experts, mut chosen) = (0, 0);
        if self.attn_res_block_size.is_some() {
            always += 2 * hidden + self.num_layers() as u64 * 4 * hidden;
        }
        for (layer, kind) in self.layers.iter().enumerate() {
            always += 2 * hidden;
            always += match kind {
                LayerKind::Kda => self.kda_parameters(),
                LayerKind::Mla => self.mla_parameters(),
            };
            match (self.ffn(layer), &self.moe) {
                (FfnKind::Moe, Some(moe)) => {
                    always += self.moe_common_parameters(moe);
                    let expert = 3 * self.expert_width() as u64 * moe.intermediate_size as u64;
                    experts += expert * moe.num_experts as u64;
                    chosen += expert * moe.top_k as u64;
                }
                _ => always += 3 * hidden * self.intermediate_size as u64,
            }
        }
        let active_head = if self.head == HeadKind::Tied { table } else { 0 };
        ParameterCount { total: table + always + experts, active: always + active_head + chosen }
    }

    fn kda_parameters(&self) -> u64 {
        let d = &self.kda;
        let (hidden, width, head) = (self.hidden_size as u64, d.width() as u64, d.head_dim as u64);
        let heads = d.num_heads as u64;
        let low_rank = head * hidden + width * head;
        let out_gate = if d.out_gate == OutGateRank::Full { width * hidden } else { low_rank };
        let small = heads + width + head + 3 * width * d.conv_kernel as u64;
        4 * width * hidden + low_rank + heads * hidden + out_gate + small
    }

    fn mla_parameters(&self) -> u64 {
        let d = &self.mla;
        let (hidden, latent) = (self.hidden_size as u64, d.kv_lora_rank as u64);
        let (query, value) = (d.query_width() as u64, d.value_width() as u64);
        let q = d.q_lora_rank.map_or(query * hidden, |rank| rank as u64 * (hidden + 1 + query));
        let gate = if d.output_gate == OutputGate::Sigmoid { value * hidden } else { 0 };
        q + d.latent_width() as u64 * hidden + latent + d.expanded_width() as u64 * latent + gate + value * hidden
    }

    /// Router, shared experts and latent projections of one layer.
    fn moe_common_parameters(&self, moe: &MoeDims) -> u64 {
        let hidden = self.hidden_size as u64;
        let router = moe.num_experts as u64 * (hidden + 1);
        let latent = moe.latent.map_or(0, |latent| {
            let norm = if latent.norm == LatentNorm::Rms { latent.width as u64 } else { 0 };
            2 * hidden * latent.width as u64 + norm
        });
        router + latent + 3 * hidden * moe.shared_width() as u64
    }

    /// Bytes of recurrent KDA state that one sequence holds, in `F32`, whatever its length. Convolution tails apart.
    pub fn state_bytes_per_request(&self) -> u64 {
        let per_layer = self.kda.num_heads as u64 * (self.kda.head_dim as u64).pow(2) * 4;
        self.count(LayerKind::Kda) as u64 * per_layer
    }

    /// Bytes of convolution tails that one sequence holds.
    pub fn conv_bytes_per_request(&self, dtype: DType) -> u64 {
        let rows = (self.kda.conv_kernel - 1) as u64 * 3;
        self.count(LayerKind::Kda) as u64 * rows * self.kda.width() as u64 * dtype.size_bytes() as u64
    }

    /// Bytes of MLA latents per token of a sequence, over all layers.
    pub fn latent_bytes_per_token(&self, dtype: DType) -> u64 {
        self.count(LayerKind::Mla) as u64 * self.mla.latent_width() as u64 * dtype.size_bytes() as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn load(name: &str) -> ModelConfig {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/data/configs/");
        ModelConfig::from_file(&std::path::Path::new(path).join(name)).unwrap()
    }

    #[test]
    fn k3_has_the_published_size() {
        let config = load("kimi-k3.json");
        let count = config.parameters();
        assert_eq!(count.total / 10_000_000_000, 277, "2.78 T, truncated: {count:?}");
        assert!((count.total as f64 / 1e12 - 2.78).abs() < 0.005, "{count:?}");
        assert!((count.active as f64 / 1e9 - 104.0).abs() < 1.0, "{count:?}");
        assert_eq!(config.state_bytes_per_request(), 434_110_464);
        assert_eq!(config.conv_bytes_per_request(DType::Bf16), 15_261_696);
        assert_eq!(config.latent_bytes_per_token(DType::Bf16), 27_648);
        assert_eq!(config.latent_bytes_per_token(DType::Bf16) * 1_048_576, 28_991_029_248);
        assert_eq!(config.num_residual_banks(), 8);
    }

    #[test]
    fn kimi_linear_has_the_published_size() {
        let config = load("kimi-linear-48b.json");
        let count = config.parameters();
        assert!((count.total as f64 / 1e9 - 49.0).abs() < 1.5, "{count:?}");
        assert!((count.active as f64 / 1e9 - 3.0).abs() < 0.5, "{count:?}");
        assert_eq!(config.state_bytes_per_request(), 40 << 20);
        assert_eq!(config.conv_bytes_per_request(DType::Bf16), 20 * 73_728);
        assert_eq!(config.latent_bytes_per_token(DType::Bf16), 8_064);
    }
}
