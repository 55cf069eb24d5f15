//! What is read, and what is refused, from whole configuration files.

use std::path::{Path, PathBuf};

use proptest::prelude::*;
use proptest::test_runner::RngSeed;
use serde_json::{Value, json};

use super::*;
use crate::ConfigError;

fn configs() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/data/configs")
}

fn text(name: &str) -> String {
    std::fs::read_to_string(configs().join(name)).unwrap()
}

fn linear() -> Value {
    serde_json::from_str(&text("kimi-linear-48b.json")).unwrap()
}

fn k3() -> Value {
    serde_json::from_str(&text("kimi-k3.json")).unwrap()
}

fn read(value: &Value) -> Result<ModelConfig, ConfigError> {
    ModelConfig::from_json_str(&value.to_string())
}

/// Changes one key and expects a refusal that names the key, the value and part of the rule.
#[track_caller]
fn check_refused(mut config: Value, pointer: &str, value: Value, rule: &str) {
    let shown = value.to_string();
    let (parent, key) = pointer.rsplit_once('/').unwrap();
    config.pointer_mut(parent).unwrap()[key] = value;
    let error = read(&config).expect_err("must be refused").to_string();
    assert!(error.contains(key), "{error} does not name {key}");
    assert!(error.contains(&shown), "{error} does not show {shown}");
    assert!(error.contains(rule), "{error} does not say {rule:?}");
}

#[test]
fn reads_the_published_k3() {
    let config = read(&k3()).unwrap();
    assert_eq!((config.num_layers(), config.count(LayerKind::Kda), config.count(LayerKind::Mla)), (93, 69, 24));
    assert_eq!(config.layers[90..], [LayerKind::Kda, LayerKind::Mla, LayerKind::Mla]);
    assert_eq!(config.kda.decay, KdaDecay::Bounded { lower_bound: -5.0 });
    assert_eq!(config.kda.out_gate, OutGateRank::Full);
    assert_eq!(config.mla.output_gate, OutputGate::Sigmoid);
    assert_eq!(config.mla.q_lora_rank, Some(1536));
    assert_eq!(config.activation, FfnActivation::Situ { beta: 4.0, linear_beta: Some(25.0) });
    assert_eq!(config.attn_res_block_size, Some(12));
    let moe = config.moe.unwrap();
    assert_eq!((moe.num_experts, moe.top_k, moe.shared_width()), (896, 16, 6144));
    assert_eq!(moe.latent, Some(LatentMoe { width: 3584, norm: LatentNorm::Rms }));
    assert_eq!((config.ffn(0), config.ffn(1), config.ffn(92)), (FfnKind::Dense, FfnKind::Moe, FfnKind::Moe));
    assert_eq!(config.experts_declared, ExpertStorage::Mxfp4);
    assert_eq!(config.eos_tokens, [TokenId(163_586)]);
    assert_eq!(config.max_positions, Some(1 << 20));
}

#[test]
fn reads_the_published_kimi_linear() {
    let config = read(&linear()).unwrap();
    assert_eq!((config.num_layers(), config.count(LayerKind::Mla)), (27, 7));
    assert_eq!(config.kda.decay, KdaDecay::Softplus);
    assert_eq!(config.kda.out_gate, OutGateRank::Low);
    assert_eq!((config.mla.output_gate, config.mla.q_lora_rank), (OutputGate::Off, None));
    assert_eq!((config.activation, config.attn_res_block_size), (FfnActivation::Silu, None));
    assert_eq!(config.moe.unwrap().latent, None);
    assert_eq!(config.moe.unwrap().routed_scaling_factor, 2.446);
    assert_eq!((config.num_residual_banks(), config.expert_width()), (0, 2304));
    assert_eq!(config.max_positions, Some(1 << 20));
}

