//! Logits of a Kimi-Linear checkpoint with published names against transformers' implementation in float64.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // all of it is test code

use perilune_config::ModelConfig;
use perilune_tests::{Bench, data_dir};
use perilune_weights::{Checkpoint, SafetensorsDir, check_finite};
use serde_json::Value;

#[test]
fn kimi_linear_whole_and_chunked() {
    let dir = data_dir().join("golden_kimi_linear");
    let config = ModelConfig::from_dir(&dir).unwrap();
    let source = SafetensorsDir::open(&dir).unwrap();
    check_finite(&Checkpoint::open(&source, &config).unwrap(), &mut |_| {}).unwrap();
    let expected: Value = serde_json::from_str(&std::fs::read_to_string(dir.join("expected.json")).unwrap()).unwrap();
    let list = |v: &Value| v.as_array().unwrap().iter().map(|x| x.as_f64().unwrap()).collect::<Vec<_>>();
    let ids: Vec<u32> = list(&expected["ids"]).iter().map(|id| *id as u32).collect();
    let mut bench = Bench::new(&config, &source, 1);
    let whole = bench.chunked(0, &ids, &[200]);
    let mut largest: f64 = 0.0;
    for (position, want) in expected["logits"].as_object().unwrap() {
        let got = &whole[position.parse::<usize>().unwrap()];
        let differences = got.iter().zip(list(want)).map(|(g, w)| (f64::from(*g) - w).abs());
        largest = differences.fold(largest, f64::max);
    }
    assert!(largest < 5e-5, "largest difference of a logit: {largest}");
    for (row, want) in whole.iter().zip(list(&expected["argmax"])) {
        let best = (0..row.len()).max_by(|a, b| row[*a].total_cmp(&row[*b])).unwrap();
        assert_eq!(best as f64, want);
    }
    for lengths in [vec![64, 64, 72], vec![1; 200], vec![199, 1], vec![33, 67, 100]] {
        assert!(bench.chunked(0, &ids, &lengths) == whole, "{lengths:?}: other bits than in one piece");
    }
}
