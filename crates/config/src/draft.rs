//! What a DSpark draft model is: one description for the published families, features chosen by keys.
//!
//! Reading `config.json` is in [`parse`]. Nothing here knows tensor names beyond which family's they are. Source:
//! `kimi-k3.md` section 6.

mod parse;
#[cfg(test)]
mod tests;

use std::path::PathBuf;

use perilune_tensor::TokenId;

use crate::{ConfigError, FfnActivation, ModelConfig};

/// A draft that can run: every value was checked when the file was read.
#[derive(Debug, Clone, PartialEq)]
pub struct DraftConfig {
    /// Whose tensor names the checkpoint uses.
    pub family: DraftFamily,
    /// Rows of the vocabulary: the target's.
    pub vocab_size: usize,
    /// Width `H` of the residual stream: the target's, as its embedding and head are shared.
    pub hidden_size: usize,
    /// Inner width of the feed-forward networks.
    pub intermediate_size: usize,
    /// Layers.
    pub num_layers: usize,
    /// Epsilon of every norm, latent ones included.
    pub rms_norm_eps: f32,
    /// Activation of the feed-forward networks.
    pub activation: FfnActivation,
    /// Heads of every layer.
    pub attention: DraftHeads,
    /// Rotary positions.
    pub rotary: Rotary,
    /// Which rows of its block a query sees.
    pub mask: DraftMask,
    /// Rows of a block, the anchor included.
    pub block_rows: usize,
    /// What the anchor's row predicts.
    pub anchor: AnchorRow,
    /// Token of the rows behind the anchor.
    pub mask_token: TokenId,
    /// What it reads of the target.
    pub taps: DraftTaps,
    /// The head that makes a draft depend on the one before; `None` where drafts are independent.
    pub markov: Option<MarkovHead>,
    /// Input of the head that estimates acceptance; `None` without one.
    pub confidence: Option<ConfidenceInput>,
    /// Factor on the logits before the Markov head's bias.
    pub logit_scale: f32,
    target_layers: Option<usize>,
    target_hidden_size: Option<usize>,
    path: PathBuf,
}

/// Families of published drafts, which differ in tensor names and heads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DraftFamily {
    /// `DSparkDraftModel` of SpecForge (RadixArk, LithosAI): grouped heads.
    SpecForge,
    /// `k3_dspark` of vLLM (Inferact, lightseek): latent heads.
    K3Dspark,
}

/// Heads of a draft layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DraftHeads {
    /// Keys and values per group of query heads, a norm on each query and key.
    Grouped {
        /// Query heads.
        num_heads: usize,
        /// Key and value heads, a divisor of the query heads.
        num_kv_heads: usize,
        /// Width of a head, even.
        head_dim: usize,
    },
    /// Keys and values from one latent, as in MLA, with a rotated key part.
    Latent {
        /// Query heads.
        num_heads: usize,
        /// Rank of the query projection.
        q_lora_rank: usize,
        /// Width of the latent.
        kv_lora_rank: usize,
        /// Key width of a head that comes from the latent.
        qk_nope_head_dim: usize,
        /// Rotated key width, shared by all heads, even.
        qk_rope_head_dim: usize,
        /// Value width of a head.
        v_head_dim: usize,
    },
}

impl DraftHeads {
    /// Rotated width of a head.
    pub fn rotary_width(&self) -> usize {
        match *self {
            DraftHeads::Grouped { head_dim, .. } => head_dim,
            DraftHeads::Latent { qk_rope_head_dim, .. } => qk_rope_head_dim,
        }
    }

    /// `F32` elements that a token leaves behind in a layer.
    pub fn row_width(&self) -> usize {
        match *self {
            DraftHeads::Grouped { num_kv_heads, head_dim, .. } => 2 * num_kv_heads * head_dim,
            DraftHeads::Latent { kv_lora_rank, qk_rope_head_dim, .. } => kv_lora_rank + qk_rope_head_dim,
        }
    }
}

/// Rotary positions.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Rotary {
    /// Base of the frequencies.
    pub theta: f64,
    /// Stretching to longer contexts; `None` without.
    pub yarn: Option<Yarn>,
}

