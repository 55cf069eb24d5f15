//! The two tiny models of `kimi-k3.md` section 9 with what an independent float64 oracle says of them.

use perilune_backend::Backend;
use perilune_config::ModelConfig;
use serde_json::Value;

use crate::{Bench, data_dir, tiny_checkpoint};

/// A tiny model on a backend, its prompt and the expected results.
pub struct Golden<B: Backend> {
    expected: Value,
    /// The prompt.
    pub ids: Vec<u32>,
    config: ModelConfig,
    /// The model, with room for some sequences.
    pub bench: Bench<B>,
}

fn numbers(value: &Value) -> Vec<f64> {
    value.as_array().unwrap().iter().map(|v| v.as_f64().unwrap()).collect()
}

impl<B: Backend> Golden<B> {
    /// The model's `config.json`.
    pub fn config(&self) -> &Value {
        &self.expected["config"]
    }

    /// The model of this tag, `k3` or `kl`, with room for four sequences.
    pub fn on(backend: B, tag: &str) -> Golden<B> {
        Golden::with_room(backend, tag, 4)
    }

    /// The same with room for as many as are asked for.
    pub fn with_room(backend: B, tag: &str, sequences: usize) -> Golden<B> {
        let text = std::fs::read_to_string(data_dir().join("vectors.json")).unwrap();
        let all: Value = serde_json::from_str(&text).unwrap();
        let expected = all[tag].clone();
        let config = ModelConfig::from_json_str(&expected["config"].to_string()).unwrap();
        let bench = Bench::on(backend, &config, &tiny_checkpoint(&config, tag), sequences);
        Golden { ids: numbers(&expected["ids"]).iter().map(|id| *id as u32).collect(), expected, config, bench }
    }

    /// Logits of every position within `tolerance`, the most likely token of each, and the sum of all magnitudes.
    pub fn check_logits(&self, rows: &[Vec<f32>], (how, tolerance): (&str, f64)) {
        assert_eq!(rows.len(), self.ids.len());
        for (position, want) in self.expected["logits"].as_object().unwrap() {
            let got = &rows[position.parse::<usize>().unwrap()];
            for (i, (g, w)) in got.iter().zip(numbers(want)).enumerate() {
                let difference = (f64::from(*g) - w).abs();
                assert!(difference <= tolerance, "{how}: position {position}, logit {i}: {g} for {w}");
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

    /// States, convolution tails and latents of sequence 0 at the end of the prompt.
    pub fn check_state(&self, how: &str) {
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
