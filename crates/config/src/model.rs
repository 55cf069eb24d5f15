//! What kind of model a checkpoint is: one description for Kimi K3 and Kimi-Linear, features chosen by keys.
//!
//! Reading `config.json` is in [`parse`], the figures that follow from it (parameters, bytes) in [`size`]. Nothing here
//! knows tensor names or devices.

mod parse;
mod quantization;
mod size;
#[cfg(test)]
mod tests;

use perilune_tensor::TokenId;

pub(crate) use parse::activation;
pub use size::ParameterCount;

/// A model that can run: every value was checked when the file was read.
///
/// Source: `kimi-k3.md` section 1.
#[derive(Debug, Clone, PartialEq)]
pub struct ModelConfig {
    /// Rows `V` of the embedding and of the head.
    pub vocab_size: usize,
    /// Width `H` of the residual stream.
    pub hidden_size: usize,
    /// The sequence mixer of each layer, first layer first; its length is the number of layers.
    pub layers: Vec<LayerKind>,
    /// Epsilon of every RMS norm but the latent ones.
    pub rms_norm_eps: f32,
    /// Sizes and gates of the KDA layers.
    pub kda: KdaDims,
    /// Sizes and options of the MLA layers.
    pub mla: MlaDims,
    /// Inner width of dense feed-forward layers.
    pub intermediate_size: usize,
    /// Routed experts; `None` where every layer is dense.
    pub moe: Option<MoeDims>,
    /// Activation of every feed-forward network, dense, shared and routed.
    pub activation: FfnActivation,
    /// Layers per block of the attention residual; `None` for a plain residual stream.
    pub attn_res_block_size: Option<usize>,
    /// Whether the head has its own matrix.
    pub head: HeadKind,
    /// Longest sequence the model was made for, in tokens; `None` where the file does not say.
    pub max_positions: Option<usize>,
    /// Token that opens a text.
    pub bos_token: Option<TokenId>,
    /// Tokens that end an answer; may be empty.
    pub eos_tokens: Vec<TokenId>,
    /// How the file says the routed experts are stored. Only a declaration: the loader decides per tensor.
    pub experts_declared: ExpertStorage,
}

/// The sequence mixer of a layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum LayerKind {
    /// Kimi Delta Attention: a recurrent state of fixed size.
    Kda,
    /// Multi-head latent attention without positions: a cache that grows by one latent per token.
    Mla,
}

/// The feed-forward network of a layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum FfnKind {
    /// One gated network.
    Dense,
    /// Routed and shared experts.
    Moe,
}

/// Sizes and gates of a KDA layer.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct KdaDims {
    /// Heads.
    pub num_heads: usize,
    /// Key and value width `D` of a head.
    pub head_dim: usize,
    /// Taps of the short convolution, the current token included.
    pub conv_kernel: usize,
    /// How the decay follows from its pre-activation.
    pub decay: KdaDecay,
    /// Form of the output gate's projection.
    pub out_gate: OutGateRank,
}

impl KdaDims {
    /// `P = num_heads * head_dim`: channels of q, of k and of v.
    pub fn width(&self) -> usize {
        self.num_heads * self.head_dim
    }
}

/// How the log decay of KDA is bounded (`kimi-k3.md` 3.3, step 4).
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum KdaDecay {
    /// `lower_bound * sigmoid(A a)`; the bound is negative.
    Bounded {
        /// The most negative log decay per token.
        lower_bound: f32,
    },
    /// `-A softplus(a)`.
    Softplus,
}

/// How many matrices make the output gate of KDA.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OutGateRank {
    /// One matrix `[P, H]`.
    Full,
    /// Two matrices, `[D, H]` then `[P, D]`.
    Low,
}

/// Sizes and options of an MLA layer.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct MlaDims {
    /// Heads `A`.
    pub num_heads: usize,
    /// Rank of the query projection; `None` for a single full matrix.
    pub q_lora_rank: Option<usize>,
    /// Width `C` of the latent.
    pub kv_lora_rank: usize,
    /// Key width of a head that comes from the latent, `n`.
    pub qk_nope_head_dim: usize,
    /// Key width shared by all heads, `r`; no rotation is applied.
    pub qk_rope_head_dim: usize,
    /// Value width of a head, `v`.
    pub v_head_dim: usize,
    /// Whether the attention output is gated.
    pub output_gate: OutputGate,
}

