//! The two tiny checkpoints of `kimi-k3.md` section 9: every value follows from the tensor's name.

use perilune_config::ModelConfig;
use perilune_tensor::{DType, HostTensor, TensorSpec};
use perilune_weights::{Expected, Layout, MemorySource, expected_tensors};

/// The tensors of `config`, made for `tag` (`k3` or `kl`). `k3` has MXFP4 experts and a padded `A_log`.
pub fn tiny_checkpoint(config: &ModelConfig, tag: &str) -> MemorySource {
    let mut source = MemorySource::new();
    for expected in expected_tensors(config) {
        add(&mut source, &expected, tag);
    }
    source
}

fn add(source: &mut MemorySource, expected: &Expected, tag: &str) {
    let name = &expected.name;
    if let (Some((packed, scales)), "k3") = (expected.layout.packed_shapes(), tag) {
        let stem = name.strip_suffix(".weight").unwrap();
        let data = words(&format!("{tag}/{stem}.weight_packed"), packed.numel()).map(|z| (z >> 56) as u8).collect();
        let scale =
            words(&format!("{tag}/{stem}.weight_scale"), scales.numel()).map(|z| 122 + (z >> 62) as u8).collect();
        let bytes = |shape, data| HostTensor::from_vec(TensorSpec::new(DType::U8, shape), data).unwrap();
        source.insert(format!("{stem}.weight_packed"), bytes(packed, data));
        source.insert(format!("{stem}.weight_scale"), bytes(scales, scale));
        return;
    }
    let shape = expected.layout.shape();
    let steps = words(&format!("{tag}/{name}"), shape.numel()).map(|z| (z >> 56) as i32 - 128);
    let mut values: Vec<f32> = match exponent(name) {
        None => steps.map(|k| 1.0 + (k >> 1) as f32 / 128.0).collect(),
        Some(e) => steps.map(|k| k as f32 / 128.0 * 2.0_f32.powi(e)).collect(),
    };
    if matches!(expected.layout, Layout::PerHead { .. }) && tag == "k3" {
        values.extend([0.0, 0.0]);
        source.insert(name.clone(), HostTensor::from_f32([values.len()], &values).unwrap());
    } else if matches!(expected.layout, Layout::Matrix { .. } | Layout::ExpertMatrix { .. }) {
        let bytes = values.iter().flat_map(|v| half::bf16::from_f32(*v).to_le_bytes()).collect();
        source.insert(name.clone(), HostTensor::from_vec(TensorSpec::new(DType::Bf16, shape), bytes).unwrap());
    } else {
        source.insert(name.clone(), HostTensor::from_f32(shape, &values).unwrap());
    }
}

/// Power of two of a tensor's range; `None` for norm weights, which lie around 1.
fn exponent(name: &str) -> Option<i32> {
    let has = |part: &str| name.contains(part);
    if name.ends_with("norm.weight") {
        return None;
    }
    Some(match () {
        () if has("embed_tokens") || has("dt_bias") => 1,
        () if has("f_b_proj") || has("g_b_proj") || has("A_log") => 0,
        () if has("lm_head") || has("conv1d") => -1,
        () if has("e_score_correction_bias") => -3,
        () if has("q_a_proj") || has("kv_a_proj") => -6,
        () => -2,
    })
}

/// 64-bit words: splitmix64 over FNV-1a of the name.
fn words(name: &str, count: usize) -> impl Iterator<Item = u64> + use<> {
    let hash = name.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |h, b| (h ^ u64::from(b)).wrapping_mul(0x0100_0000_01b3));
    (1..=count as u64).map(move |i| {
        let z = hash.wrapping_add(i.wrapping_mul(0x9E37_79B9_7F4A_7C15));
        let z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    })
}

#[cfg(test)]
mod tests {
    use super::words;

    #[test]
    fn the_generator_is_the_specified_one() {
        let first: Vec<u64> = words("k3/model.embed_tokens.weight", 2).collect();
        assert_eq!(first, [0x3ab2_8121_6323_1bf5, 0x9bb2_b8db_7c48_b35e]);
    }
}