#[test]
fn reads_the_small_configurations() {
    let demo = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models/demo");
    assert_eq!(ModelConfig::from_dir(&demo).unwrap().eos_tokens, [TokenId(2018)]);
    let k3 = read(&serde_json::from_str(&text("mid-k3.json")).unwrap()).unwrap();
    assert_eq!(k3.kda.out_gate, OutGateRank::Low);
    let linear = read(&serde_json::from_str(&text("mid-kimi-linear.json")).unwrap()).unwrap();
    assert_eq!(linear.experts_declared, ExpertStorage::Plain);
    let vectors = std::fs::read_to_string(configs().join("../vectors.json")).unwrap();
    let vectors: Value = serde_json::from_str(&vectors).unwrap();
    for tag in ["k3", "kl"] {
        let config = read(&vectors[tag]["config"]).unwrap();
        assert_eq!(config.attn_res_block_size.is_some(), tag == "k3");
    }
}

#[test]
fn reads_the_newer_spellings() {
    let mut config = linear();
    let expected = read(&config).unwrap();
    let map = config.as_object_mut().unwrap();
    for (old, new) in [
        ("num_experts", "num_local_experts"),
        ("num_experts_per_token", "num_experts_per_tok"),
        ("num_shared_experts", "n_shared_experts"),
        ("num_expert_group", "n_group"),
        ("moe_renormalize", "norm_topk_prob"),
    ] {
        let value = map.remove(old).unwrap();
        map.insert(new.into(), value);
    }
    assert_eq!(read(&config).unwrap(), expected);
    config["num_experts"] = json!(255);
    let error = read(&config).unwrap_err().to_string();
    assert!(error.contains("num_local_experts") && error.contains("255") && error.contains("256"), "{error}");
}

#[test]
fn refuses_what_cannot_run() {
    check_refused(linear(), "/hidden_act", json!("gelu"), "silu or situ");
    check_refused(linear(), "/mla_use_nope", json!(false), "rotary");
    check_refused(linear(), "/rope_scaling", json!({"type": "yarn"}), "rotary");
    check_refused(linear(), "/topk_method", json!("greedy"), "noaux_tc");
    check_refused(linear(), "/moe_router_activation_func", json!("softmax"), "sigmoid");
    check_refused(linear(), "/num_key_value_heads", json!(8), "num_attention_heads");
    check_refused(linear(), "/num_nextn_predict_layers", json!(1), "multi-token");
    check_refused(linear(), "/model_type", json!("llama"), "kimi_k3 or kimi_linear");
    check_refused(linear(), "/num_experts_per_token", json!(257), "1 to 256");
    check_refused(linear(), "/num_expert_group", json!(7), "divide");
    check_refused(k3(), "/text_config/linear_attn_config/gate_lower_bound", json!(5.0), "below 0");
    check_refused(k3(), "/text_config/activation_situ_beta", json!(0), "greater than 0");
    check_refused(k3(), "/text_config/activation_situ_linear_beta", json!(-25.0), "greater than 0");
    check_refused(k3(), "/text_config/quantization_config/format", json!("nvfp4-pack-quantized"), "mxfp4");
    check_refused(k3(), "/text_config/quantization_config/quant_method", json!("gptq"), "compressed-tensors");
    check_refused(k3(), "/text_config/moe_intermediate_size", json!(3080), "multiple of 32");
    check_refused(k3(), "/text_config/routed_expert_hidden_size", json!(3600), "multiple of 32");
}

#[test]
fn refuses_tokens_that_are_none_and_architectures_that_name_nothing() {
    for family in [linear(), k3()] {
        let text = family.get("text_config").unwrap_or(&family);
        let vocab_size = text["vocab_size"].clone();
        for key in ["bos_token_id", "eos_token_id", "pad_token_id"] {
            for bad in [vocab_size.clone(), json!(-1), json!("3"), json!(true), json!(1.5), json!({})] {
                check_refused(family.clone(), &format!("/{key}"), bad, "a whole number from 0 to");
            }
        }
        for bad in [json!("KimiK3"), json!(3), json!([3]), json!({})] {
            check_refused(family.clone(), "/architectures", bad, "a list of names");
        }
    }
    check_refused(linear(), "/bos_token_id", json!([1, 2]), "a whole number");
    let mut outside = linear();
    outside["eos_token_id"] = json!([1, 163_840]);
    let error = read(&outside).unwrap_err().to_string();
    assert!(error.contains("config.json: `eos_token_id` is 163840"), "{error}");
}

