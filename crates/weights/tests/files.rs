//! Safetensors files as they may lie on a disk: whole, sharded, cut short, scribbled over, misindexed.
#![allow(clippy::unwrap_used)] // only tests use the functions here

use std::path::Path;

use perilune_tensor::{DType, Shape, TensorSpec};
use perilune_weights::{SafetensorsDir, Sharding, TensorToWrite, WeightSource, WeightsError, write_tensors};
use proptest::prelude::*;
use proptest::test_runner::RngSeed;
use tempfile::TempDir;

/// Three tensors of three element types, with bytes that follow from their place.
fn tensors() -> Vec<TensorToWrite<'static>> {
    let tensor = |name: &str, dtype, shape: Vec<usize>| {
        let spec = TensorSpec::new(dtype, Shape::new(shape));
        let count = spec.size_bytes();
        TensorToWrite { name: name.into(), spec, bytes: Box::new(move || (0..count).map(|i| i as u8).collect()) }
    };
    vec![
        tensor("a", DType::F32, vec![3, 4]),
        tensor("b", DType::Bf16, vec![5]),
        tensor("c.weight_packed", DType::U8, vec![2, 3]),
    ]
}

fn written(sharding: Sharding) -> TempDir {
    let dir = tempfile::tempdir().unwrap();
    write_tensors(tensors(), sharding, dir.path()).unwrap();
    dir
}

#[track_caller]
fn check_tensors(dir: &Path) {
    let source = SafetensorsDir::open(dir).unwrap();
    let mut names: Vec<&str> = source.names().collect();
    names.sort_unstable();
    assert_eq!(names, ["a", "b", "c.weight_packed"]);
    for wanted in tensors() {
        let found = source.get(&wanted.name).unwrap();
        assert_eq!(*found.spec(), wanted.spec);
        assert_eq!(found.bytes(), (wanted.bytes)());
        assert_eq!(source.spec(&wanted.name), Some(wanted.spec));
    }
    assert!(source.get("d").is_err() && !source.contains("d"));
}

#[test]
fn one_file_and_shards_read_back() {
    check_tensors(written(Sharding::Single).path());
    let sharded = written(Sharding::UpTo { bytes: 16 });
    assert_eq!(SafetensorsDir::open(sharded.path()).unwrap().files().len(), 2, "48 bytes alone, then 10 + 6");
    check_tensors(sharded.path());
}

#[test]
fn a_directory_without_a_checkpoint_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let error = SafetensorsDir::open(dir.path()).unwrap_err();
    assert!(matches!(&error, WeightsError::NoCheckpoint { dir: named } if named == dir.path()), "{error}");
}

#[test]
fn a_file_cut_short_anywhere_is_refused_when_opened() {
    let dir = written(Sharding::Single);
    let path = dir.path().join("model.safetensors");
    let whole = std::fs::read(&path).unwrap();
    for len in 0..whole.len() {
        std::fs::write(&path, &whole[..len]).unwrap();
        let error = SafetensorsDir::open(dir.path()).unwrap_err();
        assert!(matches!(error, WeightsError::Damaged { .. }), "{len} of {} bytes: {error}", whole.len());
        assert!(error.to_string().contains("model.safetensors"), "{error}");
    }
    std::fs::write(&path, [whole.as_slice(), &[0]].concat()).unwrap();
    assert!(SafetensorsDir::open(dir.path()).is_err(), "a byte too many");
}

/// A file with this header and this many zero bytes of data.
fn with_header(header: &str, data: usize) -> TempDir {
    let dir = tempfile::tempdir().unwrap();
    let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
    bytes.extend(header.as_bytes());
    bytes.resize(bytes.len() + data, 0);
    std::fs::write(dir.path().join("model.safetensors"), bytes).unwrap();
    dir
}

#[test]
fn headers_that_lie_are_refused() {
    for header in [
        "",
        "null",
        r#"{"a": 5}"#,
        r#"{"a": {"dtype": "F32", "shape": [4], "data_offsets": [0, 12]}}"#,
        r#"{"a": {"dtype": "F32", "shape": [5], "data_offsets": [0, 16]}}"#,
        r#"{"a": {"dtype": "F32", "shape": [4], "data_offsets": [16, 0]}}"#,
        r#"{"a": {"dtype": "F32", "shape": [4], "data_offsets": [4, 20]}}"#,
        r#"{"a": {"dtype": "F32", "shape": [-4], "data_offsets": [0, 16]}}"#,
        r#"{"a": {"dtype": "F99", "shape": [4], "data_offsets": [0, 16]}}"#,
        r#"{"a": {"dtype": "F32", "shape": [4294967296, 4294967296, 4], "data_offsets": [0, 16]}}"#,
        r#"{"a": {"dtype": "F32", "shape": [4], "data_offsets": [0, 16]}, "b": {"dtype": "F32", "shape": [4], "data_offsets": [0, 16]}}"#,
    ] {
        let dir = with_header(header, 16);
        let error = SafetensorsDir::open(dir.path()).expect_err(header);
        assert!(matches!(error, WeightsError::Damaged { .. }), "{header}: {error}");
    }
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("model.safetensors"), [0xff; 64]).unwrap();
    assert!(SafetensorsDir::open(dir.path()).is_err(), "a header length of 2^64 - 1");
}

