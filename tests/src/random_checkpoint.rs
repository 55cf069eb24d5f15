//! A checkpoint without training: K3's architecture, tiny, over the demo's vocabulary.

use std::path::Path;

use perilune_config::ModelConfig;
use perilune_weights::{RandomOptions, write_random_checkpoint};
use serde_json::Value;

use crate::{data_dir, demo_dir};

/// Writes one into `dir`: random weights, and the demo's tokenizer.
pub fn write_random_model(dir: &Path) {
    let text = std::fs::read_to_string(data_dir().join("vectors.json")).unwrap();
    let all: Value = serde_json::from_str(&text).unwrap();
    let mut config = all["k3"]["config"].clone();
    let demo: Value = serde_json::from_slice(&std::fs::read(demo_dir().join("config.json")).unwrap()).unwrap();
    let inner = if config.get("text_config").is_some() { &mut config["text_config"] } else { &mut config };
    inner["vocab_size"] = demo["text_config"]["vocab_size"].clone();
    inner["max_position_embeddings"] = Value::from(32_768);
    std::fs::write(dir.join("config.json"), config.to_string()).unwrap();
    let config = ModelConfig::from_dir(dir).unwrap();
    write_random_checkpoint(&config, RandomOptions::default(), dir).unwrap();
    for file in ["tiktoken.model", "tokenizer_config.json", "generation_config.json"] {
        std::fs::copy(demo_dir().join(file), dir.join(file)).unwrap();
    }
}
