//! A model and a draft made wider without a change of what they say.
//!
//! Every stream, head and inner width is there `factor` times, each copy of an input counts one part in `factor`. A power of
//! two makes that exact in every stored format, so only the order of sums differs. The vocabulary, the number of layers and
//! experts and the latents of attention stay as they are. For measurements that need a model beyond the caches which still
//! talks sense; not for serving.

use std::path::Path;

use perilune_config::{DraftConfig, ModelConfig};
use perilune_tensor::{DType, HostTensor, Shape, TensorSpec};
use perilune_weights::{
    Expected, Layout, SafetensorsDir, Sharding, TensorToWrite, WeightSource, expected_draft_tensors, expected_tensors,
    write_tensors,
};
use serde_json::Value;

/// Widths of a model that grow.
const MODEL_WIDTHS: [&str; 7] = [
    "hidden_size",
    "intermediate_size",
    "moe_intermediate_size",
    "routed_expert_hidden_size",
    "num_attention_heads",
    "num_key_value_heads",
    "q_lora_rank",
];

/// Writes the model of `from` into the existing folder `to`, `factor` times as wide.
pub fn widen_model(from: &Path, factor: usize, to: &Path) {
    let mut config = read_config(from);
    let inner = if config.get("text_config").is_some() { &mut config["text_config"] } else { &mut config };
    MODEL_WIDTHS.iter().for_each(|key| grow(&mut inner[*key], factor));
    grow(&mut inner["linear_attn_config"]["num_heads"], factor);
    write_config(&config, to);
    for file in ["tiktoken.model", "tokenizer_config.json", "generation_config.json"] {
        if from.join(file).exists() {
            std::fs::copy(from.join(file), to.join(file)).unwrap();
        }
    }
    let [old, new] = [from, to].map(|dir| expected_tensors(&ModelConfig::from_dir(dir).unwrap()));
    write((from, &old), factor, (to, &new));
}

/// Writes a draft for the widened model into the existing folder `to`. Only what meets the target's streams grows: a draft
/// of a large model is small beside it.
pub fn widen_draft(from: &Path, factor: usize, to: &Path) {
    let mut config = read_config(from);
    grow(&mut config["hidden_size"], factor);
    write_config(&config, to);
    let [old, new] = [from, to].map(|dir| expected_draft_tensors(&DraftConfig::from_dir(dir).unwrap()));
    write((from, &old), factor, (to, &new));
}

fn read_config(dir: &Path) -> Value {
    serde_json::from_slice(&std::fs::read(dir.join("config.json")).unwrap()).unwrap()
}

fn write_config(config: &Value, dir: &Path) {
    std::fs::write(dir.join("config.json"), serde_json::to_string_pretty(config).unwrap()).unwrap();
}

/// A width that is not there, or null, is a feature that the model does not have.
fn grow(width: &mut Value, factor: usize) {
    if let Some(old) = width.as_u64() {
        *width = (old * factor as u64).into();
    }
}

fn write((from, old): (&Path, &[Expected]), factor: usize, (to, new): (&Path, &[Expected])) {
    assert!(factor.is_power_of_two(), "{factor}: only powers of two divide every format without rounding");
    let source = SafetensorsDir::open(from).unwrap();
    let prefix = if source.names().any(|name| name.starts_with("language_model.")) { "language_model." } else { "" };
    let pairs = old.iter().zip(new);
    let tensors = pairs.flat_map(|(old, new)| {
        assert_eq!(old.name, new.name);
        Wider { factor, old: sizes(old.layout), new: sizes(new.layout) }.tensors((&source, prefix), new)
    });
    write_tensors(tensors.collect(), Sharding::Single, to).unwrap();
}

/// Rows and columns.
fn sizes(layout: Layout) -> (usize, usize) {
    match layout {
        Layout::Matrix { rows, cols } | Layout::ExpertMatrix { rows, cols } => (rows, cols),
        Layout::Row { len } => (1, len),
        // One value for each output.
        Layout::Vector { len } | Layout::PerHead { heads: len } => (len, 1),
        Layout::Taps { channels, kernel } => (channels, kernel),
    }
}

