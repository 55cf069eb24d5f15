//! The command line: subcommands and flags, each also readable from the environment (`PERILUNE_…`), those of `serve` from
//! a file, too.
//!
//! What each value must be is in [`values`].
//!
//! Long because it is a list: one place for every flag.

mod choices;
mod settings_file;
#[cfg(feature = "train")]
mod train;
mod values;

use std::net::IpAddr;
use std::path::PathBuf;

use clap::{Args, Command as ClapCommand, CommandFactory, Parser, Subcommand};

use crate::backend::BackendKind;
pub use crate::journal::LogForm;
pub use crate::metrics_compat::MetricsCompat;
pub use crate::profile::ApiProfile;
pub use crate::simulate::TraceKind;
pub use choices::{
    ConvertTo, DraftLengthRule, ExpertFormat, MatrixFormat, OverloadStatus, Quantization, Speculative, StateDtype,
    Vocabulary,
};
pub use settings_file::{CommandLine, read};
#[cfg(feature = "train")]
pub use train::{DraftDevice, TapStreamKind, TrainDraftArgs};
use values::{
    amount, chunk_size, count, effort, fraction, host, model_name, num_drafts, positive, rate, seconds, temperature,
    thread_count, url,
};

/// Serves Kimi K3 and its relatives.
#[derive(Debug, Parser)]
#[command(name = "perilune", version, about, args_conflicts_with_subcommands = true)]
pub struct Cli {
    /// What to do; without it, serve.
    #[command(subcommand)]
    pub command: Option<Command>,
    /// Flags of `serve`, for when it is not named.
    #[command(flatten)]
    pub serve: ServeArgs,
}

/// The command line. A number below zero is a value, so that it is refused as one, with its flag and rule.
pub(crate) fn command() -> ClapCommand {
    below_zero_is_a_value(Cli::command())
}

fn below_zero_is_a_value(command: ClapCommand) -> ClapCommand {
    let command = command.mut_args(|arg| {
        let takes_values = arg.get_action().takes_values();
        arg.allow_negative_numbers(takes_values)
    });
    command.mut_subcommands(below_zero_is_a_value)
}

/// What the binary can do.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Serve a model over HTTP.
    Serve(Box<ServeArgs>),
    /// Chat in the terminal, with a local model or a server.
    Chat(Box<ChatArgs>),
    /// Say what a checkpoint holds and what it needs.
    Inspect(InspectArgs),
    /// Measure prefill and decode speed.
    Bench(Box<BenchArgs>),
    /// Run a trace of requests against the prefix cache, without a model.
    SimulateCache(SimulateArgs),
    /// Put a load on a server and measure how it answers.
    BenchServe(BenchServeArgs),
    /// Write a random checkpoint of a given configuration.
    BenchModel(BenchModelArgs),
    /// Write a checkpoint in another format, to measure other programs on the same weights.
    Convert(ConvertArgs),
    /// Train a draft for speculative decoding on what a model says.
    #[cfg(feature = "train")]
    TrainDraft(Box<TrainDraftArgs>),
}

