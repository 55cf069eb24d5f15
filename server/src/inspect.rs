//! `perilune inspect`: what a checkpoint holds, what a request costs, whether this machine can run it.
//!
//! Works from a bare `config.json` too; sizes of weights are then what the configuration implies. Nothing is loaded.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::Path;

use perilune_config::{DraftConfig, ExpertStorage, FfnKind, LayerKind, ModelConfig};
use perilune_tensor::{DType, QuantFormat};
use perilune_weights::{Checkpoint, Layout, SafetensorsDir, WeightSource, expected_tensors};

use crate::backend::{BackendKind, device_memory_bytes};
use crate::cli::InspectArgs;
use crate::error::ServerError;
use crate::inspect_cache::inspect_cache;
use crate::inspect_draft::inspect_draft;
use crate::model_dir::default_model;

/// Context accounted for where neither the flag nor the configuration says.
const DEFAULT_CONTEXT: usize = 32_768;

/// The report, as lines of text.
///
/// # Errors
/// A configuration or checkpoint that cannot be read or cannot run.
pub fn inspect(args: &InspectArgs) -> Result<String, ServerError> {
    if let Some(url) = &args.cache {
        return inspect_cache(url, args.api_key.as_deref());
    }
    let path = match &args.path {
        Some(path) => path.clone(),
        None => default_model()?,
    };
    let mut report = Report::default();
    let file = if path.is_dir() { path.join("config.json") } else { path.clone() };
    if let Some(draft) = DraftConfig::find(&file)? {
        for (name, text) in inspect_draft(&path, &draft)? {
            report.row(name, text);
        }
        return Ok(report.0);
    }
    let (config, weights_bytes) = if path.is_dir() {
        let config = ModelConfig::from_dir(&path)?;
        report.title(&path, &config);
        let bytes = report.stored(&path, &config)?;
        (config, bytes)
    } else {
        let config = ModelConfig::from_file(&path)?;
        report.title(&path, &config);
        let bytes = implied_bytes(&config);
        report.row("weights", format!("{} implied by the configuration; none are here", size(bytes)));
        (config, bytes)
    };
    report.request(&config, args.context_length);
    report.machine(&config, weights_bytes, args.context_length);
    if args.tensors {
        report.tensors(&config);
    }
    Ok(report.0)
}

#[derive(Default)]
struct Report(String);

impl Report {
    fn row(&mut self, name: &str, text: impl std::fmt::Display) {
        // Writing to a String cannot fail.
        let _ = writeln!(self.0, "{name:<14}{text}");
    }

    fn title(&mut self, path: &Path, config: &ModelConfig) {
        let moe_layers = (0..config.num_layers()).filter(|layer| config.ffn(*layer) == FfnKind::Moe).count();
        self.row("checkpoint", path.display());
        self.row(
            "layers",
            format!(
                "{}: {} KDA, {} MLA; {} dense, {moe_layers} with experts",
                config.num_layers(),
                config.count(LayerKind::Kda),
                config.count(LayerKind::Mla),
                config.num_layers() - moe_layers
            ),
        );
        if let Some(moe) = &config.moe {
            let latent = moe.latent.map_or(String::new(), |latent| format!(", in a latent of {}", latent.width));
            let experts = format!(
                "{} routed, {} per token, {} shared, inner width {}{latent}",
                moe.num_experts, moe.top_k, moe.num_shared_experts, moe.intermediate_size
            );
            self.row("experts", experts);
        }
        let residual =
            config.attn_res_block_size.map_or("plain".to_owned(), |block| format!("attention over blocks of {block}"));
        self.row(
            "width",
            format!("hidden {}, vocabulary {}, residual {residual}", config.hidden_size, config.vocab_size),
        );
        let count = config.parameters();
        self.row("parameters", format!("{} total, {} active per token", number(count.total), number(count.active)));
    }

    /// What the files hold; the bytes of the model's weights.
    fn stored(&mut self, dir: &Path, config: &ModelConfig) -> Result<u64, ServerError> {
        let source = SafetensorsDir::open(dir)?;
        let checkpoint = Checkpoint::open(&source, config)?;
        let mut by_type: BTreeMap<String, (usize, u64)> = BTreeMap::new();
        for name in source.names() {
            let Some(spec) = source.spec(name) else { continue };
            let packed = name.ends_with(".weight_packed") || name.ends_with(".weight_scale");
            let kind = if packed { "MXFP4".to_owned() } else { spec.dtype.to_string() };
            let entry = by_type.entry(kind).or_default();
            entry.0 += 1;
            entry.1 += spec.size_bytes() as u64;
        }
        let files = source.files().len();
        self.row(
            "weights",
            format!("{} in {files} file{}", size(checkpoint.size_bytes()), if files == 1 { "" } else { "s" }),
        );
        for (kind, (count, bytes)) in by_type {
            self.row("", format!("{kind}: {count} tensors, {}", size(bytes)));
        }
        if !checkpoint.ignored().is_empty() {
            self.row("", format!("{} tensors of other parts are left alone", checkpoint.ignored().len()));
        }
        Ok(checkpoint.size_bytes())
    }

    fn request(&mut self, config: &ModelConfig, context: Option<usize>) {
        let cost = RequestCost::of(config);
        let context = context_length(config, context);
        self.row("per request", format!("{} of KDA state, {} of convolution tails", size(cost.state), size(cost.conv)));
        self.row("per token", format!("{} of MLA latents (f32), {} (bf16)", size(cost.latent), size(cost.latent / 2)));
        self.row("one request", format!("of {context} tokens holds {}", size(cost.total(context))));
    }

