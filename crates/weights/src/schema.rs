//! Which tensors a model consists of, by their published names, and the shapes they must have.
//!
//! Names are given without the `language_model.` prefix and in the published spelling; [`crate::Checkpoint`] finds the
//! stored spelling. Source: `kimi-k3.md` section 2.

use perilune_config::{FfnKind, HeadKind, LatentNorm, LayerKind, ModelConfig, MoeDims, OutGateRank, OutputGate};
use perilune_tensor::{MXFP4_GROUP, Shape};

/// One tensor (or one packed matrix) of a model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Expected {
    /// Published name, without prefix.
    pub name: String,
    /// Its shape.
    pub layout: Layout,
}

/// The shapes a tensor may have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Layout {
    /// `[out, in]` in floating point.
    Matrix {
        /// Output features.
        rows: usize,
        /// Input features.
        cols: usize,
    },
    /// `[out, in]` in floating point, or as MXFP4 `[out, in/2]` with scales `[out, in/32]`.
    ExpertMatrix {
        /// Output features.
        rows: usize,
        /// Input features.
        cols: usize,
    },
    /// `[len]`.
    Vector {
        /// Elements.
        len: usize,
    },
    /// `[1, len]` or `[len]`.
    Row {
        /// Elements.
        len: usize,
    },
    /// `[channels, 1, kernel]` or `[channels, kernel]`.
    Taps {
        /// Channels of the depthwise convolution.
        channels: usize,
        /// Taps of a channel.
        kernel: usize,
    },
    /// Any shape of at least `heads` elements; those after the first `heads` are zero padding.
    PerHead {
        /// Heads.
        heads: usize,
    },
}

impl Layout {
    /// The shape in which the published checkpoints store it in floating point.
    pub fn shape(self) -> Shape {
        match self {
            Layout::Matrix { rows, cols } | Layout::ExpertMatrix { rows, cols } => Shape::from([rows, cols]),
            Layout::Vector { len } | Layout::PerHead { heads: len } => Shape::from([len]),
            Layout::Row { len } => Shape::from([1, len]),
            Layout::Taps { channels, kernel } => Shape::from([channels, 1, kernel]),
        }
    }

    /// Whether a tensor in floating point may have this shape.
    pub fn accepts(self, shape: &Shape) -> bool {
        match self {
            Layout::PerHead { heads } => shape.numel() >= heads,
            Layout::Row { len } => shape.dims() == [1, len] || shape.dims() == [len],
            Layout::Taps { channels, kernel } => {
                shape.dims() == [channels, 1, kernel] || shape.dims() == [channels, kernel]
            }
            _ => *shape == self.shape(),
        }
    }

    /// Shapes of the packed nibbles and of the scales; `None` where the matrix cannot be packed.
    pub fn packed_shapes(self) -> Option<(Shape, Shape)> {
        match self {
            Layout::ExpertMatrix { rows, cols } if cols.is_multiple_of(MXFP4_GROUP) => {
                Some((Shape::from([rows, cols / 2]), Shape::from([rows, cols / MXFP4_GROUP])))
            }
            _ => None,
        }
    }
}

impl std::fmt::Display for Layout {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Layout::PerHead { heads } => write!(f, "floating point of at least {heads} elements"),
            _ => write!(f, "F32, BF16 or F16 {}", self.shape()),
        }
    }
}

/// Every tensor of a model.
pub fn expected_tensors(config: &ModelConfig) -> Vec<Expected> {
    let mut list = List(Vec::new());
    let (vocab, hidden) = (config.vocab_size, config.hidden_size);
    list.matrix("model.embed_tokens", vocab, hidden);
    list.vector("model.norm.weight", hidden);
    if config.head == HeadKind::Separate {
        list.matrix("lm_head", vocab, hidden);
    }
    if config.attn_res_block_size.is_some() {
        list.residual("model.output_attn_res", hidden);
    }
    for layer in 0..config.num_layers() {
        list.layer(config, layer);
    }
    list.0
}

struct List(Vec<Expected>);

impl List {
    fn push(&mut self, name: String, layout: Layout) {
        self.0.push(Expected { name, layout });
    }

    fn matrix(&mut self, stem: &str, rows: usize, cols: usize) {
        self.push(format!("{stem}.weight"), Layout::Matrix { rows, cols });
    }

    fn vector(&mut self, name: &str, len: usize) {
        self.push(name.to_owned(), Layout::Vector { len });
    }

    fn residual(&mut self, stem: &str, hidden: usize) {
        self.push(format!("{stem}_norm.weight"), Layout::Vector { len: hidden });
        self.push(format!("{stem}_proj.weight"), Layout::Row { len: hidden });
    }

    fn glu(&mut self, stem: &str, inner: usize, hidden: usize) {
        self.matrix(&format!("{stem}.gate_proj"), inner, hidden);
        self.matrix(&format!("{stem}.up_proj"), inner, hidden);
        self.matrix(&format!("{stem}.down_proj"), hidden, inner);
    }

    fn layer(&mut self, config: &ModelConfig, layer: usize) {
        let (stem, hidden) = (format!("model.layers.{layer}"), config.hidden_size);
        self.vector(&format!("{stem}.input_layernorm.weight"), hidden);
        self.vector(&format!("{stem}.post_attention_layernorm.weight"), hidden);
        if config.attn_res_block_size.is_some() {
            self.residual(&format!("{stem}.self_attention_res"), hidden);
            self.residual(&format!("{stem}.mlp_res"), hidden);
        }
        match config.layers[layer] {
            LayerKind::Kda => self.kda(config, &format!("{stem}.self_attn")),
            LayerKind::Mla => self.mla(config, &format!("{stem}.self_attn")),
        }
        match (config.ffn(layer), &config.moe) {
            (FfnKind::Moe, Some(moe)) => self.moe(config, moe, &format!("{stem}.block_sparse_moe")),
            _ => self.glu(&format!("{stem}.mlp"), config.intermediate_size, hidden),
        }
    }