#[test]
fn a_tensor_that_starts_at_an_odd_byte_is_read_aligned() {
    let header = concat!(
        r#"{"odd": {"dtype": "U8", "shape": [1], "data_offsets": [0, 1]}, "#,
        r#""a": {"dtype": "F32", "shape": [2], "data_offsets": [1, 9]}}"#
    );
    let source = SafetensorsDir::open(with_header(header, 9).path()).unwrap();
    let tensor = source.get("a").unwrap();
    assert_eq!(tensor.bytes().as_ptr().align_offset(4), 0);
    assert_eq!(tensor.to_f32(), [0.0, 0.0]);
}

#[test]
fn an_element_type_no_model_uses_is_named_only_when_asked_for() {
    let header = r#"{"a": {"dtype": "F64", "shape": [2], "data_offsets": [0, 16]}}"#;
    let source = SafetensorsDir::open(with_header(header, 16).path()).unwrap();
    assert_eq!((source.contains("a"), source.spec("a")), (true, None));
    let error = source.get("a").unwrap_err().to_string();
    assert!(error.contains("`a`") && error.contains("F64 [2]"), "{error}");
}

/// Replaces the index of a sharded checkpoint and expects a refusal that contains `says`.
#[track_caller]
fn check_index(change: impl Fn(&mut serde_json::Value), says: &str) {
    let dir = written(Sharding::UpTo { bytes: 16 });
    let path = dir.path().join("model.safetensors.index.json");
    let mut index = serde_json::from_str(&std::fs::read_to_string(&path).unwrap()).unwrap();
    change(&mut index);
    std::fs::write(&path, index.to_string()).unwrap();
    let error = SafetensorsDir::open(dir.path()).unwrap_err().to_string();
    assert!(error.contains(says), "{error} does not say {says:?}");
}

#[test]
fn an_index_that_disagrees_with_the_files_is_refused() {
    let shard = |n: usize| format!("model-{n:05}-of-00002.safetensors");
    check_index(|index| index["weight_map"]["a"] = "gone.safetensors".into(), "gone.safetensors");
    check_index(|index| index["weight_map"]["a"] = shard(2).into(), "`a`");
    check_index(|index| index["weight_map"]["extra"] = shard(1).into(), "`extra`");
    check_index(|index| drop(index["weight_map"].as_object_mut().unwrap().remove("b")), "`b`");
    check_index(|index| index["weight_map"]["a"] = "../model.safetensors".into(), "without a folder");
    check_index(|index| index["weight_map"]["a"] = 5.into(), "weight_map.a");
    check_index(|index| index["weight_map"] = serde_json::json!({}), "empty");
    check_index(|index| *index = serde_json::json!([]), "weight_map");
}

#[test]
fn a_missing_shard_is_named() {
    let dir = written(Sharding::UpTo { bytes: 16 });
    std::fs::remove_file(dir.path().join("model-00002-of-00002.safetensors")).unwrap();
    let error = SafetensorsDir::open(dir.path()).unwrap_err().to_string();
    assert!(error.contains("model-00002-of-00002.safetensors"), "{error}");
}

proptest! {
    #![proptest_config(ProptestConfig { rng_seed: RngSeed::Fixed(5), failure_persistence: None, ..Default::default() })]

    /// Whatever a damaged file says, every tensor that opens lies inside the file.
    #[test]
    fn scribbling_over_a_file_never_panics(edits in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6)) {
        let dir = written(Sharding::Single);
        let path = dir.path().join("model.safetensors");
        let mut bytes = std::fs::read(&path).unwrap();
        for (at, value) in edits {
            let at = at.index(bytes.len());
            bytes[at] = value;
        }
        std::fs::write(&path, &bytes).unwrap();
        if let Ok(source) = SafetensorsDir::open(dir.path()) {
            for name in source.names() {
                if let Ok(tensor) = source.get(name) {
                    prop_assert_eq!(tensor.bytes().len(), tensor.spec().size_bytes());
                }
            }
        }
    }
}
