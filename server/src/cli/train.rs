//! Flags of `train-draft`.

use std::path::PathBuf;

use clap::{Args, ValueEnum};

use super::values::{positive, temperature, thread_count};
use crate::backend::BackendKind;

/// Flags of `train-draft`.
#[derive(Debug, Clone, Args)]
pub struct TrainDraftArgs {
    /// Directory of the target's checkpoint; the shipped demo where absent.
    #[arg(long, short, env = "PERILUNE_MODEL", value_name = "DIR")]
    pub model: Option<PathBuf>,
    /// The target's device.
    #[arg(long, env = "PERILUNE_BACKEND", value_enum, default_value_t = BackendKind::Cpu)]
    pub backend: BackendKind,
    /// Folder of a GPU's kernels, which `cargo xtask build-kernels --out DIR` writes; needed by cuda and hip.
    #[arg(long, env = "PERILUNE_KERNELS", value_name = "DIR")]
    pub kernels: Option<PathBuf>,
    /// Threads that compute, 1 to 1024; all cores this process may use where absent.
    #[arg(long, env = "PERILUNE_THREADS", value_name = "N", value_parser = thread_count)]
    pub threads: Option<usize>,
    /// The draft's device.
    #[arg(long, value_enum, default_value_t = DraftDevice::Cpu)]
    pub draft_device: DraftDevice,
    /// Prompts, a JSON object per line with `question`, `messages` or `text`; the target answers them itself.
    #[arg(long, value_name = "FILE")]
    pub prompts: PathBuf,
    /// Use only the first so many of them.
    #[arg(long, value_name = "N", value_parser = positive)]
    pub max_prompts: Option<usize>,
    /// Directory for the draft, empty or not there yet.
    #[arg(long, value_name = "DIR")]
    pub out: PathBuf,
    /// Go on with the run in the output directory.
    #[arg(long)]
    pub resume: bool,
    /// Do not train: measure the draft in the output directory on the prompts.
    #[arg(long, conflicts_with = "resume")]
    pub evaluate: bool,
    /// Layers of the draft.
    #[arg(long, default_value_t = 3)]
    pub layers: usize,
    /// Query heads; as many as fill the target's width where absent.
    #[arg(long)]
    pub heads: Option<usize>,
    /// Key and value heads; a quarter of the query heads, at least 1, where absent.
    #[arg(long)]
    pub kv_heads: Option<usize>,
    /// Width of a head.
    #[arg(long, default_value_t = 64)]
    pub head_dim: usize,
    /// Width of the draft's feed-forward networks; twice the target's width where absent.
    #[arg(long)]
    pub intermediate: Option<usize>,
    /// Layers of the target whose streams the draft reads, from 0 on; five spread over the depth where absent.
    #[arg(long, value_delimiter = ',', value_name = "LAYERS")]
    pub taps: Vec<usize>,
    /// Which stream.
    #[arg(long, value_enum, default_value_t = TapStreamKind::AttnRes)]
    pub tap_stream: TapStreamKind,
    /// Rank of the Markov head.
    #[arg(long, default_value_t = 64)]
    pub markov_rank: usize,
    /// Tokens proposed per step.
    #[arg(long, default_value_t = 7)]
    pub block_size: usize,
    /// The token that stands for what is to be proposed; a reserved one where absent.
    #[arg(long, value_name = "ID")]
    pub mask_token: Option<u32>,
    /// Positions that the draft's rotations are not stretched for.
    #[arg(long, default_value_t = 4096, value_parser = positive)]
    pub rope_original: usize,
    /// How far its rotations are stretched; 1 for not at all.
    #[arg(long, default_value_t = 8.0)]
    pub rope_factor: f64,
    /// Steps in all.
    #[arg(long, default_value_t = 2000)]
    pub steps: usize,
    /// Sequences per step.
    #[arg(long, default_value_t = 8)]
    pub batch: usize,
    /// Random anchors per sequence; each is a block of its own.
    #[arg(long, default_value_t = 512)]
    pub anchors: usize,
    /// Learning rate after the warm-up; it falls along a cosine.
    #[arg(long, default_value_t = 1e-3)]
    pub lr: f64,
    /// Steps over which the learning rate rises.
    #[arg(long, default_value_t = 50)]
    pub warmup: usize,
    /// Of the draft's first weights, the order of sequences, the anchors and the target's answers.
    #[arg(long, default_value_t = 0)]
    pub seed: u64,
    /// The last so many prompts are not trained on; their first answers are measured with.
    #[arg(long, default_value_t = 64)]
    pub held_out: usize,
    /// Steps between two measurements.
    #[arg(long, default_value_t = 100)]
    pub measure_every: usize,
    /// Steps between two saved states.
    #[arg(long, default_value_t = 50)]
    pub save_every: usize,
    /// Temperature of the target's answers.
    #[arg(long, default_value_t = 0.0, value_parser = temperature)]
    pub temperature: f64,
    /// Further answers to every prompt, drawn: a draft that has seen more of what its target might say guesses better.
    #[arg(long, default_value_t = 0, value_name = "N")]
    pub more_answers: usize,
    /// Temperature of the further answers.
    #[arg(long, default_value_t = 0.7, value_parser = temperature)]
    pub more_temperature: f64,
    /// Most tokens of an answer.
    #[arg(long, default_value_t = 1024)]
    pub max_answer_tokens: usize,
    /// Answers that are made at once.
    #[arg(long, default_value_t = 32, value_parser = positive)]
    pub concurrency: usize,
}

/// What computes the draft.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum DraftDevice {
    /// The processor.
    Cpu,
    /// The first CUDA device.
    #[cfg(feature = "train-cuda")]
    Cuda,
    /// The first ROCm device.
    #[cfg(feature = "train-rocm")]
    Rocm,
}

/// What "the stream after a layer" is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum TapStreamKind {
    /// The mixture that the next layer's attention reads.
    AttnRes,
    /// The running prefix.
    Prefix,
}