impl MlaDims {
    /// Columns of the query projection's output: `A (n + r)`.
    pub fn query_width(&self) -> usize {
        self.num_heads * (self.qk_nope_head_dim + self.qk_rope_head_dim)
    }

    /// Columns of the attention output: `A v`.
    pub fn value_width(&self) -> usize {
        self.num_heads * self.v_head_dim
    }

    /// Elements cached per token: `C + r`.
    pub fn latent_width(&self) -> usize {
        self.kv_lora_rank + self.qk_rope_head_dim
    }

    /// Rows of the matrix that expands a latent: `A (n + v)`.
    pub fn expanded_width(&self) -> usize {
        self.num_heads * (self.qk_nope_head_dim + self.v_head_dim)
    }
}

/// Whether MLA multiplies its output by a sigmoid gate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OutputGate {
    /// `o * sigmoid(x W_g^T)`.
    Sigmoid,
    /// No gate.
    Off,
}

/// Sizes and rules of the mixture of experts (`kimi-k3.md` 3.6).
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct MoeDims {
    /// Routed experts `E` of a layer.
    pub num_experts: usize,
    /// Routed experts per token `K`.
    pub top_k: usize,
    /// Always-on experts, fused into one network of width `num_shared_experts * intermediate_size`.
    pub num_shared_experts: usize,
    /// Inner width `I` of one expert.
    pub intermediate_size: usize,
    /// The narrower width routed experts work on; `None` where they work on the hidden width.
    pub latent: Option<LatentMoe>,
    /// Expert groups; 1 turns the group step off.
    pub num_groups: usize,
    /// Groups that stay eligible.
    pub topk_groups: usize,
    /// Whether the weights of the chosen are divided by their sum.
    pub renormalize: RouterNorm,
    /// Factor on the weights.
    pub routed_scaling_factor: f32,
    /// Layers below this index are dense.
    pub first_layer: usize,
    /// From there on, layers whose index is a multiple of this have experts.
    pub layer_freq: usize,
}

impl MoeDims {
    /// Inner width of the fused shared experts; 0 without any.
    pub fn shared_width(&self) -> usize {
        self.num_shared_experts * self.intermediate_size
    }
}

/// The latent space of routed experts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LatentMoe {
    /// Its width `L`.
    pub width: usize,
    /// Whether the combined latent is RMS-normalised before it is projected back.
    pub norm: LatentNorm,
}

/// Whether the combined latent is normalised.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LatentNorm {
    /// RMS norm with a weight.
    Rms,
    /// As it is.
    Off,
}

/// Whether routing weights are normalised to sum 1 before scaling.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RouterNorm {
    /// Divided by their sum.
    Sum,
    /// As they are.
    Off,
}

/// Activation of a gated feed-forward network (`kimi-k3.md` 3.5).
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum FfnActivation {
    /// `g sigmoid(g) u`.
    Silu,
    /// SiLU with softly capped factors.
    Situ {
        /// Cap of the gate, positive.
        beta: f32,
        /// Cap of the linear part, positive; `None` leaves it as it is.
        linear_beta: Option<f32>,
    },
}

/// Where the output head's matrix comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HeadKind {
    /// A matrix of its own.
    Separate,
    /// The embedding's.
    Tied,
}

/// How routed experts are stored, as far as the configuration says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ExpertStorage {
    /// Plain floating point.
    Plain,
    /// MXFP4: packed nibbles with one scale per 32 columns.
    Mxfp4,
}

impl ModelConfig {
    /// Number of layers.
    pub fn num_layers(&self) -> usize {
        self.layers.len()
    }

    /// Layers of one kind.
    pub fn count(&self, kind: LayerKind) -> usize {
        self.layers.iter().filter(|&&layer| layer == kind).count()
    }

    /// The feed-forward network of a layer.
    pub fn ffn(&self, layer: usize) -> FfnKind {
        match &self.moe {
            Some(moe) if layer >= moe.first_layer && layer.is_multiple_of(moe.layer_freq) => FfnKind::Moe,
            _ => FfnKind::Dense,
        }
    }

    /// Frozen rows that the attention residual keeps per token by the end of a step; 0 without it.
    pub fn num_residual_banks(&self) -> usize {
        self.attn_res_block_size.map_or(0, |block| self.num_layers().div_ceil(block))
    }

    /// Width routed experts work on: the latent's, else the hidden width; 0 without experts.
    pub fn expert_width(&self) -> usize {
        self.moe.map_or(0, |moe| moe.latent.map_or(self.hidden_size, |latent| latent.width))
    }
}
