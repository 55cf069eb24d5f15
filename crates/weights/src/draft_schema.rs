//! Which tensors a draft model consists of, by the names of its family (`kimi-k3.md` 6.2 and 6.3).

use perilune_config::{ConfidenceInput, DraftConfig, DraftFamily, DraftHeads, MarkovKind, TapNorm};

use crate::schema::{Expected, Layout};

/// Names that the families give to the same tensor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DraftNames {
    /// Projection of the concatenated taps.
    pub context_proj: &'static str,
    /// Norm of its output.
    pub context_norm: &'static str,
    /// Norm before the head.
    pub final_norm: &'static str,
}

impl DraftNames {
    /// The names of a family.
    pub fn of(family: DraftFamily) -> DraftNames {
        match family {
            DraftFamily::SpecForge => {
                DraftNames { context_proj: "fc.weight", context_norm: "hidden_norm.weight", final_norm: "norm.weight" }
            }
            DraftFamily::K3Dspark => DraftNames {
                context_proj: "context_proj.weight",
                context_norm: "context_norm.weight",
                final_norm: "final_norm.weight",
            },
        }
    }
}

/// Every tensor of a draft. Embedding and head are the target's.
pub fn expected_draft_tensors(config: &DraftConfig) -> Vec<Expected> {
    let mut list = List(Vec::new());
    let (hidden, taps) = (config.hidden_size, config.taps.layers.len());
    let names = DraftNames::of(config.family);
    list.matrix(names.context_proj, hidden, taps * hidden);
    list.vector(names.context_norm, hidden);
    list.vector(names.final_norm, hidden);
    if config.taps.norm == TapNorm::Rms {
        (0..taps).for_each(|tap| list.vector(&format!("fc_norm.{tap}.weight"), hidden));
    }
    (0..config.num_layers).for_each(|layer| list.layer(config, layer));
    list.heads(config);
    list.0
}

struct List(Vec<Expected>);

impl List {
    fn matrix(&mut self, name: &str, rows: usize, cols: usize) {
        self.0.push(Expected { name: name.to_owned(), layout: Layout::Matrix { rows, cols } });
    }

    fn vector(&mut self, name: &str, len: usize) {
        self.0.push(Expected { name: name.to_owned(), layout: Layout::Vector { len } });
    }

    fn layer(&mut self, config: &DraftConfig, layer: usize) {
        let (stem, hidden, inner) = (format!("layers.{layer}"), config.hidden_size, config.intermediate_size);
        self.vector(&format!("{stem}.input_layernorm.weight"), hidden);
        self.vector(&format!("{stem}.post_attention_layernorm.weight"), hidden);
        self.attention(&format!("{stem}.self_attn"), config.attention, hidden);
        self.matrix(&format!("{stem}.mlp.gate_proj.weight"), inner, hidden);
        self.matrix(&format!("{stem}.mlp.up_proj.weight"), inner, hidden);
        self.matrix(&format!("{stem}.mlp.down_proj.weight"), hidden, inner);
    }