/// Which model, on what.
#[derive(Debug, Clone, Args)]
pub struct ModelArgs {
    /// Directory of the checkpoint; the shipped demo where absent.
    #[arg(long, short, env = "PERILUNE_MODEL", value_name = "DIR")]
    pub model: Option<PathBuf>,
    /// The device.
    #[arg(long, env = "PERILUNE_BACKEND", value_enum, default_value_t = BackendKind::Cpu)]
    pub backend: BackendKind,
    /// Folder of a GPU's kernels, which `cargo xtask build-kernels --out DIR` writes; needed by cuda and hip.
    #[arg(long, env = "PERILUNE_KERNELS", value_name = "DIR")]
    pub kernels: Option<PathBuf>,
    /// Threads that compute, 1 to 1024; all cores this process may use where absent.
    #[arg(long, env = "PERILUNE_THREADS", value_name = "N", value_parser = thread_count)]
    pub threads: Option<usize>,
    /// Most tokens of prompt and answer together; the model's own limit, as far as memory allows, where absent.
    #[arg(long, env = "PERILUNE_CONTEXT_LENGTH", value_name = "TOKENS", value_parser = positive)]
    pub context_length: Option<usize>,
    /// Fraction of the device's memory to use, weights and caches together.
    #[arg(long, env = "PERILUNE_MEM_FRACTION", value_name = "F", default_value_t = 0.8, value_parser = fraction)]
    pub mem_fraction: f64,
    /// Most prompt tokens computed in one step.
    #[arg(long, env = "PERILUNE_CHUNKED_PREFILL_SIZE", value_name = "TOKENS", default_value_t = 512, value_parser = chunk_size)]
    pub chunked_prefill_size: usize,
    /// Most sequences computed in one step.
    #[arg(long, env = "PERILUNE_MAX_RUNNING_REQUESTS", value_name = "N", default_value_t = 32, value_parser = positive)]
    pub max_running_requests: usize,
    /// Most requests that may wait.
    #[arg(long, env = "PERILUNE_MAX_QUEUED_REQUESTS", value_name = "N", default_value_t = 1024, value_parser = positive)]
    pub max_queued_requests: usize,
    /// Where the seeds of requests without one come from; the system's randomness where absent. The same requests in the same
    /// order then get the same answers, unless drafts have adaptive lengths.
    #[arg(long, env = "PERILUNE_RANDOM_SEED", value_name = "N", value_parser = count::<u64>)]
    pub random_seed: Option<u64>,
    /// Tokens per block of the latent cache.
    #[arg(long, env = "PERILUNE_BLOCK_SIZE", value_name = "TOKENS", default_value_t = 64, value_parser = positive)]
    pub block_size: usize,
    /// Compute every prompt from its beginning, even where an earlier request began alike.
    #[arg(long, env = "PERILUNE_DISABLE_PREFIX_CACHE")]
    pub disable_prefix_cache: bool,
    /// Host memory in MiB for stored prefixes that no longer fit on the device [default: 0 on the CPU, whose memory
    /// it is, a quarter of what is available beside a GPU].
    #[arg(long, env = "PERILUNE_HOST_CACHE_MIB", value_name = "MIB", value_parser = count::<usize>)]
    pub host_cache_mib: Option<usize>,
    /// Directory for stored prefixes that no longer fit in memory; it outlives the server. Holds prompts in the clear.
    #[arg(long, env = "PERILUNE_DISK_CACHE", value_name = "DIR")]
    pub disk_cache: Option<PathBuf>,
    /// How much of it may be used, in MiB [default: 8192].
    #[arg(long, env = "PERILUNE_DISK_CACHE_MIB", value_name = "MIB", value_parser = positive)]
    pub disk_cache_mib: Option<usize>,
    /// What states become once they have left the device, in host memory and on disk: less memory, for some accuracy.
    #[arg(long, env = "PERILUNE_CACHE_STATE_DTYPE", value_enum, default_value_t = StateDtype::F32)]
    pub cache_state_dtype: StateDtype,
    /// Save the state of a sequence every so many tokens, besides ends of turns and places where requests part; 0 for
    /// never [default: as many as have latents of the size of a state].
    #[arg(long, env = "PERILUNE_CHECKPOINT_INTERVAL", value_name = "TOKENS", value_parser = count::<usize>)]
    pub checkpoint_interval: Option<usize>,
    /// What drafts tokens ahead for the model to verify: same output, sooner. `auto` uses --draft-model where it is given.
    #[arg(long, env = "PERILUNE_SPECULATIVE", value_enum, default_value_t = Speculative::Auto)]
    pub speculative: Speculative,
    /// Directory of a DSpark draft checkpoint that was trained for the model.
    #[arg(long, env = "PERILUNE_DRAFT_MODEL", value_name = "DIR")]
    pub draft_model: Option<PathBuf>,
    /// Most tokens drafted per step, 1 to 7 [default: as many as the draft proposes].
    #[arg(long, env = "PERILUNE_NUM_DRAFTS", value_name = "N", value_parser = num_drafts)]
    pub num_drafts: Option<usize>,
    /// Whether always that many tokens are drafted, or as many as pay by what was measured so far.
    #[arg(long, env = "PERILUNE_DRAFT_LENGTHS", value_enum, default_value_t = DraftLengthRule::Adaptive)]
    pub draft_lengths: DraftLengthRule,
    /// Round matrices stored in floating point as they are loaded: less memory to read per token, for some accuracy.
    #[arg(long, env = "PERILUNE_QUANTIZE", value_enum)]
    pub quantize: Option<Quantization>,
    /// Do not read every weight once to check that it is finite.
    #[arg(long, env = "PERILUNE_SKIP_WEIGHT_CHECK")]
    pub skip_weight_check: bool,
}