/// YaRN (`kimi-k3.md` 6.2).
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Yarn {
    /// How much longer.
    pub factor: f64,
    /// Positions of the original training.
    pub original_positions: usize,
    /// Turns over the original context above which a frequency stays as it is.
    pub beta_fast: f64,
    /// Turns below which it is divided by the factor.
    pub beta_slow: f64,
    /// Factor on cosines and sines.
    pub amplitude: f64,
    /// Factor on attention scores.
    pub score_factor: f64,
}

/// Which rows of its block a draft query sees.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DraftMask {
    /// All.
    Bidirectional,
    /// Itself and those before.
    Causal,
}

/// What the anchor's row predicts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AnchorRow {
    /// The first draft; row `j` predicts the token after its own position.
    FirstDraft,
    /// Nothing; row `j` predicts the token at its own position.
    Nothing,
}

/// What a draft reads of its target.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DraftTaps {
    /// Layers after which the stream is read, counted from 0, rising.
    pub layers: Vec<usize>,
    /// Which stream.
    pub stream: TapStream,
    /// Whether each tap is normed before the projection.
    pub norm: TapNorm,
}

/// The two meanings of "the stream after a layer" (`kimi-k3.md` 6.1, step 1).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum TapStream {
    /// The attention-residual mixture that the next layer would read.
    AttnRes,
    /// The running prefix.
    Prefix,
}

/// Whether each tap is normed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TapNorm {
    /// By an RMS norm with a weight of its own.
    Rms,
    /// Not.
    Off,
}

/// The Markov head.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MarkovHead {
    /// Width of a token's embedding in it.
    pub rank: usize,
    /// Form.
    pub kind: MarkovKind,
}

/// Forms of the Markov head (`kimi-k3.md` 6.1, step 7).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MarkovKind {
    /// `W2 W1[prev]`.
    Vanilla,
    /// `W2 (σ(G [hidden; W1[prev]]) ⊙ W1[prev])`.
    Gated,
    /// With a state over the block.
    Rnn,
}

/// Input of the confidence head.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ConfidenceInput {
    /// The hidden row and the Markov embedding of the token before.
    HiddenAndMarkov,
    /// The hidden row.
    Hidden,
}

impl DraftConfig {
    /// Drafts of a block.
    pub fn num_drafts(&self) -> usize {
        match self.anchor {
            AnchorRow::FirstDraft => self.block_rows,
            AnchorRow::Nothing => self.block_rows - 1,
        }
    }

    /// `F32` elements that a token leaves behind in all layers.
    pub fn context_len(&self) -> usize {
        self.num_layers * self.attention.row_width()
    }

    /// Refuses a target that this draft was not made for.
    ///
    /// # Errors
    /// `Unsupported`, naming the draft's key.
    pub fn check_target(&self, target: &ModelConfig) -> Result<(), ConfigError> {
        let refuse = |key: &str, found: usize, rule: String| {
            let (path, key, found) = (self.path.clone(), key.to_owned(), found.to_string());
            Err(ConfigError::Unsupported { path, key, found, rule })
        };
        let equal = [
            ("vocab_size", Some(self.vocab_size), target.vocab_size),
            ("hidden_size", Some(self.hidden_size), target.hidden_size),
            ("target_hidden_size", self.target_hidden_size, target.hidden_size),
            (self.target_layers_key(), self.target_layers, target.num_layers()),
        ];
        for (key, found, wanted) in equal {
            if let Some(found) = found.filter(|found| *found != wanted) {
                return refuse(key, found, format!("the target has {wanted}: this draft was made for another model"));
            }
        }
        match self.taps.layers.iter().find(|layer| **layer >= target.num_layers()) {
            Some(layer) => {
                refuse("target_layer_ids", *layer, format!("the target has layers 0 to {}", target.num_layers() - 1))
            }
            None => Ok(()),
        }
    }

    fn target_layers_key(&self) -> &'static str {
        match self.family {
            DraftFamily::SpecForge => "num_target_layers",
            DraftFamily::K3Dspark => "target_num_hidden_layers",
        }
    }
}