#[test]
fn refuses_another_bit_width() {
    let mut config = k3();
    *config.pointer_mut("/text_config/quantization_config/config_groups/group_0/weights/num_bits").unwrap() = json!(8);
    let error = read(&config).unwrap_err().to_string();
    assert!(error.contains("config_groups") && error.contains("num_bits"), "{error}");
}

#[test]
fn refuses_layer_lists_that_are_no_partition() {
    let mut twice = linear();
    twice["linear_attn_config"]["kda_layers"][0] = json!(4);
    assert!(read(&twice).unwrap_err().to_string().contains("4"), "{:?}", read(&twice));
    let mut absent = linear();
    absent["linear_attn_config"]["kda_layers"].as_array_mut().unwrap().remove(1);
    let error = read(&absent).unwrap_err().to_string();
    assert!(error.contains("layer 2"), "{error}");
    for bad in [json!(0), json!(28), json!(-1), json!("3"), json!(1.5)] {
        let mut outside = linear();
        outside["linear_attn_config"]["kda_layers"][0] = bad.clone();
        assert!(read(&outside).is_err(), "{bad}");
    }
}

#[test]
fn names_a_missing_key() {
    for key in ["vocab_size", "kv_lora_rank", "hidden_act", "mla_use_nope", "linear_attn_config", "rms_norm_eps"] {
        let mut config = linear();
        config.as_object_mut().unwrap().remove(key);
        let error = read(&config).unwrap_err();
        assert!(matches!(&error, ConfigError::Missing { key: found, .. } if found == key), "{error}");
    }
}

#[test]
fn unreadable_text_is_an_error() {
    for text in ["", "{", "[]", "null", "{\"vocab_size\": 1e999}", "\u{feff}{}", &"[".repeat(100_000)] {
        assert!(ModelConfig::from_json_str(text).is_err());
    }
    assert!(matches!(ModelConfig::from_dir(Path::new("/nonexistent")), Err(ConfigError::Io { .. })));
}

/// Every pointer to a value in a configuration.
fn pointers(value: &Value, at: &str, out: &mut Vec<String>) {
    let Value::Object(map) = value else { return };
    for (key, child) in map {
        let here = format!("{at}/{key}");
        pointers(child, &here, out);
        out.push(here);
    }
}

fn malformed() -> impl Strategy<Value = Value> {
    prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<u64>().prop_map(Value::from),
        any::<f64>().prop_map(|number| json!(number)),
        "[a-z]{0,8}".prop_map(Value::from),
        proptest::collection::vec(any::<i32>(), 0..4).prop_map(|list| json!(list)),
        Just(json!({})),
        Just(json!({"weights": {"num_bits": "4"}})),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { rng_seed: RngSeed::Fixed(2), failure_persistence: None, ..Default::default() })]
    #[test]
    fn a_malformed_value_never_panics_and_figures_never_overflow(
        which in any::<prop::sample::Index>(), value in malformed(), family in 0..2,
    ) {
        let mut config = if family == 0 { linear() } else { k3() };
        let mut all = Vec::new();
        pointers(&config, "", &mut all);
        *config.pointer_mut(&all[which.index(all.len())]).unwrap() = value;
        if let Ok(read) = read(&config) {
            prop_assert!(read.parameters().active <= read.parameters().total);
            prop_assert!(read.state_bytes_per_request() > 0);
        }
    }
}