/// Flags of `serve`.
#[derive(Debug, Clone, Args)]
pub struct ServeArgs {
    /// Which model, on what.
    #[command(flatten)]
    pub model: ModelArgs,
    /// The model's name in requests; the directory's name where absent. Several may be given.
    #[arg(long, env = "PERILUNE_SERVED_MODEL_NAME", value_name = "NAME", value_delimiter = ',', value_parser = model_name)]
    pub served_model_name: Vec<String>,
    /// Address to listen on, or a name that resolves to one (its IPv4 address where it has one).
    #[arg(long, env = "PERILUNE_HOST", default_value = "127.0.0.1", value_name = "HOST", value_parser = host)]
    pub host: IpAddr,
    /// Port to listen on; 0 picks a free one.
    #[arg(long, short, env = "PERILUNE_PORT", default_value_t = 8000)]
    pub port: u16,
    /// Serve on token ids alone: prompts are id lists, answers are ids.
    #[arg(long, env = "PERILUNE_SKIP_TOKENIZER_INIT")]
    pub skip_tokenizer_init: bool,
    /// Largest request body, in bytes.
    #[arg(long, env = "PERILUNE_MAX_BODY_BYTES", value_name = "BYTES", default_value_t = 64 << 20, value_parser = positive)]
    pub max_body_bytes: usize,
    /// How long the body of a request may take to come before it is refused with 408, in seconds; 0 for ever. A connection
    /// that sends no whole head for as long is closed without an answer.
    #[arg(long, env = "PERILUNE_BODY_TIMEOUT", value_name = "SECONDS", default_value_t = 60, value_parser = seconds)]
    pub body_timeout: u64,
    /// Most requests that are answered or streamed at once, counted from when their body is there; beyond it they are refused
    /// as by a full queue; 0 for any number.
    #[arg(long, env = "PERILUNE_MAX_CONCURRENT_REQUESTS", value_name = "N", default_value_t = 0, value_parser = count::<usize>)]
    pub max_concurrent_requests: usize,
    /// How long a request may wait for its first step before it is refused as by a full queue, in seconds; 0 for ever. With
    /// it, a streamed answer begins when its request does, and pings come only after that.
    #[arg(long, env = "PERILUNE_MAX_QUEUE_TIME", value_name = "SECONDS", default_value_t = 0, value_parser = seconds)]
    pub max_queue_time: u64,
    /// Status of a refusal because the queue is full.
    #[arg(long, env = "PERILUNE_OVERLOAD_STATUS", value_enum, default_value_t = OverloadStatus::Unavailable)]
    pub overload_status: OverloadStatus,
    /// `Retry-After` of such a refusal, in seconds.
    #[arg(long, env = "PERILUNE_RETRY_AFTER", value_name = "SECONDS", default_value_t = 1, value_parser = seconds)]
    pub retry_after: u64,
    /// How long requests in flight may go on after SIGTERM, in seconds. Up to 7 seconds more pass after it: 2 for what is
    /// left to end with an error, 5 for connections to close; with --disk-cache up to 6 more to write what is stored. A
    /// second SIGTERM ends at once.
    #[arg(long, env = "PERILUNE_DRAIN_TIMEOUT", value_name = "SECONDS", default_value_t = 30, value_parser = seconds)]
    pub drain_timeout: u64,
    /// Seconds of silence after which a stream gets a `: ping` comment; 0 for none.
    #[arg(long, env = "PERILUNE_PING_INTERVAL", value_name = "SECONDS", default_value_t = 10, value_parser = seconds)]
    pub ping_interval: u64,
    /// Whose rules requests must keep: `kimi` refuses what Kimi's own API refuses (temperature above 1, another `top_p` than
    /// 0.95, penalties, several choices) and ends every stream with the usage.
    #[arg(long, env = "PERILUNE_API_PROFILE", value_enum, default_value_t = ApiProfile::Open)]
    pub api_profile: ApiProfile,
    /// Send what chat completions say in `reasoning_content` in `reasoning`, too.
    #[arg(long, env = "PERILUNE_REASONING_TWICE")]
    pub reasoning_twice: bool,
    /// Show the figures of `/metrics` once more under the names of vLLM or SGLang.
    #[arg(long, env = "PERILUNE_METRICS_COMPAT", value_enum, value_name = "SERVER")]
    pub metrics_compat: Option<MetricsCompat>,
    /// Write a line for each request to the standard output, once its answer was sent.
    #[arg(long, env = "PERILUNE_ACCESS_LOG", value_enum, value_name = "FORM")]
    pub access_log: Option<LogForm>,
    /// Collector that gets a trace of each request: OTLP over HTTP with JSON, its path included (mostly `/v1/traces`).
    #[arg(long, env = "PERILUNE_OTLP_TRACES_ENDPOINT", value_name = "URL", value_parser = url)]
    pub otlp_traces_endpoint: Option<String>,
    /// A key that requests must bring; several may be given. Without any, everybody may ask.
    #[arg(long, env = "PERILUNE_API_KEY", value_name = "KEY", value_delimiter = ',', hide_env_values = true)]
    pub api_key: Vec<String>,
    /// A file with such keys, one a line.
    #[arg(long, env = "PERILUNE_API_KEY_FILE", value_name = "FILE")]
    pub api_key_file: Option<PathBuf>,
    /// A key that `/flush_cache`, `/abort_request` and `/cache` need; an ordinary one does where there is none.
    #[arg(long, env = "PERILUNE_ADMIN_API_KEY", value_name = "KEY", value_delimiter = ',', hide_env_values = true)]
    pub admin_api_key: Vec<String>,
    /// Answer `/metrics` without a key.
    #[arg(long, env = "PERILUNE_OPEN_METRICS")]
    pub open_metrics: bool,
    /// A file to which every request is appended when it ends, as `simulate-cache --trace` reads them: tokens in the clear.
    #[arg(long, env = "PERILUNE_REQUEST_LOG", value_name = "FILE")]
    pub request_log: Option<PathBuf>,
    /// Certificate chain in PEM, to serve HTTPS; looked at again every few seconds.
    #[arg(long, env = "PERILUNE_TLS_CERT", value_name = "FILE", requires = "tls_key")]
    pub tls_cert: Option<PathBuf>,
    /// Its key in PEM.
    #[arg(long, env = "PERILUNE_TLS_KEY", value_name = "FILE", requires = "tls_cert")]
    pub tls_key: Option<PathBuf>,
    /// A TOML file with these settings, named as the flags are. Flags and the environment win over it.
    #[arg(long, env = "PERILUNE_CONFIG", value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Print the settings as such a file, with where each comes from, and end.
    #[arg(long)]
    pub print_config: bool,
    /// Seconds without a finished step, with work to do, after which `/ready` says 503.
    #[arg(long, env = "PERILUNE_STALL_TIMEOUT", value_name = "SECONDS", default_value_t = 120, value_parser = seconds)]
    pub stall_timeout: u64,
}