/// A tensor before and after.
#[derive(Debug, Clone, Copy)]
struct Wider {
    factor: usize,
    old: (usize, usize),
    new: (usize, usize),
}

impl Wider {
    /// The tensor as it is stored: a matrix, or its nibbles and scales.
    fn tensors<'a>(self, (source, prefix): (&SafetensorsDir, &str), new: &Expected) -> Vec<TensorToWrite<'a>> {
        let name = format!("{prefix}{}", new.name);
        if source.contains(&name) {
            return vec![self.plain(name.clone(), &source.get(&name).unwrap(), new)];
        }
        let stem = name.strip_suffix(".weight").unwrap();
        let (packed, scales) = new.layout.packed_shapes().unwrap();
        let nibbles = self.bytes(source, (format!("{stem}.weight_packed"), packed), 0);
        // Scales are powers of two.
        let parts = if self.new.1 > self.old.1 { self.factor.ilog2() } else { 0 };
        vec![nibbles, self.bytes(source, (format!("{stem}.weight_scale"), scales), parts as u8)]
    }

    fn bytes<'a>(self, source: &SafetensorsDir, (name, shape): (String, Shape), less: u8) -> TensorToWrite<'a> {
        let old = source.get(&name).unwrap();
        let (rows, cols) = (old.spec().shape.rows(), old.spec().shape.width());
        let all = (0..shape.rows()).flat_map(|row| (0..shape.width()).map(move |col| row % rows * cols + col % cols));
        let bytes = all.map(|at| old.bytes()[at] - less).collect();
        to_write(name, TensorSpec::new(DType::U8, shape), bytes)
    }

    fn plain<'a>(self, name: String, old: &HostTensor, new: &Expected) -> TensorToWrite<'a> {
        let values = old.to_f32();
        let (columns, ((rows, _), (old_rows, old_cols))) = (self.columns(&new.name), (self.new, self.old));
        let all = (0..rows).flat_map(|row| {
            let from = &values[row % old_rows * old_cols..][..old_cols];
            columns.iter().map(move |(col, part)| from[*col] * part)
        });
        let (dtype, bytes) = match old.spec().dtype {
            DType::F32 => (DType::F32, all.flat_map(f32::to_le_bytes).collect()),
            _ => (DType::Bf16, all.flat_map(|value| half::bf16::from_f32(value).to_le_bytes()).collect()),
        };
        to_write(name, TensorSpec::new(dtype, new.layout.shape()), bytes)
    }

    /// For each column the one before that it copies, and how much of it.
    fn columns(self, name: &str) -> Vec<(usize, f32)> {
        let ((_, old), (_, new)) = (self.old, self.new);
        let part = 1.0 / self.factor as f32;
        let copies =
            |first: usize, width: usize, part: f32| (0..width * self.factor).map(move |j| (first + j % width, part));
        match name {
            _ if old == new => (0..new).map(|col| (col, 1.0)).collect(),
            // A row of a table goes into the stream, no sum over it.
            "model.embed_tokens.weight" => copies(0, old, 1.0).collect(),
            // The stream, and behind it what does not grow.
            "confidence_head.proj.weight" => {
                let hidden = (new - old) / (self.factor - 1);
                copies(0, hidden, part).chain((hidden..old).map(|col| (col, 1.0))).collect()
            }
            // Streams side by side.
            "fc.weight" | "context_proj.weight" => {
                let hidden = self.old.0;
                (0..old / hidden).flat_map(|tap| copies(tap * hidden, hidden, part)).collect()
            }
            _ => copies(0, old, part).collect(),
        }
    }
}

fn to_write<'a>(name: String, spec: TensorSpec, bytes: Vec<u8>) -> TensorToWrite<'a> {
    TensorToWrite { name, spec, bytes: Box::new(move || bytes.clone()) }
}
