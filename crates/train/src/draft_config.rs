//! Shape of a draft, and its `config.json` in the format of the published GQA drafts (`kimi-k3.md` 6.2).

use perilune_config::{
    AnchorRow, ConfidenceInput, DraftConfig as Published, DraftHeads, DraftMask, FfnActivation, MarkovKind, TapNorm,
};
use perilune_model::TapStream;
use serde_json::{Value, json};

use crate::TrainError;

/// Positions of plain rotations, which no key of a checkpoint repeats.
const DEFAULT_POSITIONS: usize = 4096;

/// Shape of a draft.
#[derive(Debug, Clone, PartialEq)]
pub struct DraftConfig {
    /// Width of the target and of the draft.
    pub hidden: usize,
    /// Rows of the target's embedding and head.
    pub vocabulary: usize,
    /// Layers of the draft.
    pub num_layers: usize,
    /// Query heads.
    pub num_heads: usize,
    /// Key and value heads; divides the query heads.
    pub num_kv_heads: usize,
    /// Width of a head; even.
    pub head_dim: usize,
    /// Width of the feed-forward network.
    pub intermediate: usize,
    /// Tokens proposed per step.
    pub block_size: usize,
    /// Rank of the Markov head.
    pub markov_rank: usize,
    /// The input of the rows after the anchor.
    pub mask_token: u32,
    /// Layers of the target whose streams the draft reads.
    pub taps: Vec<usize>,
    /// Which stream.
    pub stream: TapStream,
    /// Added to mean squares.
    pub eps: f64,
    /// Rotary positions.
    pub rope: Yarn,
    /// Layers of the target.
    pub num_target_layers: usize,
}

/// Rotary positions stretched as YaRN does; a factor of 1 is plain rotary.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Yarn {
    /// Base of the frequencies.
    pub theta: f64,
    /// How far positions are stretched.
    pub factor: f64,
    /// Positions that are not.
    pub original: usize,
}

impl DraftConfig {
    /// Checks what the arithmetic relies on.
    ///
    /// # Errors
    /// `Option`, naming the flag.
    pub fn check(&self) -> Result<(), TrainError> {
        let refuse = |option, value: String, rule: String| Err(TrainError::Option { option, value, rule });
        for (option, value) in [
            ("--layers", self.num_layers),
            ("--heads", self.num_heads),
            ("--kv-heads", self.num_kv_heads),
            ("--intermediate", self.intermediate),
            ("--block-size", self.block_size),
            ("--markov-rank", self.markov_rank),
        ] {
            if value == 0 {
                return refuse(option, "0".into(), "at least 1".into());
            }
        }
        if !self.num_heads.is_multiple_of(self.num_kv_heads) {
            let rule = format!("it must divide --heads, {}", self.num_heads);
            return refuse("--kv-heads", self.num_kv_heads.to_string(), rule);
        }
        if self.head_dim == 0 || self.head_dim % 2 == 1 {
            return refuse("--head-dim", self.head_dim.to_string(), "it must be even and above 0".into());
        }
        let rising = self.taps.is_sorted_by(|a, b| a < b);
        if self.taps.is_empty() || !rising || self.taps.iter().any(|tap| *tap >= self.num_target_layers) {
            let last = self.num_target_layers.saturating_sub(1);
            let rule = format!("one or more layers of the target in rising order, 0 to {last}");
            return refuse("--taps", format!("{:?}", self.taps), rule);
        }
        if self.mask_token as usize >= self.vocabulary {
            let rule = format!("a row of the target's embedding, below {}", self.vocabulary);
            return refuse("--mask-token", self.mask_token.to_string(), rule);
        }
        Ok(())
    }