/// Flags of `chat`.
#[derive(Debug, Clone, Args)]
pub struct ChatArgs {
    /// Which model, on what; not used with `--url`.
    #[command(flatten)]
    pub model: ModelArgs,
    /// Chat with a server instead, e.g. http://127.0.0.1:8000.
    #[arg(long, env = "PERILUNE_URL", value_parser = url)]
    pub url: Option<String>,
    /// Instructions before the conversation.
    #[arg(long)]
    pub system: Option<String>,
    /// How hard to think: none, minimal, low, medium, high, xhigh or max.
    #[arg(long, value_name = "LEVEL", value_parser = effort)]
    pub effort: Option<String>,
    /// Temperature, 0 to 2; the model's default where absent.
    #[arg(long, value_parser = temperature)]
    pub temperature: Option<f64>,
    /// Most tokens of an answer.
    #[arg(long, value_name = "N", value_parser = positive)]
    pub max_tokens: Option<usize>,
    /// Seed.
    #[arg(long, value_parser = count::<u64>)]
    pub seed: Option<u64>,
}

/// Flags of `inspect`.
#[derive(Debug, Clone, Args)]
pub struct InspectArgs {
    /// A checkpoint's directory, or a bare `config.json`; the shipped demo where absent.
    #[arg(value_name = "PATH")]
    pub path: Option<PathBuf>,
    /// Tokens of a request to account for; the model's limit where absent.
    #[arg(long, value_name = "TOKENS", value_parser = positive)]
    pub context_length: Option<usize>,
    /// List every tensor.
    #[arg(long)]
    pub tensors: bool,
    /// Instead: what the server at this address has stored for later requests.
    #[arg(long, value_name = "URL", value_parser = url, conflicts_with_all = ["path", "context_length", "tensors"])]
    pub cache: Option<String>,
    /// A key for that server, an administrator's where it has such keys.
    #[arg(long, env = "PERILUNE_API_KEY", value_name = "KEY", hide_env_values = true)]
    pub api_key: Option<String>,
}

