//! The specification of DSpark drafts (`kimi-k3.md` 6.1 to 6.3) in `f64`, written out token by token with expanded keys
//! and values: shares no code with what it checks.

use std::collections::HashMap;

use perilune_weights::{MemorySource, SafetensorsDir, WeightSource};
use serde_json::Value;

/// A row.
pub type Row = Vec<f64>;

/// The draft and the parts of the target that it shares.
pub struct Oracle {
    config: Value,
    tensors: HashMap<String, (Vec<usize>, Row)>,
    embedding: Row,
    head: Row,
}

/// Drafts, what each was chosen from, and their confidence.
#[derive(Default)]
pub struct Drafts {
    pub log_probabilities: Vec<Row>,
    pub confidence: Vec<f64>,
}

fn values(source: &dyn WeightSource, name: &str) -> Row {
    source.get(name).unwrap().to_f32().iter().map(|v| f64::from(*v)).collect()
}

fn dot(a: &[f64], b: &[f64]) -> f64 {
    assert_eq!(a.len(), b.len());
    a.iter().zip(b).map(|(x, y)| x * y).sum()
}

fn sigmoid(x: f64) -> f64 {
    1.0 / (1.0 + (-x).exp())
}

impl Oracle {
    pub fn new(config: &Value, draft: &SafetensorsDir, target: &MemorySource) -> Oracle {
        let tensor = |name: &str| (draft.spec(name).unwrap().shape.dims().to_vec(), values(draft, name));
        Oracle {
            config: config.clone(),
            tensors: draft.names().map(|name| (name.to_owned(), tensor(name))).collect(),
            embedding: values(target, "model.embed_tokens.weight"),
            head: values(target, "lm_head.weight"),
        }
    }

    fn number(&self, key: &str) -> usize {
        self.key(key).as_u64().unwrap() as usize
    }

    /// A key of the file or of its inner object; null where there is none.
    fn key(&self, key: &str) -> &Value {
        let inner = &self.config["dflash_config"][key];
        if inner.is_null() { &self.config[key] } else { inner }
    }

    fn is(&self, key: &str) -> bool {
        self.key(key).as_bool().unwrap_or(false)
    }

    fn latent(&self) -> bool {
        self.config["model_type"] == "k3_dspark"
    }

    fn weight(&self, name: &str) -> &[f64] {
        &self.tensors.get(name).unwrap_or_else(|| panic!("no {name}")).1
    }

    fn linear(&self, name: &str, x: &[f64]) -> Row {
        self.weight(name).chunks_exact(x.len()).map(|row| dot(row, x)).collect()
    }

    fn norm(&self, name: &str, x: &[f64]) -> Row {
        let eps = self.config["rms_norm_eps"].as_f64().unwrap();
        let scale = (dot(x, x) / x.len() as f64 + f64::from(eps as f32)).powf(-0.5);
        x.iter().zip(self.weight(name)).map(|(v, w)| v * scale * w).collect()
    }

    fn names(&self) -> [&'static str; 3] {
        if self.latent() {
            ["context_proj.weight", "context_norm.weight", "final_norm.weight"]
        } else {
            ["fc.weight", "hidden_norm.weight", "norm.weight"]
        }
    }

    /// Frequencies, the factor on cosines and sines, and the factor on scores.
    fn rotary(&self, width: usize) -> (Row, f64, f64) {
        let parameters = &self.config["rope_parameters"];
        let theta = parameters["rope_theta"].as_f64().or(self.config["rope_theta"].as_f64()).unwrap_or(50_000.0);
        let plain: Row = (0..width / 2).map(|j| theta.powf(-2.0 * j as f64 / width as f64)).collect();
        if parameters["rope_type"] != "yarn" {
            return (plain, 1.0, 1.0);
        }
        let (factor, original) =
            (parameters["factor"].as_f64().unwrap(), parameters["original_max_position_embeddings"].as_f64().unwrap());
        let bound = |turns: f64| {
            let log = (original / (turns * 2.0 * std::f64::consts::PI)).ln();
            width as f64 * log / (2.0 * theta.ln())
        };
        let low = bound(32.0).floor().max(0.0);
        let high = bound(1.0).ceil().min(width as f64 - 1.0).max(0.0);
        let stretched = |(j, f): (usize, &f64)| {
            let ramp = ((j as f64 - low) / (high - low).max(0.001)).clamp(0.0, 1.0);
            f * (1.0 - ramp) + f / factor * ramp
        };
        let growth = |m: f64| 0.1 * m * factor.ln() + 1.0;
        let frequencies = plain.iter().enumerate().map(stretched).collect();
        match parameters["mscale_all_dim"].as_f64() {
            Some(all) if self.latent() => {
                (frequencies, growth(parameters["mscale"].as_f64().unwrap()) / growth(all), growth(all).powi(2))
            }
            _ => (frequencies, growth(1.0), 1.0),
        }
    }