    fn kda(&mut self, config: &ModelConfig, stem: &str) {
        let (d, hidden) = (&config.kda, config.hidden_size);
        let width = d.width();
        for part in ["q", "k", "v"] {
            self.matrix(&format!("{stem}.{part}_proj"), width, hidden);
            let taps = Layout::Taps { channels: width, kernel: d.conv_kernel };
            self.push(format!("{stem}.{part}_conv1d.weight"), taps);
        }
        self.push(format!("{stem}.A_log"), Layout::PerHead { heads: d.num_heads });
        self.vector(&format!("{stem}.dt_bias"), width);
        self.matrix(&format!("{stem}.f_a_proj"), d.head_dim, hidden);
        self.matrix(&format!("{stem}.f_b_proj"), width, d.head_dim);
        self.matrix(&format!("{stem}.b_proj"), d.num_heads, hidden);
        match d.out_gate {
            OutGateRank::Full => self.matrix(&format!("{stem}.g_proj"), width, hidden),
            OutGateRank::Low => {
                self.matrix(&format!("{stem}.g_a_proj"), d.head_dim, hidden);
                self.matrix(&format!("{stem}.g_b_proj"), width, d.head_dim);
            }
        }
        self.vector(&format!("{stem}.o_norm.weight"), d.head_dim);
        self.matrix(&format!("{stem}.o_proj"), hidden, width);
    }

    fn mla(&mut self, config: &ModelConfig, stem: &str) {
        let (d, hidden) = (&config.mla, config.hidden_size);
        match d.q_lora_rank {
            Some(rank) => {
                self.matrix(&format!("{stem}.q_a_proj"), rank, hidden);
                self.vector(&format!("{stem}.q_a_layernorm.weight"), rank);
                self.matrix(&format!("{stem}.q_b_proj"), d.query_width(), rank);
            }
            None => self.matrix(&format!("{stem}.q_proj"), d.query_width(), hidden),
        }
        self.matrix(&format!("{stem}.kv_a_proj_with_mqa"), d.latent_width(), hidden);
        self.vector(&format!("{stem}.kv_a_layernorm.weight"), d.kv_lora_rank);
        self.matrix(&format!("{stem}.kv_b_proj"), d.expanded_width(), d.kv_lora_rank);
        if d.output_gate == OutputGate::Sigmoid {
            self.matrix(&format!("{stem}.g_proj"), d.value_width(), hidden);
        }
        self.matrix(&format!("{stem}.o_proj"), hidden, d.value_width());
    }

    fn moe(&mut self, config: &ModelConfig, moe: &MoeDims, stem: &str) {
        let (hidden, width) = (config.hidden_size, config.expert_width());
        self.matrix(&format!("{stem}.gate"), moe.num_experts, hidden);
        self.vector(&format!("{stem}.gate.e_score_correction_bias"), moe.num_experts);
        if let Some(latent) = moe.latent {
            self.matrix(&format!("{stem}.routed_expert_down_proj"), width, hidden);
            self.matrix(&format!("{stem}.routed_expert_up_proj"), hidden, width);
            if latent.norm == LatentNorm::Rms {
                self.vector(&format!("{stem}.routed_expert_norm.weight"), width);
            }
        }
        if moe.num_shared_experts > 0 {
            self.glu(&format!("{stem}.shared_experts"), moe.shared_width(), hidden);
        }
        for expert in 0..moe.num_experts {
            let inner = moe.intermediate_size;
            for (part, rows, cols) in [("w1", inner, width), ("w3", inner, width), ("w2", width, inner)] {
                self.push(format!("{stem}.experts.{expert}.{part}.weight"), Layout::ExpertMatrix { rows, cols });
            }
        }
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
    fn k3_has_the_published_number_of_tensors() {
        let list = expected_tensors(&load("kimi-k3.json"));
        let packed = list.iter().filter(|e| e.layout.packed_shapes().is_some()).count();
        assert_eq!(packed, 92 * 896 * 3);
        assert_eq!(list.len() + packed, 497_220 - 168, "packed matrices are stored as two tensors");
        let find = |name: &str| list.iter().find(|e| e.name == name).unwrap().layout;
        assert_eq!(find("model.layers.3.self_attn.q_b_proj.weight"), Layout::Matrix { rows: 18_432, cols: 1536 });
        assert_eq!(find("model.layers.92.self_attn.kv_b_proj.weight").shape(), Shape::from([24_576, 512]));
        let shapes = find("model.layers.1.block_sparse_moe.experts.895.w2.weight").packed_shapes().unwrap();
        assert_eq!(shapes, (Shape::from([3584, 1536]), Shape::from([3584, 96])));
    }

    #[test]
    fn the_sum_of_all_shapes_is_the_parameter_count() {
        for name in ["kimi-k3.json", "kimi-linear-48b.json", "mid-k3.json", "mid-kimi-linear.json"] {
            let config = load(name);
            let sum: usize = expected_tensors(&config).iter().map(|e| e.layout.shape().numel()).sum();
            assert_eq!(sum as u64, config.parameters().total, "{name}");
        }
    }

    #[test]
    fn names_are_distinct() {
        let mut names: Vec<String> = expected_tensors(&load("mid-k3.json")).into_iter().map(|e| e.name).collect();
        let count = names.len();
        names.sort();
        names.dedup();
        assert_eq!(names.len(), count);
    }
}