/// Flags of `simulate-cache`.
#[derive(Debug, Clone, Args)]
pub struct SimulateArgs {
    /// JSON lines: the published Mooncake form, or ours with `tokens`, `output` and `checkpoints`.
    #[arg(long, value_name = "FILE")]
    pub trace: Option<PathBuf>,
    /// Without a file, the kind of trace to make up.
    #[arg(long, value_enum, default_value_t = TraceKind::Chat)]
    pub generate: TraceKind,
    /// Requests to make up.
    #[arg(long, value_name = "N", default_value_t = 4000, value_parser = positive)]
    pub requests: usize,
    /// Seed of what is made up.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = count::<u64>)]
    pub seed: u64,
    /// A `config.json` whose sizes count; K3's where absent.
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Memory for states and latents.
    #[arg(long, value_name = "GIB", default_value_t = 32.0, value_parser = amount)]
    pub memory_gib: f64,
    /// Host memory for what is evicted under the first policy; the second has none.
    #[arg(long, value_name = "GIB", default_value_t = 0.0, value_parser = amount)]
    pub host_gib: f64,
    /// Ranks over which states are split by heads; latents are on all of them.
    #[arg(long, value_name = "RANKS", default_value_t = 8, value_parser = positive)]
    pub split: usize,
    /// Tokens per block.
    #[arg(long, value_name = "TOKENS", default_value_t = 64, value_parser = positive)]
    pub block_size: usize,
    /// Requests that hold memory at once.
    #[arg(long, value_name = "N", default_value_t = 16, value_parser = positive)]
    pub concurrency: usize,
}

/// Flags of `bench`.
#[derive(Debug, Clone, Args)]
pub struct BenchArgs {
    /// Which model, on what.
    #[command(flatten)]
    pub model: ModelArgs,
    /// Sequences decoded together, one measurement each.
    #[arg(long, value_name = "N,…", value_delimiter = ',', default_values_t = [1, 4, 8, 16], value_parser = positive)]
    pub batch: Vec<usize>,
    /// Prompt lengths, one measurement each.
    #[arg(long, value_name = "TOKENS,…", value_delimiter = ',', default_values_t = [128, 512], value_parser = positive)]
    pub prompt: Vec<usize>,
    /// Tokens before the ones that a single sequence decodes, one measurement each.
    #[arg(long, value_name = "TOKENS,…", value_delimiter = ',', default_values_t = [128, 4096], value_parser = positive)]
    pub context: Vec<usize>,
    /// Rows of one sequence in one step, all of them with logits, one measurement each: what verifying drafted tokens costs
    /// before any of them is taken back.
    #[arg(long, value_name = "ROWS,…", value_delimiter = ',', value_parser = positive)]
    pub verify: Vec<usize>,
    /// Print where the time of a step goes, by operation: decode at every batch size, verification and prefill.
    #[arg(long)]
    pub ops: bool,
    /// Tokens decoded per sequence.
    #[arg(long, value_name = "TOKENS", default_value_t = 32, value_parser = positive)]
    pub decode: usize,
    /// Repetitions; medians are printed.
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = positive)]
    pub repeat: usize,
    /// Print JSON instead of a table.
    #[arg(long)]
    pub json: bool,
}

