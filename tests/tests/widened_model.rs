//! A model made wider says what it said before.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // all of it is test code

use std::path::Path;

use perilune_config::{DraftConfig, ModelConfig};
use perilune_tests::{Bench, demo_dir, widen_draft, widen_model};
use perilune_weights::{Checkpoint, SafetensorsDir};

const PROMPT: [u32; 12] = [700, 12, 33, 1500, 8, 911, 64, 2000, 5, 77, 130, 41];

fn logits(dir: &Path) -> Vec<Vec<f32>> {
    let config = ModelConfig::from_dir(dir).unwrap();
    let source = SafetensorsDir::open(dir).unwrap();
    Bench::new(&config, &source, 1).step(&[(0, &PROMPT)]).remove(0)
}

#[test]
fn logits_stay_as_they_are() {
    let dir = tempfile::tempdir().unwrap();
    widen_model(&demo_dir(), 2, dir.path());
    for (wide, narrow) in logits(dir.path()).iter().zip(logits(&demo_dir())) {
        for (wide, narrow) in wide.iter().zip(narrow) {
            assert!((wide - narrow).abs() < 1e-2, "{wide} against {narrow}");
        }
    }
}

#[test]
fn a_draft_grows_with_its_target() {
    let dir = tempfile::tempdir().unwrap();
    let draft = demo_dir().with_file_name("demo-dspark");
    widen_draft(&draft, 4, dir.path());
    let config = DraftConfig::from_dir(dir.path()).unwrap();
    assert_eq!(config.hidden_size, 4 * DraftConfig::from_dir(&draft).unwrap().hidden_size);
    let (narrow, wide) = (SafetensorsDir::open(&draft).unwrap(), SafetensorsDir::open(dir.path()).unwrap());
    Checkpoint::open_draft(&wide, &config).unwrap();
    // The parts of an input add up to what it counted before, in every stream.
    let row = |source: &SafetensorsDir, name: &str, width: usize| {
        perilune_weights::WeightSource::get(source, name).unwrap().to_f32()[..width].to_vec()
    };
    let (before, after) = (row(&narrow, "fc.weight", 768), row(&wide, "fc.weight", 4 * 768));
    for tap in 0..4 {
        for column in 0..192 {
            let copies: f32 = (0..4).map(|copy| after[tap * 768 + copy * 192 + column]).sum();
            assert_eq!(copies, before[tap * 192 + column], "tap {tap}, column {column}");
        }
    }
}
