//! What is read, and what is refused, from whole draft configurations.

use serde_json::{Value, json};

use std::path::{Path, PathBuf};

use super::*;

/// The published GQA draft (`kimi-k3.md` 6.2).
fn spec_forge() -> Value {
    json!({
        "architectures": ["DSparkDraftModel"], "model_type": "qwen3", "block_size": 7, "hidden_size": 7168,
        "intermediate_size": 14336, "hidden_act": "silu", "num_hidden_layers": 5, "num_attention_heads": 64,
        "num_key_value_heads": 16, "head_dim": 64, "rms_norm_eps": 1e-5, "attention_bias": false,
        "rope_parameters": {"rope_type": "yarn", "rope_theta": 10000, "factor": 16,
            "original_max_position_embeddings": 4096},
        "max_position_embeddings": 65536, "sliding_window": null, "use_sliding_window": false, "vocab_size": 163840,
        "layer_types": ["full_attention", "full_attention"], "num_target_layers": 93,
        "dflash_config": {"attention_mode": "gqa", "projector_type": "dspark", "target_layer_ids": [7, 23, 51, 67, 83],
            "mask_token_id": 163824, "markov_rank": 256, "markov_head_type": "vanilla", "enable_confidence_head": true,
            "confidence_head_with_markov": true, "confidence_head_alpha": 1.0},
    })
}

/// The published MLA draft (`kimi-k3.md` 6.3), with the scaling of the long variants.
fn k3_dspark() -> Value {
    json!({
        "architectures": ["K3DSparkModel"], "model_type": "k3_dspark", "hidden_size": 7168, "intermediate_size": 14336,
        "num_hidden_layers": 5, "num_attention_heads": 64, "num_key_value_heads": 64, "q_lora_rank": 1536,
        "kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128, "mla_use_nope": false,
        "mla_use_output_gate": false, "mla_use_qk_norm": false, "rms_norm_eps": 1e-5, "vocab_size": 163840,
        "draft_vocab_size": 163840, "target_hidden_size": 7168, "target_layer_ids": [2, 23, 47, 71, 89],
        "num_target_layers": 5, "target_num_hidden_layers": 93, "mask_token_id": 163837, "markov_rank": 256,
        "rope_parameters": {"rope_type": "yarn", "rope_theta": 50000.0, "factor": 32.0, "mscale": 1.0,
            "original_max_position_embeddings": 32768, "mscale_all_dim": 1.0},
        "markov_head_type": "vanilla", "enable_confidence_head": true, "confidence_head_with_markov": true,
    })
}

fn read(value: &Value) -> Result<DraftConfig, ConfigError> {
    DraftConfig::from_json_str(&value.to_string())
}

fn target() -> ModelConfig {
    ModelConfig::from_file(&data("kimi-k3.json")).unwrap()
}

#[test]
fn the_published_drafts_are_understood() {
    let gqa = read(&spec_forge()).unwrap();
    assert_eq!(gqa.family, DraftFamily::SpecForge);
    assert_eq!((gqa.num_drafts(), gqa.block_rows, gqa.mask_token), (7, 7, TokenId(163_824)));
    assert_eq!(gqa.taps.stream, TapStream::AttnRes);
    assert_eq!(gqa.context_len(), 5 * 2048);
    let yarn = gqa.rotary.yarn.unwrap();
    assert!((yarn.amplitude - 1.2773).abs() < 1e-4 && yarn.score_factor == 1.0, "{yarn:?}");
    assert_eq!(gqa.confidence, Some(ConfidenceInput::HiddenAndMarkov));
    gqa.check_target(&target()).unwrap();

    let mla = read(&k3_dspark()).unwrap();
    assert_eq!((mla.family, mla.mask, mla.num_drafts()), (DraftFamily::K3Dspark, DraftMask::Bidirectional, 7));
    assert_eq!((mla.taps.stream, mla.context_len()), (TapStream::Prefix, 5 * 576));
    let yarn = mla.rotary.yarn.unwrap();
    let growth = 0.1 * 32f64.ln() + 1.0;
    assert!((yarn.amplitude - 1.0).abs() < 1e-12 && (yarn.score_factor - growth * growth).abs() < 1e-12, "{yarn:?}");
    mla.check_target(&target()).unwrap();
}