    /// A head rotated at a position: in halves or in pairs.
    fn rotate(&self, x: &[f64], position: usize) -> Row {
        let (frequencies, amplitude, _) = self.rotary(x.len());
        let mut out = x.to_vec();
        for (j, f) in frequencies.iter().enumerate() {
            let (a, b) = if self.latent() { (2 * j, 2 * j + 1) } else { (j, j + x.len() / 2) };
            let (sin, cos) = (position as f64 * f).sin_cos();
            out[a] = amplitude * (x[a] * cos - x[b] * sin);
            out[b] = amplitude * (x[b] * cos + x[a] * sin);
        }
        out
    }

    /// Keys and values, `[heads, key] [heads, value]`, of a row that a layer's projections read.
    fn keys_values(&self, layer: usize, x: &[f64], position: usize) -> (Vec<Row>, Vec<Row>) {
        let stem = format!("layers.{layer}.self_attn");
        let heads = self.number("num_attention_heads");
        if !self.latent() {
            let (groups, width) = (self.number("num_key_value_heads"), self.number("head_dim"));
            let keys = self.linear(&format!("{stem}.k_proj.weight"), x);
            let values = self.linear(&format!("{stem}.v_proj.weight"), x);
            let key = |g: usize| {
                let normed = self.norm(&format!("{stem}.k_norm.weight"), &keys[g * width..(g + 1) * width]);
                self.rotate(&normed, position)
            };
            let of = |h: usize| h / (heads / groups);
            let value = |g: usize| values[g * width..(g + 1) * width].to_vec();
            return ((0..heads).map(|h| key(of(h))).collect(), (0..heads).map(|h| value(of(h))).collect());
        }
        let (rank, nope) = (self.number("kv_lora_rank"), self.number("qk_nope_head_dim"));
        let down = self.linear(&format!("{stem}.kv_a_proj_with_mqa.weight"), x);
        let latent = self.norm(&format!("{stem}.kv_a_layernorm.weight"), &down[..rank]);
        let shared = self.rotate(&down[rank..], position);
        let expanded = self.linear(&format!("{stem}.kv_b_proj.weight"), &latent);
        let per_head = expanded.len() / heads;
        let head = |h: usize| &expanded[h * per_head..(h + 1) * per_head];
        let keys = (0..heads).map(|h| [&head(h)[..nope], &shared[..]].concat()).collect();
        (keys, (0..heads).map(|h| head(h)[nope..].to_vec()).collect())
    }

    fn queries(&self, layer: usize, x: &[f64], position: usize) -> Vec<Row> {
        let stem = format!("layers.{layer}.self_attn");
        let heads = self.number("num_attention_heads");
        if !self.latent() {
            let q = self.linear(&format!("{stem}.q_proj.weight"), x);
            let head = |h: &[f64]| self.rotate(&self.norm(&format!("{stem}.q_norm.weight"), h), position);
            return q.chunks_exact(q.len() / heads).map(head).collect();
        }
        let low = self.linear(&format!("{stem}.q_a_proj.weight"), x);
        let normed = self.norm(&format!("{stem}.q_a_layernorm.weight"), &low);
        let q = self.linear(&format!("{stem}.q_b_proj.weight"), &normed);
        let nope = self.number("qk_nope_head_dim");
        let head = |h: &[f64]| [h[..nope].to_vec(), self.rotate(&h[nope..], position)].concat();
        q.chunks_exact(q.len() / heads).map(head).collect()
    }

    /// What a token leaves behind: the input of every layer's key and value projections.
    pub fn feature(&self, taps: &[Row]) -> Row {
        let normed = |(i, tap): (usize, &Row)| {
            if self.is("fc_norm") { self.norm(&format!("fc_norm.{i}.weight"), tap) } else { tap.clone() }
        };
        let all: Row = taps.iter().enumerate().flat_map(normed).collect();
        let [projection, norm, _] = self.names();
        self.norm(norm, &self.linear(projection, &all))
    }

