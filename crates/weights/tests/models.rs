//! Whole models: names of both families and spellings, and every way in which a checkpoint may not fit its model.
#![allow(clippy::unwrap_used)] // only tests use the functions here

use std::path::Path;

use perilune_config::ModelConfig;
use perilune_tensor::{DType, HostTensor, QuantFormat, Shape, TensorSpec};
use perilune_weights::{
    Checkpoint, MemorySource, Progress, RandomOptions, SafetensorsDir, Sharding, Stage, StoredExperts, WeightSource,
    WeightsError, check_finite, write_random_checkpoint,
};

fn root() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."))
}

/// The two tiny configurations: `k3` and `kl`.
fn tiny(tag: &str) -> ModelConfig {
    let text = std::fs::read_to_string(root().join("tests/data/vectors.json")).unwrap();
    let all: serde_json::Value = serde_json::from_str(&text).unwrap();
    ModelConfig::from_json_str(&all[tag]["config"].to_string()).unwrap()
}

fn random(config: &ModelConfig, options: RandomOptions<'_>) -> MemorySource {
    let dir = tempfile::tempdir().unwrap();
    write_random_checkpoint(config, options, dir.path()).unwrap();
    let files = SafetensorsDir::open(dir.path()).unwrap();
    let mut source = MemorySource::new();
    for name in files.names() {
        source.insert(name, files.get(name).unwrap());
    }
    source
}

fn k3() -> (ModelConfig, MemorySource) {
    let config = tiny("k3");
    let source = random(&config, RandomOptions { experts: StoredExperts::Mxfp4, ..Default::default() });
    (config, source)
}

fn rename(source: &mut MemorySource, old: &str, new: &str) {
    let tensor = source.remove(old).unwrap();
    source.insert(new, tensor);
}

#[test]
fn the_shipped_and_golden_checkpoints_fit_their_configurations() {
    for (dir, packed) in [("models/demo", 7 * 16 * 3), ("tests/data/golden_kimi_linear", 0)] {
        let dir = root().join(dir);
        let config = ModelConfig::from_dir(&dir).unwrap();
        let source = SafetensorsDir::open(&dir).unwrap();
        let checkpoint = Checkpoint::open(&source, &config).unwrap();
        assert_eq!(checkpoint.num_packed(), packed);
        assert!(checkpoint.ignored().is_empty());
        let mut reports: Vec<Progress> = Vec::new();
        check_finite(&checkpoint, &mut |progress| reports.push(progress)).unwrap();
        let last = reports.last().unwrap();
        assert_eq!((last.stage, last.tensors_done), (Stage::Checking, last.tensors_total));
        assert_eq!((last.bytes_done, last.bytes_total), (checkpoint.size_bytes(), checkpoint.size_bytes()));
        assert_eq!(reports.len(), checkpoint.len() + packed, "one report for each stored tensor");
        assert!(reports.windows(2).all(|w| w[0].tensors_done + 1 == w[1].tensors_done));
    }
}

#[test]
fn both_spellings_and_prefixes_are_found() {
    for prefix in ["", "language_model."] {
        let config = tiny("k3");
        let mut source = random(&config, RandomOptions { prefix, ..Default::default() });
        let names: Vec<String> = source.names().map(str::to_owned).collect();
        let before = Checkpoint::open(&source, &config).unwrap().vector("model.layers.2.mlp_res_norm.weight").unwrap();
        for name in names {
            let older = name.replace("_res_norm.weight", "_res.norm_weight");
            let older = older.replace("_res_proj.weight", "_res.proj_weight");
            rename(&mut source, &name, &older);
        }
        assert!(source.contains(&format!("{prefix}model.layers.2.mlp_res.norm_weight")));
        let checkpoint = Checkpoint::open(&source, &config).unwrap();
        assert_eq!(checkpoint.vector("model.layers.2.mlp_res_norm.weight").unwrap(), before);
        assert!(checkpoint.vector("model.output_attn_res_proj.weight").is_ok());
    }
}

#[test]
fn each_matrix_says_itself_how_it_is_stored() {
    let (config, mut source) = k3();
    let stem = "model.layers.3.block_sparse_moe.experts.5.w2";
    source.remove(&format!("{stem}.weight_packed")).unwrap();
    source.remove(&format!("{stem}.weight_scale")).unwrap();
    source.insert(format!("{stem}.weight"), HostTensor::from_f32([32, 32], &[0.5; 1024]).unwrap());
    let checkpoint = Checkpoint::open(&source, &config).unwrap();
    let format = |name: &str| checkpoint.matrix(name).unwrap().format;
    assert_eq!(format(&format!("{stem}.weight")), QuantFormat::F32);
    assert_eq!(format("model.layers.3.block_sparse_moe.experts.4.w2.weight"), QuantFormat::Mxfp4);
    assert_eq!(format("lm_head.weight"), QuantFormat::Bf16);
    assert_eq!(checkpoint.num_packed(), 6 * 8 * 3 - 1);
}