#[test]
fn variants_are_keys() {
    let mut light = k3_dspark();
    light["aux_hidden_stream"] = "attn_res".into();
    light["fc_norm"] = true.into();
    light["causal"] = true.into();
    light["rope_parameters"] = Value::Null;
    let light = read(&light).unwrap();
    assert_eq!((light.taps.stream, light.taps.norm, light.mask), (TapStream::AttnRes, TapNorm::Rms, DraftMask::Causal));
    assert_eq!(light.rotary, Rotary { theta: 50_000.0, yarn: None });

    let mut speculators = spec_forge();
    speculators["block_size"] = 8.into();
    speculators["dflash_config"]["sample_from_anchor"] = false.into();
    speculators["dflash_config"]["markov_head_type"] = "rnn".into();
    speculators["dflash_config"]["confidence_head_with_markov"] = false.into();
    let speculators = read(&speculators).unwrap();
    assert_eq!((speculators.num_drafts(), speculators.block_rows, speculators.anchor), (7, 8, AnchorRow::Nothing));
    assert_eq!(speculators.markov, Some(MarkovHead { rank: 256, kind: MarkovKind::Rnn }));
    assert_eq!(speculators.confidence, Some(ConfidenceInput::Hidden));

    let mut plain = spec_forge();
    plain["dflash_config"]["markov_rank"] = 0.into();
    plain["dflash_config"]["enable_confidence_head"] = false.into();
    assert_eq!(read(&plain).unwrap().markov, None);
}

/// Each change makes the file say something that the pass would get wrong; the error names the key.
#[test]
fn what_cannot_run_is_refused_by_name() {
    let cases: [(fn() -> Value, &str, Value); 24] = [
        (spec_forge, "attention_bias", true.into()),
        (spec_forge, "use_sliding_window", true.into()),
        (spec_forge, "layer_types", json!(["full_attention", "sliding_attention"])),
        (spec_forge, "quantization_config", json!({"quant_method": "fp8"})),
        (spec_forge, "draft_vocab_size", 32000.into()),
        (spec_forge, "head_dim", 63.into()),
        (spec_forge, "num_key_value_heads", 5.into()),
        (spec_forge, "block_size", 0.into()),
        (spec_forge, "block_size", Value::Null),
        (spec_forge, "vocab_size", 163_000.into()),
        (spec_forge, "speculators_model_type", "dspark".into()),
        (spec_forge, "partial_rotary_factor", 0.5.into()),
        (spec_forge, "hidden_act", "gelu".into()),
        (spec_forge, "markov_rank", 128.into()),
        (k3_dspark, "mla_use_nope", true.into()),
        (k3_dspark, "mla_use_output_gate", true.into()),
        (k3_dspark, "mla_use_qk_norm", true.into()),
        (k3_dspark, "q_lora_rank", Value::Null),
        (k3_dspark, "num_target_layers", 93.into()),
        (k3_dspark, "target_layer_ids", json!([2, 23, 23, 71, 89])),
        (k3_dspark, "target_layer_ids", json!([])),
        (k3_dspark, "aux_hidden_stream", "embedding".into()),
        (k3_dspark, "markov_head_type", "fir".into()),
        (k3_dspark, "dspark_draft_topk", 10.into()),
    ];
    for (base, key, value) in cases {
        let mut changed = base();
        changed[key] = value.clone();
        let error = read(&changed).expect_err(key).to_string();
        // The mask token of a smaller vocabulary is what does not fit.
        let named = if key == "vocab_size" { "mask_token_id" } else { key };
        assert!(error.contains(named), "{key} = {value}: {error}");
    }
    let mut scaled = spec_forge();
    scaled["rope_parameters"]["rope_type"] = "llama3".into();
    assert!(read(&scaled).unwrap_err().to_string().contains("rope_parameters.rope_type"));
    let error = read(&json!({"model_type": "llama", "architectures": ["LlamaForCausalLM"]})).unwrap_err();
    assert!(error.to_string().contains("DSpark"), "{error}");
}

#[test]
fn another_target_is_refused_by_name() {
    let cases: [(&str, Value); 4] = [
        ("vocab_size", 163_841.into()),
        ("hidden_size", 7000.into()),
        ("num_target_layers", 27.into()),
        ("target_layer_ids", json!([7, 93])),
    ];
    for (key, value) in cases {
        let mut changed = spec_forge();
        if key == "target_layer_ids" {
            changed["dflash_config"][key] = value;
        } else {
            changed[key] = value;
        }
        let error = read(&changed).unwrap().check_target(&target()).expect_err(key).to_string();
        assert!(error.contains(key) && error.contains("target has"), "{error}");
    }
    let mut mla = k3_dspark();
    mla["target_num_hidden_layers"] = 27.into();
    let error = read(&mla).unwrap().check_target(&target()).unwrap_err().to_string();
    assert!(error.contains("target_num_hidden_layers"), "{error}");
}

fn data(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/data/configs").join(name)
}