    /// The hidden rows of a block behind tokens that left these features.
    fn block(&self, features: &[Row], anchor: usize, rows: usize) -> Vec<Row> {
        let width = self.config["hidden_size"].as_u64().unwrap() as usize;
        let embedded = |id: usize| self.embedding[id * width..(id + 1) * width].to_vec();
        let mask = self.number("mask_token_id");
        let mut hidden: Vec<Row> = (0..rows).map(|j| embedded(if j == 0 { anchor } else { mask })).collect();
        for layer in 0..self.number("num_hidden_layers") {
            let stem = format!("layers.{layer}");
            let at = |j: usize| features.len() + j;
            let context: Vec<_> = features.iter().enumerate().map(|(t, x)| self.keys_values(layer, x, t)).collect();
            let normed: Vec<Row> =
                hidden.iter().map(|h| self.norm(&format!("{stem}.input_layernorm.weight"), h)).collect();
            let own: Vec<_> = normed.iter().enumerate().map(|(j, x)| self.keys_values(layer, x, at(j))).collect();
            for j in 0..rows {
                let seen = if self.is("causal") { j + 1 } else { rows };
                let all: Vec<&(Vec<Row>, Vec<Row>)> = context.iter().chain(&own[..seen]).collect();
                let queries = self.queries(layer, &normed[j], at(j));
                let mixed: Row = queries.iter().enumerate().flat_map(|(h, q)| self.attend(q, &all, h)).collect();
                let out = self.linear(&format!("{stem}.self_attn.o_proj.weight"), &mixed);
                hidden[j].iter_mut().zip(out).for_each(|(h, o)| *h += o);
            }
            for row in &mut hidden {
                let x = self.norm(&format!("{stem}.post_attention_layernorm.weight"), row);
                let gate = self.linear(&format!("{stem}.mlp.gate_proj.weight"), &x);
                let up = self.linear(&format!("{stem}.mlp.up_proj.weight"), &x);
                let act: Row = gate.iter().zip(&up).map(|(g, u)| g * sigmoid(*g) * u).collect();
                let out = self.linear(&format!("{stem}.mlp.down_proj.weight"), &act);
                row.iter_mut().zip(out).for_each(|(h, o)| *h += o);
            }
        }
        hidden.iter().map(|row| self.norm(self.names()[2], row)).collect()
    }

    fn attend(&self, q: &[f64], all: &[&(Vec<Row>, Vec<Row>)], head: usize) -> Row {
        let rotated = if self.latent() { self.number("qk_rope_head_dim") } else { q.len() };
        let scale = (q.len() as f64).powf(-0.5) * self.rotary(rotated).2;
        let scores: Row = all.iter().map(|(keys, _)| dot(q, &keys[head]) * scale).collect();
        let max = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let weights: Row = scores.iter().map(|s| (s - max).exp()).collect();
        let total: f64 = weights.iter().sum();
        let width = all[0].1[head].len();
        (0..width).map(|c| weights.iter().zip(all).map(|(w, kv)| w * kv.1[head][c]).sum::<f64>() / total).collect()
    }

    /// What is said of drafts that are these tokens, behind tokens with these features and the anchor.
    pub fn drafts(&self, features: &[Row], anchor: usize, tokens: &[usize]) -> Drafts {
        let skipped = usize::from(self.key("sample_from_anchor") == false);
        let hidden = self.block(features, anchor, self.number("block_size"));
        let logit_scale = self.config["logit_scale"].as_f64().unwrap_or(1.0);
        let rank = self.key("markov_rank").as_u64().unwrap_or(0) as usize;
        let mut state = vec![0.0; rank];
        let mut out = Drafts::default();
        for j in 0..tokens.len() {
            let h = &hidden[j + skipped];
            let before = if j == 0 { anchor } else { tokens[j - 1] };
            let mut logits: Row = self.head.chunks_exact(h.len()).map(|row| logit_scale * dot(row, h)).collect();
            let mut embedding = Vec::new();
            if rank > 0 {
                embedding = self.weight("markov_head.markov_w1.weight")[before * rank..(before + 1) * rank].to_vec();
                let input = self.markov_input(&embedding, h, &mut state);
                let bias = self.linear("markov_head.markov_w2.weight", &input);
                logits.iter_mut().zip(bias).for_each(|(l, b)| *l += b);
            }
            let max = logits.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            let log_sum = logits.iter().map(|l| (l - max).exp()).sum::<f64>().ln() + max;
            out.log_probabilities.push(logits.iter().map(|l| l - log_sum).collect());
            if self.is("enable_confidence_head") {
                let mut x = h.clone();
                if self.is("confidence_head_with_markov") {
                    x.extend(&embedding);
                }
                let bias = self.weight("confidence_head.proj.bias")[0];
                out.confidence.push(sigmoid(self.linear("confidence_head.proj.weight", &x)[0] + bias));
            }
        }
        out
    }

    fn markov_input(&self, embedding: &[f64], hidden: &[f64], state: &mut Row) -> Row {
        let affine = |name: &str, x: &[f64]| -> Row {
            let product = self.linear(&format!("markov_head.{name}.weight"), x);
            product.iter().zip(self.weight(&format!("markov_head.{name}.bias"))).map(|(p, b)| p + b).collect()
        };
        match self.key("markov_head_type").as_str().unwrap() {
            "vanilla" => embedding.to_vec(),
            "gated" => {
                let gate = affine("gate_proj", &[hidden, embedding].concat());
                gate.iter().zip(embedding).map(|(g, e)| sigmoid(*g) * e).collect()
            }
            _ => {
                let rank = embedding.len();
                let cells = affine("joint_proj", &[&state[..], embedding, hidden].concat());
                for i in 0..rank {
                    let gate = sigmoid(cells[i]);
                    state[i] = gate * state[i] + (1.0 - gate) * cells[rank + i].tanh();
                }
                cells[2 * rank..].iter().map(|c| c.tanh()).collect()
            }
        }
    }
}
