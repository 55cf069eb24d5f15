//! A draft, a target's frozen parts and a sequence, all tiny and made up, for tests.

use burn::tensor::{DType, Device};
use perilune_model::TapStream;
use perilune_tensor::TokenId;

use crate::draft::Draft;
use crate::draft_config::{DraftConfig, Yarn};
use crate::loss::LossWeights;
use crate::objective::{Objective, Spoken};
use crate::place::Place;
use crate::target::{Embedding, TargetEnds};

/// Of [`spoken`]; the last block goes beyond the end of the sequence.
pub(crate) const ANCHORS: [usize; 3] = [4, 6, 11];

pub(crate) fn config() -> DraftConfig {
    DraftConfig {
        hidden: 12,
        vocabulary: 19,
        num_layers: 2,
        num_heads: 4,
        num_kv_heads: 2,
        head_dim: 6,
        intermediate: 10,
        block_size: 3,
        markov_rank: 5,
        mask_token: 18,
        taps: vec![0, 3],
        stream: TapStream::AttnRes,
        eps: 1e-5,
        rope: Yarn { theta: 100.0, factor: 4.0, original: 64 },
        num_target_layers: 8,
    }
}

/// Numbers between -1 and 1 that look like chance.
pub(crate) fn numbers(len: usize, salt: u64) -> Vec<f32> {
    let mix = |i: u64| {
        (i.wrapping_add(salt << 32))
            .wrapping_mul(0x9E37_79B9_7F4A_7C15)
            .rotate_left(31)
            .wrapping_mul(0xBF58_476D_1CE4_E5B9)
    };
    (0..len as u64).map(|i| (mix(i) >> 40) as f32 / (1u64 << 23) as f32 - 1.0).collect()
}

pub(crate) fn objective(dtype: DType) -> Objective {
    let config = config();
    let table = |salt| numbers(config.vocabulary * config.hidden, salt);
    let ends = TargetEnds { embedding: Embedding::new(table(1), config.hidden), head: table(2) };
    Objective::new(config, LossWeights::default(), (ends, Place { device: Device::flex(), dtype }))
}

/// Thirteen tokens, of which the last nine are the answer.
pub(crate) fn spoken(config: &DraftConfig) -> Spoken {
    let tokens: Vec<TokenId> = (0..13).map(|i| TokenId(i * 7 % 17)).collect();
    let answer = 4;
    Spoken {
        taps: numbers(tokens.len() * config.taps.len() * config.hidden, 3),
        logits: numbers((tokens.len() - answer + 1) * config.vocabulary, 4).iter().map(|x| 3.0 * x).collect(),
        tokens,
        answer,
    }
}

/// A draft none of whose weights are zero.
pub(crate) fn draft(objective: &Objective) -> Draft {
    let place = Place { device: objective.place.device.clone().autodiff(), dtype: objective.place.dtype };
    let values = |shape: &[usize], salt| numbers(shape.iter().product(), salt).iter().map(|x| 0.5 * x + 0.1).collect();
    let tensors = objective.config.tensors();
    let read = |name: &str| {
        let at = tensors.iter().position(|(found, _)| found == name);
        Ok(at.map_or_else(Vec::new, |at| values(&tensors[at].1, 10 + at as u64)))
    };
    Draft::from_tensors(&objective.config, &place, &read).unwrap()
}