    /// Names and shapes of all tensors, in the order of the published checkpoints.
    pub fn tensors(&self) -> Vec<(String, Vec<usize>)> {
        let (h, q, kv) = (self.hidden, self.num_heads * self.head_dim, self.num_kv_heads * self.head_dim);
        let mut all = vec![
            ("fc.weight".to_owned(), vec![h, self.taps.len() * h]),
            ("hidden_norm.weight".to_owned(), vec![h]),
            ("norm.weight".to_owned(), vec![h]),
        ];
        for layer in 0..self.num_layers {
            let shapes = [
                ("input_layernorm", vec![h]),
                ("post_attention_layernorm", vec![h]),
                ("self_attn.q_proj", vec![q, h]),
                ("self_attn.k_proj", vec![kv, h]),
                ("self_attn.v_proj", vec![kv, h]),
                ("self_attn.o_proj", vec![h, q]),
                ("self_attn.q_norm", vec![self.head_dim]),
                ("self_attn.k_norm", vec![self.head_dim]),
                ("mlp.gate_proj", vec![self.intermediate, h]),
                ("mlp.up_proj", vec![self.intermediate, h]),
                ("mlp.down_proj", vec![h, self.intermediate]),
            ];
            all.extend(shapes.map(|(part, shape)| (format!("layers.{layer}.{part}.weight"), shape)));
        }
        let rank = self.markov_rank;
        all.extend([
            ("markov_head.markov_w1.weight".to_owned(), vec![self.vocabulary, rank]),
            ("markov_head.markov_w2.weight".to_owned(), vec![self.vocabulary, rank]),
            ("confidence_head.proj.weight".to_owned(), vec![1, h + rank]),
            ("confidence_head.proj.bias".to_owned(), vec![1]),
        ]);
        all
    }

    /// Number of weights.
    pub fn num_parameters(&self) -> usize {
        self.tensors().iter().map(|(_, shape)| shape.iter().product::<usize>()).sum()
    }

    /// The contents of `config.json`; `target` says which tokens begin, end and fill a sequence.
    pub fn to_json(&self, target: &Value) -> Value {
        let kinds = vec!["full_attention"; self.num_layers];
        let rope = if self.rope.factor == 1.0 {
            json!({ "rope_type": "default", "rope_theta": self.rope.theta })
        } else {
            json!({
                "rope_type": "yarn",
                "rope_theta": self.rope.theta,
                "factor": self.rope.factor,
                "original_max_position_embeddings": self.rope.original,
            })
        };
        let stream = match self.stream {
            TapStream::AttnRes => "attn_res",
            TapStream::Prefix => "prefix",
        };
        json!({
            "architectures": ["DSparkDraftModel"],
            "model_type": "qwen3",
            "auto_map": { "AutoModel": "dspark.DSparkDraftModel" },
            "block_size": self.block_size,
            "hidden_size": self.hidden,
            "intermediate_size": self.intermediate,
            "hidden_act": "silu",
            "num_hidden_layers": self.num_layers,
            "layer_types": kinds,
            "num_attention_heads": self.num_heads,
            "num_key_value_heads": self.num_kv_heads,
            "head_dim": self.head_dim,
            "rms_norm_eps": self.eps,
            "rope_parameters": rope,
            "max_position_embeddings": (self.rope.factor * self.rope.original as f64) as u64,
            "attention_bias": false,
            "attention_dropout": 0.0,
            "sliding_window": null,
            "use_sliding_window": false,
            "max_window_layers": self.num_layers,
            "initializer_range": 0.02,
            "tie_word_embeddings": false,
            "use_cache": true,
            "dtype": "bfloat16",
            "vocab_size": self.vocabulary,
            "bos_token_id": target.get("bos_token_id"),
            "eos_token_id": target.get("eos_token_id"),
            "pad_token_id": target.get("pad_token_id"),
            "num_target_layers": self.num_target_layers,
            "aux_hidden_stream": stream,
            "dflash_config": {
                "attention_mode": "gqa",
                "projector_type": "dspark",
                "target_layer_ids": self.taps,
                "mask_token_id": self.mask_token,
                "markov_rank": self.markov_rank,
                "markov_head_type": "vanilla",
                "enable_confidence_head": true,
                "confidence_head_with_markov": true,
                "confidence_head_alpha": 1.0,
            },
        })
    }