    fn attention(&mut self, stem: &str, heads: DraftHeads, hidden: usize) {
        match heads {
            DraftHeads::Grouped { num_heads, num_kv_heads, head_dim } => {
                self.matrix(&format!("{stem}.q_proj.weight"), num_heads * head_dim, hidden);
                self.matrix(&format!("{stem}.k_proj.weight"), num_kv_heads * head_dim, hidden);
                self.matrix(&format!("{stem}.v_proj.weight"), num_kv_heads * head_dim, hidden);
                self.matrix(&format!("{stem}.o_proj.weight"), hidden, num_heads * head_dim);
                self.vector(&format!("{stem}.q_norm.weight"), head_dim);
                self.vector(&format!("{stem}.k_norm.weight"), head_dim);
            }
            DraftHeads::Latent {
                num_heads,
                q_lora_rank,
                kv_lora_rank,
                qk_nope_head_dim,
                qk_rope_head_dim,
                v_head_dim,
            } => {
                let (query, expanded) = (qk_nope_head_dim + qk_rope_head_dim, qk_nope_head_dim + v_head_dim);
                self.matrix(&format!("{stem}.q_a_proj.weight"), q_lora_rank, hidden);
                self.vector(&format!("{stem}.q_a_layernorm.weight"), q_lora_rank);
                self.matrix(&format!("{stem}.q_b_proj.weight"), num_heads * query, q_lora_rank);
                self.matrix(&format!("{stem}.kv_a_proj_with_mqa.weight"), kv_lora_rank + qk_rope_head_dim, hidden);
                self.vector(&format!("{stem}.kv_a_layernorm.weight"), kv_lora_rank);
                self.matrix(&format!("{stem}.kv_b_proj.weight"), num_heads * expanded, kv_lora_rank);
                self.matrix(&format!("{stem}.o_proj.weight"), hidden, num_heads * v_head_dim);
            }
        }
    }

    fn heads(&mut self, config: &DraftConfig) {
        let (vocab, hidden) = (config.vocab_size, config.hidden_size);
        let rank = config.markov.map_or(0, |markov| markov.rank);
        if let Some(markov) = config.markov {
            self.matrix("markov_head.markov_w1.weight", vocab, rank);
            self.matrix("markov_head.markov_w2.weight", vocab, rank);
            match markov.kind {
                MarkovKind::Vanilla => {}
                MarkovKind::Gated => self.affine("markov_head.gate_proj", rank, hidden + rank),
                MarkovKind::Rnn => self.affine("markov_head.joint_proj", 3 * rank, 2 * rank + hidden),
            }
        }
        match config.confidence {
            None => {}
            Some(ConfidenceInput::Hidden) => self.affine("confidence_head.proj", 1, hidden),
            Some(ConfidenceInput::HiddenAndMarkov) => self.affine("confidence_head.proj", 1, hidden + rank),
        }
    }

    fn affine(&mut self, stem: &str, rows: usize, cols: usize) {
        self.matrix(&format!("{stem}.weight"), rows, cols);
        self.vector(&format!("{stem}.bias"), rows);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SPEC_FORGE: &str = r#"{"architectures": ["DSparkDraftModel"], "block_size": 7, "hidden_size": 7168,
        "intermediate_size": 14336, "num_hidden_layers": 5, "num_attention_heads": 64, "num_key_value_heads": 16,
        "head_dim": 64, "rms_norm_eps": 1e-5, "rope_theta": 10000, "vocab_size": 163840,
        "dflash_config": {"target_layer_ids": [7, 23, 51, 67, 83], "mask_token_id": 163824, "markov_rank": 256,
            "enable_confidence_head": true}}"#;
    const K3_DSPARK: &str = r#"{"model_type": "k3_dspark", "hidden_size": 7168, "intermediate_size": 14336,
        "num_hidden_layers": 5, "num_attention_heads": 64, "q_lora_rank": 1536, "kv_lora_rank": 512,
        "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128, "rms_norm_eps": 1e-5, "vocab_size": 163840,
        "target_layer_ids": [2, 23, 47, 71, 89], "mask_token_id": 163837, "markov_rank": 256,
        "enable_confidence_head": true}"#;

    fn totals(text: &str) -> (usize, usize) {
        let list = expected_draft_tensors(&DraftConfig::from_json_str(text).unwrap());
        (list.len(), list.iter().map(|e| e.layout.shape().numel()).sum())
    }

    #[test]
    fn the_published_drafts_have_their_published_numbers_of_tensors_and_parameters() {
        assert_eq!(totals(SPEC_FORGE), (62, 2_249_289_601));
        // The published checkpoint also holds a copy of the embedding.
        assert_eq!(totals(K3_DSPARK), (68 - 1, 3_562_312_961 - 163_840 * 7168));
    }
}
