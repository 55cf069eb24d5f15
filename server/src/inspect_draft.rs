//! `perilune inspect` of a draft model: what it is, what it reads of its target, what it keeps of a token.

use std::path::Path;

use perilune_config::{
    AnchorRow, ConfidenceInput, DraftConfig, DraftFamily, DraftHeads, DraftMask, MarkovKind, TapNorm, TapStream,
};
use perilune_tensor::DType;
use perilune_weights::{Checkpoint, SafetensorsDir, expected_draft_tensors};

use crate::error::ServerError;
use crate::inspect::{number, size};

/// The report on a directory, or on a bare configuration, as lines of `(name, text)`.
///
/// # Errors
/// A checkpoint that cannot be read or does not fit its configuration.
pub(crate) fn inspect_draft(path: &Path, config: &DraftConfig) -> Result<Vec<(&'static str, String)>, ServerError> {
    let count: usize = expected_draft_tensors(config).iter().map(|expected| expected.layout.shape().numel()).sum();
    let mut lines = vec![("draft", path.display().to_string()), ("kind", kind(config))];
    lines.push(("width", format!("hidden {}, vocabulary {}", config.hidden_size, config.vocab_size)));
    lines.push(("parameters", format!("{} besides the target's embedding and head", number(count as u64))));
    lines.push(("weights", weights(path, config, count)?));
    lines.push(("reads", taps(config)));
    lines.push(("proposes", proposes(config)));
    lines.push(("per token", format!("{} of context (f32)", size(4 * config.context_len() as u64))));
    Ok(lines)
}

fn kind(config: &DraftConfig) -> String {
    let family = match config.family {
        DraftFamily::SpecForge => "DSpark (SpecForge)",
        DraftFamily::K3Dspark => "DSpark (k3_dspark)",
    };
    let heads = match config.attention {
        DraftHeads::Grouped { num_heads, num_kv_heads, head_dim } => {
            format!("{num_heads} heads of {head_dim} over {num_kv_heads} of keys")
        }
        DraftHeads::Latent { num_heads, kv_lora_rank, .. } => {
            format!("{num_heads} heads over a latent of {kv_lora_rank}")
        }
    };
    let yarn = config.rotary.yarn.map_or(String::new(), |yarn| format!(", YaRN ×{}", yarn.factor));
    format!("{family}, {} layers, {heads}{yarn}", config.num_layers)
}

fn weights(path: &Path, config: &DraftConfig, count: usize) -> Result<String, ServerError> {
    if !path.is_dir() {
        let bytes = size((count * DType::Bf16.size_bytes()) as u64);
        return Ok(format!("{bytes} implied by the configuration; none are here"));
    }
    let source = SafetensorsDir::open(path)?;
    let checkpoint = Checkpoint::open_draft(&source, config)?;
    let ignored = match checkpoint.ignored().len() {
        0 => String::new(),
        count => format!("; {count} tensors are the target's and left alone"),
    };
    Ok(format!("{} in {} tensors{ignored}", size(checkpoint.size_bytes()), checkpoint.len()))
}

fn taps(config: &DraftConfig) -> String {
    let stream = match config.taps.stream {
        TapStream::AttnRes => "mixture of the attention residual",
        TapStream::Prefix => "running prefix",
    };
    let norm = if config.taps.norm == TapNorm::Rms { ", each normed" } else { "" };
    format!("the {stream} after layers {:?}{norm}", config.taps.layers)
}

fn proposes(config: &DraftConfig) -> String {
    let mask = match config.mask {
        DraftMask::Bidirectional => "bidirectional",
        DraftMask::Causal => "causal",
    };
    let first = if config.anchor == AnchorRow::Nothing { ", the anchor's row predicts nothing" } else { "" };
    let markov = config.markov.map_or("no Markov head".to_owned(), |markov| {
        let kind = match markov.kind {
            MarkovKind::Vanilla => "vanilla",
            MarkovKind::Gated => "gated",
            MarkovKind::Rnn => "recurrent",
        };
        format!("{kind} Markov head of rank {}", markov.rank)
    });
    let confidence = match config.confidence {
        None => "no confidence head",
        Some(ConfidenceInput::Hidden) => "confidence from the hidden row",
        Some(ConfidenceInput::HiddenAndMarkov) => "confidence from hidden row and Markov head",
    };
    format!("up to {} tokens in a {mask} block{first}; {markov}; {confidence}", config.num_drafts())
}