    /// The shape of a draft whose `config.json` a server would load, for a target of so many layers; only the kind that is
    /// trained here.
    ///
    /// # Errors
    /// What is of another kind.
    pub fn from_published(config: &Published, num_target_layers: usize) -> Result<Self, &'static str> {
        let DraftHeads::Grouped { num_heads, num_kv_heads, head_dim } = config.attention else {
            return Err("its attention is not grouped-query attention");
        };
        let plain = config.mask == DraftMask::Bidirectional
            && config.anchor == AnchorRow::FirstDraft
            && config.activation == FfnActivation::Silu
            && config.taps.norm == TapNorm::Off
            && config.confidence == Some(ConfidenceInput::HiddenAndMarkov);
        let Some(markov) = config.markov.filter(|head| plain && head.kind == MarkovKind::Vanilla) else {
            return Err("its block, activation, taps or heads are of another kind");
        };
        let yarn = config.rotary.yarn.map(|yarn| (yarn.factor, yarn.original_positions));
        let (factor, original) = yarn.unwrap_or((1.0, DEFAULT_POSITIONS));
        Ok(DraftConfig {
            hidden: config.hidden_size,
            vocabulary: config.vocab_size,
            num_layers: config.num_layers,
            num_heads,
            num_kv_heads,
            head_dim,
            intermediate: config.intermediate_size,
            block_size: config.block_rows,
            markov_rank: markov.rank,
            mask_token: config.mask_token.0,
            taps: config.taps.layers.clone(),
            stream: match config.taps.stream {
                perilune_config::TapStream::AttnRes => TapStream::AttnRes,
                perilune_config::TapStream::Prefix => TapStream::Prefix,
            },
            // The decimal number that was written, not its neighbour in single precision.
            eps: config.rms_norm_eps.to_string().parse().unwrap_or(f64::from(config.rms_norm_eps)),
            rope: Yarn { theta: config.rotary.theta, factor, original },
            num_target_layers,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_published_shape_has_the_published_tensors() {
        let published = DraftConfig {
            hidden: 7168,
            vocabulary: 163_840,
            num_layers: 5,
            num_heads: 64,
            num_kv_heads: 16,
            head_dim: 64,
            intermediate: 14_336,
            block_size: 7,
            markov_rank: 256,
            mask_token: 163_824,
            taps: vec![7, 23, 51, 67, 83],
            stream: TapStream::AttnRes,
            eps: 1e-5,
            rope: Yarn { theta: 10_000.0, factor: 16.0, original: 4096 },
            num_target_layers: 93,
        };
        published.check().unwrap();
        assert_eq!(published.tensors().len(), 62);
        assert_eq!(published.num_parameters(), 2_249_289_601);
        let json = published.to_json(&json!({ "eos_token_id": 163_586 }));
        assert_eq!(json["dflash_config"]["mask_token_id"], 163_824);
        assert_eq!(json["max_position_embeddings"], 65_536);
        assert_eq!(json["eos_token_id"], 163_586);
    }

    #[test]
    fn a_server_reads_the_shape_that_was_written() {
        let mut config = crate::fixture::config();
        let read = |config: &DraftConfig| {
            let written = config.to_json(&json!({ "eos_token_id": 3 })).to_string();
            DraftConfig::from_published(&Published::from_json_str(&written).unwrap(), 8)
        };
        assert_eq!(read(&config), Ok(config.clone()));
        config.rope = Yarn { theta: 10_000.0, factor: 1.0, original: DEFAULT_POSITIONS };
        config.stream = TapStream::Prefix;
        assert_eq!(read(&config), Ok(config.clone()));
        let other = |key: &str, value: Value| {
            let mut written = config.to_json(&Value::Null);
            written["dflash_config"][key] = value;
            DraftConfig::from_published(&Published::from_json_str(&written.to_string()).unwrap(), 8)
        };
        assert!(other("markov_head_type", json!("rnn")).is_err());
        assert!(other("enable_confidence_head", json!(false)).is_err());
    }

    #[test]
    fn shapes_that_cannot_work_are_refused_by_the_name_of_their_flag() {
        let good = crate::fixture::config();
        good.check().unwrap();
        let refused = |change: fn(&mut DraftConfig)| {
            let mut config = good.clone();
            change(&mut config);
            config.check().unwrap_err().to_string()
        };
        assert_eq!(refused(|c| c.num_kv_heads = 3), "--kv-heads is 3; it must divide --heads, 4");
        assert_eq!(refused(|c| c.head_dim = 7), "--head-dim is 7; it must be even and above 0");
        assert!(refused(|c| c.taps = vec![0, 8]).starts_with("--taps is [0, 8]; one or more layers of the target"));
        assert!(refused(|c| c.taps = vec![4, 2]).starts_with("--taps is [4, 2]; "));
        assert!(refused(|c| c.mask_token = 99).starts_with("--mask-token is 99"));
        assert_eq!(refused(|c| c.block_size = 0), "--block-size is 0; at least 1");
    }
}