/// Flags of `bench-serve`.
#[derive(Debug, Clone, Args)]
pub struct BenchServeArgs {
    /// The server: any that speaks OpenAI's `/v1/completions`.
    #[arg(long, env = "PERILUNE_URL", default_value = "http://127.0.0.1:8000", value_parser = url)]
    pub url: String,
    /// The model; the first one the server names where absent.
    #[arg(long, value_name = "NAME")]
    pub model_name: Option<String>,
    /// A key for the server.
    #[arg(long, env = "PERILUNE_API_KEY", value_name = "KEY", hide_env_values = true)]
    pub api_key: Option<String>,
    /// Requests to send.
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = positive)]
    pub requests: usize,
    /// Requests per second, at random times around it, whether earlier ones have ended or not; `inf` for all at once.
    #[arg(long, value_name = "PER_SECOND", default_value_t = 4.0, value_parser = rate)]
    pub rate: f64,
    /// Words of each prompt.
    #[arg(long, value_name = "WORDS", default_value_t = 100, value_parser = positive)]
    pub prompt_words: usize,
    /// Tokens of each answer.
    #[arg(long, value_name = "TOKENS", default_value_t = 64, value_parser = positive)]
    pub max_tokens: usize,
    /// Seed of times and prompts.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = count::<u64>)]
    pub seed: u64,
    /// Goal for the time to the first text, for goodput.
    #[arg(long, value_name = "MS", value_parser = amount)]
    pub goal_ttft_ms: Option<f64>,
    /// Goal for the time per token after the first, for goodput.
    #[arg(long, value_name = "MS", value_parser = amount)]
    pub goal_itl_ms: Option<f64>,
    /// Print JSON instead of a table.
    #[arg(long)]
    pub json: bool,
    /// Also write a page with plots.
    #[arg(long, value_name = "FILE")]
    pub html: Option<PathBuf>,
}

/// Flags of `bench-model`.
#[derive(Debug, Clone, Args)]
pub struct BenchModelArgs {
    /// The configuration to follow.
    #[arg(value_name = "CONFIG_JSON")]
    pub config: PathBuf,
    /// Directory to write, made if absent.
    #[arg(value_name = "DIR")]
    pub out: PathBuf,
    /// How routed experts are stored.
    #[arg(long, value_enum, default_value_t = ExpertFormat::Bf16)]
    pub experts: ExpertFormat,
    /// Seed of the weights.
    #[arg(long, default_value_t = 0, value_parser = count::<u64>)]
    pub seed: u64,
}

/// Flags of `convert`.
#[derive(Debug, Clone, Args)]
pub struct ConvertArgs {
    /// The format.
    #[arg(long, value_enum)]
    pub to: ConvertTo,
    /// What matrices are written as; experts that are packed stay so.
    #[arg(long, value_enum, default_value_t = MatrixFormat::F16)]
    pub matrices: MatrixFormat,
    /// What the file says of tokens.
    #[arg(long, value_enum, default_value_t = Vocabulary::None)]
    pub vocabulary: Vocabulary,
    /// The checkpoint.
    #[arg(value_name = "DIR")]
    pub dir: PathBuf,
    /// The file to write.
    #[arg(value_name = "OUT")]
    pub out: PathBuf,
}

#[cfg(test)]
#[path = "cli/tests.rs"]
mod tests;