    fn machine(&mut self, config: &ModelConfig, weights_bytes: u64, context: Option<usize>) {
        let memory = device_memory_bytes(BackendKind::Cpu);
        let context = context_length(config, context);
        let needed = weights_bytes + RequestCost::of(config).total(context);
        let verdict = match memory.checked_sub(needed) {
            Some(_) => {
                let requests = (memory - weights_bytes) / RequestCost::of(config).total(context).max(1);
                format!("fits, with room for {requests} such requests")
            }
            None => format!("does not fit: weights and one such request need {}", size(needed)),
        };
        self.row("this machine", format!("{} of memory: {verdict}", size(memory)));
    }

    fn tensors(&mut self, config: &ModelConfig) {
        for expected in expected_tensors(config) {
            self.row("", format!("{} {}", expected.name, expected.layout));
        }
    }
}

/// Bytes that requests occupy on the CPU backend, which keeps caches in f32.
struct RequestCost {
    state: u64,
    conv: u64,
    latent: u64,
}

impl RequestCost {
    fn of(config: &ModelConfig) -> Self {
        RequestCost {
            state: config.state_bytes_per_request(),
            conv: config.conv_bytes_per_request(DType::F32),
            latent: config.latent_bytes_per_token(DType::F32),
        }
    }

    fn total(&self, tokens: usize) -> u64 {
        self.state + self.conv + self.latent * tokens as u64
    }
}

fn context_length(config: &ModelConfig, asked: Option<usize>) -> usize {
    asked.or(config.max_positions).unwrap_or(DEFAULT_CONTEXT)
}

/// Bytes of weights as published checkpoints store them: BF16, experts as the configuration declares.
fn implied_bytes(config: &ModelConfig) -> u64 {
    let bytes = |layout: Layout| match layout {
        Layout::ExpertMatrix { rows, cols } if config.experts_declared == ExpertStorage::Mxfp4 => {
            QuantFormat::Mxfp4.matrix_bytes(rows, cols)
        }
        other => other.shape().numel() * DType::Bf16.size_bytes(),
    };
    expected_tensors(config).iter().map(|expected| bytes(expected.layout) as u64).sum()
}

/// A size in binary units, four figures at most.
pub fn size(bytes: u64) -> String {
    const UNITS: [&str; 6] = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
    let mut value = bytes as f64;
    let mut unit = 0;
    while value >= 1024.0 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    if unit == 0 { format!("{bytes} B") } else { format!("{value:.1} {}", UNITS[unit]) }
}

/// A count in thousands, millions, billions or trillions.
pub(crate) fn number(count: u64) -> String {
    let (value, unit) = match count {
        0..1_000 => return count.to_string(),
        1_000..1_000_000 => (count as f64 / 1e3, "K"),
        1_000_000..1_000_000_000 => (count as f64 / 1e6, "M"),
        1_000_000_000..1_000_000_000_000 => (count as f64 / 1e9, "B"),
        _ => (count as f64 / 1e12, "T"),
    };
    format!("{value:.2}{unit}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn repository(path: &str) -> std::path::PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(path)
    }

    fn report(path: &str) -> String {
        let args = InspectArgs {
            path: Some(repository(path)),
            context_length: None,
            tensors: false,
            cache: None,
            api_key: None,
        };
        inspect(&args).unwrap()
    }

    #[test]
    fn k3_from_its_configuration_alone() {
        let text = report("tests/data/configs/kimi-k3.json");
        for part in [
            "93: 69 KDA, 24 MLA; 1 dense, 92 with experts",
            "896 routed, 16 per token, 2 shared",
            "2.78T total, 104",
            "414.0 MiB of KDA state",
            "27.0 KiB (bf16)",
            "of 1048576 tokens",
            "does not fit",
        ] {
            assert!(text.contains(part), "{part} is missing from\n{text}");
        }
    }

    #[test]
    fn the_demo_from_its_files() {
        let text = report("models/demo");
        for part in
            ["8: 6 KDA, 2 MLA; 1 dense, 7 with experts", "in 1 file", "MXFP4: 672 tensors", "fits, with room for"]
        {
            assert!(text.contains(part), "{part} is missing from\n{text}");
        }
    }

    #[test]
    fn a_draft_from_its_configuration_alone() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("config.json");
        let text = r#"{"architectures": ["DSparkDraftModel"], "block_size": 7, "hidden_size": 7168, "vocab_size": 163840,
            "intermediate_size": 14336, "num_hidden_layers": 5, "num_attention_heads": 64, "num_key_value_heads": 16,
            "head_dim": 64, "rms_norm_eps": 1e-5, "rope_theta": 10000, "dflash_config": {"target_layer_ids": [7, 23],
            "mask_token_id": 163824, "markov_rank": 256}}"#;
        std::fs::write(&path, text).unwrap();
        let args = InspectArgs { path: Some(path), context_length: None, tensors: false, cache: None, api_key: None };
        let text = inspect(&args).unwrap();
        for part in
            ["2.10B besides", "after layers [7, 23]", "up to 7 tokens", "rank 256; no confidence", "40.0 KiB of"]
        {
            assert!(text.contains(part), "{part} is missing from\n{text}");
        }
    }

    #[test]
    fn what_is_not_there_is_named() {
        let args = InspectArgs {
            path: Some("no/such.json".into()),
            context_length: None,
            tensors: false,
            cache: None,
            api_key: None,
        };
        assert!(inspect(&args).unwrap_err().to_string().contains("no/such.json"));
    }

    #[test]
    fn sizes_and_numbers() {
        assert_eq!([size(0), size(1023), size(1536), size(434_110_464)], ["0 B", "1023 B", "1.5 KiB", "414.0 MiB"]);
        assert_eq!([number(999), number(6_700_000), number(2_780_000_000_000)], ["999", "6.70M", "2.78T"]);
    }
}
