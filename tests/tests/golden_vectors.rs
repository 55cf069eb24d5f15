//! Logits, states and latents of two tiny models against an independent float64 oracle (`kimi-k3.md` section 9).
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // all of it is test code

use perilune_config::ModelConfig;
use perilune_tests::{Bench, data_dir, tiny_checkpoint};
use serde_json::Value;

/// Largest difference of a logit.
const LOGIT_TOLERANCE: f32 = 2e-5;

struct Golden {
    expected: Value,
    ids: Vec<u32>,
    config: ModelConfig,
    bench: Bench,
}

fn golden(tag: &str) -> Golden {
    let all: Value = serde_json::from_str(&std::fs::read_to_string(data_dir().join("vectors.json")).unwrap()).unwrap();
    let expected = all[tag].clone();
    let config = ModelConfig::from_json_str(&expected["config"].to_string()).unwrap();
    let bench = Bench::new(&config, &tiny_checkpoint(&config, tag), 4);
    Golden { ids: numbers(&expected["ids"]).iter().map(|id| *id as u32).collect(), expected, config, bench }
}

fn numbers(value: &Value) -> Vec<f64> {
    value.as_array().unwrap().iter().map(|v| v.as_f64().unwrap()).collect()
}

impl Golden {
    fn check_logits(&self, rows: &[Vec<f32>], how: &str) {
        assert_eq!(rows.len(), self.ids.len());
        for (position, want) in self.expected["logits"].as_object().unwrap() {
            let got = &rows[position.parse::<usize>().unwrap()];
            for (i, (g, w)) in got.iter().zip(numbers(want)).enumerate() {
                let difference = (f64::from(*g) - w).abs();
                assert!(difference <= f64::from(LOGIT_TOLERANCE), "{how}: position {position}, logit {i}: {g} for {w}");
            }
        }
        for (t, (row, want)) in rows.iter().zip(numbers(&self.expected["argmax"])).enumerate() {
            let best = (0..row.len()).max_by(|a, b| row[*a].total_cmp(&row[*b])).unwrap();
            assert_eq!(best as f64, want, "{how}: position {t}");
        }
        let sum: f64 = rows.iter().flatten().map(|v| f64::from(v.abs())).sum();
        let want = self.expected["sum_abs"].as_f64().unwrap();
        assert!((sum - want).abs() < 1e-5 * want, "{how}: sum of magnitudes {sum} for {want}");
    }

    fn check_state(&self, how: &str) {
        let close = |what: String, got: f64, want: f64| {
            assert!((got - want).abs() < 1e-4, "{how}: {what} is {got}, expected {want}");
        };
        let sum = |values: Vec<f32>| values.iter().map(|v| f64::from(*v)).sum::<f64>();
        for (layer, want) in self.expected["kda_state_sum"].as_object().unwrap() {
            let state = self.bench.kda_state(layer.parse().unwrap(), 0);
            close(format!("state of layer {layer}"), sum(state), want.as_f64().unwrap());
        }
        for (layer, want) in self.expected["mla_latent_sum"].as_object().unwrap() {
            let latents = self.bench.latents(layer.parse().unwrap(), 0);
            close(format!("latents of layer {layer}"), sum(latents), want.as_f64().unwrap());
        }
        let state = self.bench.kda_state(0, 0);
        for (got, want) in state.iter().zip(numbers(&self.expected["kda_state_l0_head0_row0"])) {
            close("first row of the first state".into(), f64::from(*got), want);
        }
        let (width, taps) = (self.config.kda.width(), self.config.kda.conv_kernel);
        let tail = self.bench.kda_conv(0, 0);
        let last_of_q = &tail[(taps - 2) * width..(taps - 1) * width];
        for (got, want) in last_of_q.iter().zip(numbers(&self.expected["conv_tail_l0_q"])) {
            close("convolution tail".into(), f64::from(*got), want);
        }
    }
}

#[test]
fn whole() {
    for tag in ["k3", "kl"] {
        let mut golden = golden(tag);
        let rows = golden.bench.chunked(0, &golden.ids.clone(), &[24]);
        golden.check_logits(&rows, tag);
        golden.check_state(tag);
    }
}

#[test]
fn every_split_in_two_and_token_by_token() {
    for tag in ["k3", "kl"] {
        let mut golden = golden(tag);
        let ids = golden.ids.clone();
        let whole = golden.bench.chunked(0, &ids, &[24]);
        let mut chunkings: Vec<Vec<usize>> = (1..24).map(|first| vec![first, 24 - first]).collect();
        chunkings.extend([vec![1; 24], vec![5, 5, 5, 5, 4], vec![9, 1, 1, 13], vec![8, 8, 8], vec![10, 14]]);
        for lengths in chunkings {
            let rows = golden.bench.chunked(0, &ids, &lengths);
            golden.check_logits(&rows, &format!("{tag} {lengths:?}"));
            golden.check_state(&format!("{tag} {lengths:?}"));
            assert!(rows == whole, "{tag} {lengths:?}: other bits than in one piece");
        }
    }
}

#[test]
fn together_with_others() {
    for tag in ["k3", "kl"] {
        let mut golden = golden(tag);
        let ids = golden.ids.clone();
        let whole = golden.bench.chunked(0, &ids, &[24]);
        golden.bench.restart(0);
        // Sequence 0 in three steps, beside a long prompt, a decoding sequence and one that comes and goes.
        let others: Vec<u32> = ids.iter().rev().copied().collect();
        let mut rows = golden.bench.step(&[(1, &others[..20]), (0, &ids[..7]), (2, &others[..1])]).remove(1);
        rows.extend(golden.bench.step(&[(0, &ids[7..8]), (2, &others[1..2]), (3, &others)]).remove(0));
        rows.extend(golden.bench.step(&[(2, &others[2..3]), (0, &ids[8..])]).remove(1));
        golden.check_logits(&rows, tag);
        golden.check_state(tag);
        assert!(rows == whole, "{tag}: other bits than alone");
    }
}

/// The logits of `k3` hardly change without the division by the sum (the latent norm hides it), so it is looked at here.
#[test]
fn routing_weights_sum_to_the_scaling_factor() {
    for (tag, factor) in [("k3", 1.0), ("kl", 2.446)] {
        let mut golden = golden(tag);
        golden.bench.chunked(0, &golden.ids.clone(), &[24]);
        let rows = golden.bench.routing_weights(24);
        assert_eq!(rows.len(), 24);
        for row in rows {
            let sum: f32 = row.iter().sum();
            assert!((sum - factor).abs() < 1e-5, "{tag}: {row:?}");
            assert!(row.iter().all(|weight| *weight > 0.0), "{tag}: {row:?}");
        }
    }
}