#[test]
fn parts_for_pictures_are_left_alone_and_said_so() {
    let config = tiny("kl");
    let mut source = random(&config, RandomOptions { prefix: "language_model.", ..Default::default() });
    for name in ["vision_tower.encoder.0.weight", "mm_projector.proj.0.bias"] {
        source.insert(name, HostTensor::from_f32([1], &[f32::NAN]).unwrap());
    }
    let checkpoint = Checkpoint::open(&source, &config).unwrap();
    assert_eq!(checkpoint.ignored(), ["mm_projector.proj.0.bias", "vision_tower.encoder.0.weight"]);
    check_finite(&checkpoint, &mut |_| {}).unwrap();
}

/// Changes a fitting K3 checkpoint and expects a refusal that contains all of `says`.
#[track_caller]
fn check_refused(change: impl Fn(&mut MemorySource), says: &[&str]) {
    let (config, mut source) = k3();
    change(&mut source);
    let error = Checkpoint::open(&source, &config).map(|_| ()).unwrap_err().to_string();
    for part in says {
        assert!(error.contains(part), "{error:?} does not say {part:?}");
    }
}

#[test]
fn every_tensor_is_needed() {
    let (config, source) = k3();
    let names: Vec<String> = source.names().map(str::to_owned).collect();
    for name in names {
        let mut without = source.clone();
        without.remove(&name);
        let error = Checkpoint::open(&without, &config).map(|_| ()).expect_err(&name);
        // Without its nibbles a matrix is looked for in floating point.
        let named = name.replace(".weight_packed", ".weight");
        assert!(matches!(&error, WeightsError::Missing { name, .. } if *name == named), "{named}: {error}");
    }
}

#[test]
fn every_shape_is_checked() {
    let (config, source) = k3();
    let names: Vec<String> = source.names().filter(|name| !name.ends_with("A_log")).map(str::to_owned).collect();
    for name in names {
        let mut grown = source.clone();
        let spec = source.spec(&name).unwrap();
        let mut dims = spec.shape.dims().to_vec();
        dims[0] += 1;
        let spec = TensorSpec::new(spec.dtype, Shape::new(dims));
        let bytes = vec![0; spec.size_bytes()];
        grown.insert(name.clone(), HostTensor::from_vec(spec.clone(), bytes).unwrap());
        let error = Checkpoint::open(&grown, &config).map(|_| ()).expect_err(&name).to_string();
        assert!(error.contains(&format!("`{name}` is {spec}, expected")), "{error}");
        let wanted = source.spec(&name).unwrap().shape.to_string();
        assert!(error.contains(&wanted), "{error} does not say {wanted}");
    }
}

#[test]
fn misfits_are_named() {
    let tensor = |shape: [usize; 1]| HostTensor::from_vec(TensorSpec::f32(shape), vec![0; shape[0] * 4]).unwrap();
    check_refused(
        |s| drop(s.insert("model.layers.7.mlp.extra", tensor([3]))),
        &["model.layers.7.mlp.extra", "F32 [3]"],
    );
    check_refused(
        |s| drop(s.insert("model.layers.4.self_attn.A_log", tensor([1]))),
        &["A_log", "F32 [1]", "at least 2"],
    );
    let raw = HostTensor::from_vec(TensorSpec::new(DType::U8, [32]), vec![0; 32]).unwrap();
    check_refused(|s| drop(s.insert("model.norm.weight", raw.clone())), &["model.norm.weight", "U8 [32]", "BF16"]);
    check_refused(
        |s| drop(s.remove("model.layers.1.block_sparse_moe.experts.0.w1.weight_scale")),
        &["experts.0.w1.weight_scale", "missing", "U8 [32, 1]"],
    );
    // Another model's configuration: the first tensor that differs is named.
    let error = Checkpoint::open(&k3().1, &tiny("kl")).map(|_| ()).unwrap_err().to_string();
    assert!(error.contains("expected") || error.contains("does not belong"), "{error}");
}

/// Puts bytes at one element of a tensor and expects the value check to name tensor, element and value.
#[track_caller]
fn check_value(name: &str, element: usize, (value, shown): (&[u8], &str)) {
    let (config, mut source) = k3();
    let tensor = source.remove(name).unwrap();
    let mut bytes = tensor.bytes().to_vec();
    bytes[element * value.len()..(element + 1) * value.len()].copy_from_slice(value);
    source.insert(name, HostTensor::from_vec(tensor.spec().clone(), bytes).unwrap());
    let checkpoint = Checkpoint::open(&source, &config).unwrap();
    let error = check_finite(&checkpoint, &mut |_| {}).unwrap_err().to_string();
    assert!(error.contains(&format!("`{name}` holds {shown} at element {element}")), "{error}");
}

