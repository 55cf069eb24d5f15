//! Random checkpoints of any configuration, for benchmarks and tests.
//!
//! Deterministic: the values depend on the tensor's name and the seed alone. Matrices have a standard deviation of
//! `in^(-1/2)`, so that activations and logits stay of order one; norms are near one, decays moderate.

use std::path::Path;

use perilune_config::{DraftConfig, ModelConfig};
use perilune_tensor::{DType, Shape, TensorSpec};

use crate::{
    Expected, Layout, Sharding, TensorToWrite, WeightsError, expected_draft_tensors, expected_tensors, write_tensors,
};

/// How routed experts are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StoredExperts {
    /// Like every other matrix, `BF16`.
    Bf16,
    /// MXFP4. A matrix whose input width is not a multiple of 32 is written as `BF16`.
    Mxfp4,
}

/// What a random checkpoint looks like.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RandomOptions<'a> {
    /// Other seeds give other weights.
    pub seed: u64,
    /// Storage of the routed experts.
    pub experts: StoredExperts,
    /// Division into files.
    pub sharding: Sharding,
    /// Put before every name: `language_model.` as in K3's checkpoints, or nothing.
    pub prefix: &'a str,
}

impl Default for RandomOptions<'_> {
    fn default() -> Self {
        RandomOptions { seed: 0, experts: StoredExperts::Bf16, sharding: Sharding::Single, prefix: "" }
    }
}

/// Writes the tensors of a random model into an existing directory. `config.json` is the caller's to put beside them.
///
/// # Errors
/// `Io`.
pub fn write_random_checkpoint(
    config: &ModelConfig,
    options: RandomOptions<'_>,
    dir: &Path,
) -> Result<(), WeightsError> {
    let tensors = expected_tensors(config).iter().flat_map(|expected| random_tensors(expected, options)).collect();
    write_tensors(tensors, options.sharding, dir)
}

/// Writes the tensors of a random draft into an existing directory. `config.json` is the caller's to put beside them.
///
/// # Errors
/// `Io`.
pub fn write_random_draft(config: &DraftConfig, options: RandomOptions<'_>, dir: &Path) -> Result<(), WeightsError> {
    let expected = expected_draft_tensors(config);
    let tensors = expected.iter().flat_map(|expected| random_tensors(expected, options)).collect();
    write_tensors(tensors, options.sharding, dir)
}

/// The one or two stored tensors of an expected one.
fn random_tensors(expected: &Expected, options: RandomOptions<'_>) -> Vec<TensorToWrite<'static>> {
    let name = format!("{}{}", options.prefix, expected.name);
    let seed = hash(&expected.name) ^ options.seed.wrapping_mul(GOLDEN);
    if options.experts == StoredExperts::Mxfp4
        && let Layout::ExpertMatrix { cols, .. } = expected.layout
        && let Some((packed, scales)) = expected.layout.packed_shapes()
    {
        let stem = name.trim_end_matches(".weight");
        return vec![packed_data(format!("{stem}.weight_packed"), packed, seed), {
            packed_scales((format!("{stem}.weight_scale"), scales), cols, !seed)
        }];
    }
    let (shape, range) = (expected.layout.shape(), value_range(expected));
    let dtype = if stored_wide(expected) { DType::F32 } else { DType::Bf16 };
    let count = shape.numel();
    let bytes = move || match dtype {
        DType::F32 => Words(seed).take(count).flat_map(|word| range.value(word).to_le_bytes()).collect(),
        _ => Words(seed).take(count).flat_map(|word| half::bf16::from_f32(range.value(word)).to_le_bytes()).collect(),
    };
    vec![TensorToWrite { name, spec: TensorSpec::new(dtype, shape), bytes: Box::new(bytes) }]
}

fn packed_data(name: String, shape: Shape, seed: u64) -> TensorToWrite<'static> {
    let count = shape.numel();
    let bytes = move || Words(seed).take(count).map(|word| (word >> 56) as u8).collect();
    TensorToWrite { name, spec: TensorSpec::new(DType::U8, shape), bytes: Box::new(bytes) }
}

/// Scales that give the matrix its standard deviation: nibbles drawn evenly have one of about `2^1.55`.
fn packed_scales((name, shape): (String, Shape), cols: usize, seed: u64) -> TensorToWrite<'static> {
    let count = shape.numel();
    let exponent = (-0.5 * (cols as f32).log2() - 1.55).round() as i32;
    let base = (127 + exponent).clamp(1, 253) as u8;
    let bytes = move || Words(seed).take(count).map(|word| base - (word >> 63) as u8).collect();
    TensorToWrite { name, spec: TensorSpec::new(DType::U8, shape), bytes: Box::new(bytes) }
}

/// The tensors that K3 stores in `F32`.
fn stored_wide(expected: &Expected) -> bool {
    let small = ["dt_bias", "o_norm.weight", "e_score_correction_bias"];
    matches!(expected.layout, Layout::Taps { .. } | Layout::PerHead { .. })
        || small.iter().any(|suffix| expected.name.ends_with(suffix))
}

/// Values drawn evenly from `centre ± spread`.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Range {
    centre: f32,
    spread: f32,
}

impl Range {
    fn value(self, word: u64) -> f32 {
        let unit = (word >> 40) as f32 / (1u64 << 23) as f32 - 1.0;
        self.centre + self.spread * unit
    }
}

fn value_range(expected: &Expected) -> Range {
    let even = |deviation: f32| Range { centre: 0.0, spread: deviation * 3f32.sqrt() };
    let name = expected.name.as_str();
    match expected.layout {
        _ if name.ends_with("embed_tokens.weight") || name.ends_with("markov_w1.weight") => even(1.0),
        _ if name.ends_with(".bias") => Range { centre: 0.0, spread: 0.5 },
        _ if name.ends_with("e_score_correction_bias") => Range { centre: 0.0, spread: 0.02 },
        _ if name.ends_with("dt_bias") => Range { centre: -2.0, spread: 2.0 },
        Layout::Matrix { cols, .. } | Layout::ExpertMatrix { cols, .. } => even((cols as f32).powf(-0.5)),
        Layout::Row { len } => even((len as f32).powf(-0.5)),
        Layout::Taps { kernel, .. } => even((kernel as f32).powf(-0.5)),
        Layout::PerHead { .. } => Range { centre: 0.0, spread: 1.0 },
        Layout::Vector { .. } => Range { centre: 1.0, spread: 0.25 },
    }
}

const GOLDEN: u64 = 0x9E37_79B9_7F4A_7C15;

/// FNV-1a of a name.
fn hash(name: &str) -> u64 {
    name.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3))
}

/// The splitmix64 sequence.
struct Words(u64);

impl Iterator for Words {
    type Item = u64;

    fn next(&mut self) -> Option<u64> {
        self.0 = self.0.wrapping_add(GOLDEN);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        Some(z ^ (z >> 31))
    }
}