#[test]
fn values_that_are_not_finite_are_named() {
    let bf16 = |value: f32| half::bf16::from_f32(value).to_le_bytes();
    check_value("lm_head.weight", 0, (&bf16(f32::NAN), "NaN"));
    check_value("lm_head.weight", 64 * 32 - 1, (&bf16(f32::NEG_INFINITY), "-inf"));
    check_value("model.layers.1.self_attn.dt_bias", 31, (&f32::INFINITY.to_le_bytes(), "inf"));
    check_value("model.layers.5.block_sparse_moe.experts.7.w3.weight_scale", 17, (&[255], "[255]"));
}

#[test]
fn half_precision_is_checked_too() {
    let (config, mut source) = k3();
    let mut values = [half::f16::from_f32(1.0); 32];
    values[9] = half::f16::NAN;
    let bytes = values.iter().flat_map(|value| value.to_le_bytes()).collect();
    source.insert("model.norm.weight", HostTensor::from_vec(TensorSpec::new(DType::F16, [32]), bytes).unwrap());
    let error = check_finite(&Checkpoint::open(&source, &config).unwrap(), &mut |_| {}).unwrap_err().to_string();
    assert!(error.contains("`model.norm.weight` holds NaN at element 9"), "{error}");
}

#[test]
fn large_finite_values_pass() {
    let (config, mut source) = k3();
    source.insert("model.norm.weight", HostTensor::from_f32([32], &[f32::MAX; 32]).unwrap());
    check_finite(&Checkpoint::open(&source, &config).unwrap(), &mut |_| {}).unwrap();
}

#[test]
fn decay_rates_must_have_a_finite_exponential_and_zero_padding() {
    let a_log = |values: &[f32]| {
        let (config, mut source) = k3();
        let name = "model.layers.0.self_attn.A_log";
        source.insert(name, HostTensor::from_f32([values.len()], values).unwrap());
        Checkpoint::open(&source, &config).unwrap().a_log(name, 2)
    };
    assert_eq!(a_log(&[0.5, -1.0, 0.0, 0.0]).unwrap(), [0.5, -1.0]);
    assert_eq!(a_log(&[88.0, -200.0]).unwrap(), [88.0, -200.0], "the largest that is still finite; none at all");
    for (values, says) in [
        ([0.5, 100.0, 0.0], "100 at element 1"),
        ([f32::NAN, 0.0, 0.0], "NaN at element 0"),
        ([0.5, 0.5, 0.5], "0.5 at element 2"),
    ] {
        let error = a_log(&values).unwrap_err().to_string();
        assert!(error.contains("A_log") && error.contains(says), "{error}");
    }
}

#[test]
fn a_random_checkpoint_depends_on_its_seed_alone() {
    let config = tiny("k3");
    let bytes = |seed, sharding| {
        let source = random(&config, RandomOptions { seed, sharding, ..Default::default() });
        let names: Vec<String> = source.names().map(str::to_owned).collect();
        names.iter().map(|name| source.get(name).unwrap().bytes().to_vec()).collect::<Vec<_>>()
    };
    assert_eq!(bytes(1, Sharding::Single), bytes(1, Sharding::UpTo { bytes: 10_000 }));
    assert_ne!(bytes(1, Sharding::Single), bytes(2, Sharding::Single));
}

#[test]
fn random_matrices_have_the_same_spread_in_both_formats() {
    let config = tiny("k3");
    let name = "model.layers.1.block_sparse_moe.experts.0.w1.weight";
    for experts in [StoredExperts::Bf16, StoredExperts::Mxfp4] {
        let source = random(&config, RandomOptions { experts, ..Default::default() });
        let weight = Checkpoint::open(&source, &config).unwrap().matrix(name).unwrap();
        let values = match weight.scales {
            None => weight.data.to_f32(),
            Some(scales) => dequantised(weight.data.bytes(), scales.bytes()),
        };
        let mean_square = values.iter().map(|v| v * v).sum::<f32>() / values.len() as f32;
        assert!((0.5..2.0).contains(&(mean_square * 32.0)), "{experts:?}: {mean_square}");
    }
}

/// Values of packed nibbles, low first, with one scale per 32 of them.
fn dequantised(packed: &[u8], scales: &[u8]) -> Vec<f32> {
    const STEPS: [f32; 8] = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0];
    let value = |nibble: u8| if nibble & 8 == 0 { STEPS[usize::from(nibble)] } else { -STEPS[usize::from(nibble & 7)] };
    let both = |(i, byte): (usize, &u8)| {
        let scale = 2f32.powi(i32::from(scales[i / 16]) - 127);
        [value(byte & 15) * scale, value(byte >> 4) * scale]
    };
    packed.iter().enumerate().flat_map(both).collect()
}
