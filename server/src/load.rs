//! From a directory to a running engine: configuration, tensors, tokenizer, pools.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use perilune_backend::DeviceInfo;
use perilune_config::{GenerationConfig, ModelConfig};
use perilune_engine::{
    CacheConfig, CheckpointRules, DiskTier, Engine, EngineConfig, EngineHandle, ModelRunner, PoolRequest, PoolSizes,
    Prefixes, StateFormat, size_pools,
};
use perilune_model::{Kimi, ModelError};
use perilune_sampling::SamplingError;
use perilune_tensor::{QuantFormat, TokenId};
use perilune_tokenizer::Tokenizer;
use perilune_weights::{Checkpoint, Quantize, SafetensorsDir, check_finite};

use crate::app::{Served, TextSide};
use crate::backend::{BackendKind, DeviceOptions, Measured, WithBackend};
use crate::cli::ModelArgs;
use crate::disk_cache::{self, Computed, DiskCache};
use crate::drafting::{DraftOptions, OpenedDraft};
use crate::error::ServerError;
use crate::model_dir::default_model;
use crate::progress::{LoadProgress, Show};
use crate::sampling::check_defaults;

/// Context where neither the operator nor the checkpoint says.
const DEFAULT_CONTEXT: usize = 32_768;
/// Prompt positions scored in one step: their logits are the largest activations there are.
const MAX_PROMPT_LOGIT_ROWS: usize = 64;

/// What to load, and how.
#[derive(Debug, Clone, PartialEq)]
pub struct LoadOptions {
    /// The checkpoint.
    pub dir: PathBuf,
    /// The device.
    pub backend: BackendKind,
    /// Threads that compute; `None` for all cores.
    pub threads: Option<usize>,
    /// Folder of a GPU's kernels.
    pub kernels: Option<PathBuf>,
    /// Most tokens of prompt and answer together; `None` for the model's own limit as far as memory allows.
    pub context_length: Option<usize>,
    /// Fraction of the device's memory to use, weights and caches together.
    pub mem_fraction: f64,
    /// Most prompt tokens of a step.
    pub chunked_prefill_size: usize,
    /// Most sequences of a step.
    pub max_running_requests: usize,
    /// Most requests that wait.
    pub max_queued_requests: usize,
    /// Where the seeds of requests without one come from; the system's randomness where absent.
    pub random_seed: Option<u64>,
    /// Tokens per block of the latent cache.
    pub block_size: usize,
    /// Whether prefixes are kept for later requests.
    pub prefixes: Prefixes,
    /// Host memory for what no longer fits on the device, in bytes; `None` for what suits the device.
    pub host_cache_bytes: Option<usize>,
    /// What states become once they have left the device.
    pub state_format: StateFormat,
    /// Files for what no longer fits in memory.
    pub disk_cache: Option<DiskCache>,
    /// Tokens after which a state is saved besides the places that the requests suggest; `None` for as many as make one
    /// worth its memory, 0 for never.
    pub checkpoint_interval: Option<usize>,
    /// What drafts tokens ahead.
    pub drafts: DraftOptions,
    /// What matrices are rounded to; `None` to take them as they are stored.
    pub quantize: Option<Quantize>,
    /// Whether every weight is read once and checked.
    pub weight_check: WeightCheck,
    /// Load no tokenizer.
    pub token_ids_only: bool,
}

/// Whether weights are checked to be finite.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WeightCheck {
    /// Every value.
    Full,
    /// Shapes only.
    Off,
}

impl LoadOptions {
    /// The options that flags ask for.
    ///
    /// # Errors
    /// `Flag` where no model is named and the demo is not here.
    pub fn from_args(args: &ModelArgs) -> Result<Self, ServerError> {
        let dir = match &args.model {
            Some(dir) => dir.clone(),
            None => default_model()?,
        };
        Ok(LoadOptions {
            dir,
            backend: args.backend,
            threads: args.threads,
            kernels: args.kernels.clone(),
            context_length: args.context_length,
            mem_fraction: args.mem_fraction,
            chunked_prefill_size: args.chunked_prefill_size,
            max_running_requests: args.max_running_requests,
            max_queued_requests: args.max_queued_requests,
            random_seed: args.random_seed,
            block_size: args.block_size,
            prefixes: if args.disable_prefix_cache { Prefixes::Forget } else { Prefixes::Keep },
            host_cache_bytes: args.host_cache_mib.map(|mib| mib << 20),
            state_format: args.cache_state_dtype.into(),
            disk_cache: DiskCache::from_args(args)?,
            checkpoint_interval: args.checkpoint_interval,
            drafts: DraftOptions::from_args(args)?,
            quantize: args.quantize.map(Quantize::from),
            weight_check: if args.skip_weight_check { WeightCheck::Off } else { WeightCheck::Full },
            token_ids_only: false,
        })
    }
}

impl LoadOptions {
    /// What they say of the device.
    pub fn device(&self) -> DeviceOptions<'_> {
        DeviceOptions { threads: self.threads, kernels: self.kernels.as_deref(), model: Some(&self.dir) }
    }
}

/// Loads a checkpoint and starts its engine.
///
/// # Errors
/// What is wrong with configuration, tensors, tokenizer or memory, in a sentence.
pub fn load(options: &LoadOptions, show: Show) -> Result<Served, ServerError> {
    let config = ModelConfig::from_dir(&options.dir)?;
    let defaults = defaults(&options.dir, &config)?;
    let text = if options.token_ids_only { None } else { Some(text_side(options, &config)?) };
    let eos_ids = eos_ids(&config, &defaults, text.as_ref());
    for doubt in doubts(text.as_ref(), &eos_ids) {
        tracing::warn!("{doubt}");
    }
    let work = LoadModel { options, config: &config, eos_ids, show };
    let engine = options.backend.with(options.device(), work)?;
    let context_length = engine.context_length();
    Ok(Served { engine, text, defaults, context_length })
}

fn text_side(options: &LoadOptions, config: &ModelConfig) -> Result<TextSide, ServerError> {
    let tokenizer = Arc::new(Tokenizer::from_dir(&options.dir)?);
    if tokenizer.vocab_size() > config.vocab_size {
        return Err(ServerError::Flag {
            flag: "--model",
            value: options.dir.display().to_string(),
            rule: format!(
                "its tokenizer has {} tokens, but the model has rows for {}",
                tokenizer.vocab_size(),
                config.vocab_size
            ),
        });
    }
    Ok(TextSide::new(tokenizer))
}

/// What the checkpoint asks for where a request says nothing, every value in its range.
fn defaults(dir: &Path, config: &ModelConfig) -> Result<GenerationConfig, ServerError> {
    let defaults = GenerationConfig::from_dir(dir)?;
    let refused = |error| ServerError::Default { path: dir.join("generation_config.json"), error };
    check_defaults(&defaults, config.vocab_size).map_err(refused)?;
    match defaults.eos.iter().find(|id| id.index() >= config.vocab_size) {
        Some(id) => Err(refused(SamplingError {
            field: "eos_token_id",
            value: id.to_string(),
            rule: format!("must be below the vocabulary size, {}", config.vocab_size),
        })),
        None => Ok(defaults),
    }
}

/// What the operator should know of a checkpoint that can be served all the same.
fn doubts(text: Option<&TextSide>, eos_ids: &[TokenId]) -> Vec<String> {
    let mut doubts = Vec::new();
    if let Some(Err(reason)) = text.map(|text| &text.chat) {
        doubts.push(format!("chat completions will be refused: {reason} (see tokenizer_config.json)"));
    }
    if eos_ids.is_empty() {
        doubts.push("no file of the checkpoint names a token that ends an answer: only limits will end one".to_owned());
    }
    doubts
}

/// Whatever any of the three files calls an end.
fn eos_ids(config: &ModelConfig, generation: &GenerationConfig, text: Option<&TextSide>) -> Vec<TokenId> {
    let mut ids = config.eos_tokens.clone();
    ids.extend_from_slice(&generation.eos);
    ids.extend(text.into_iter().flat_map(|text| text.tokenizer.stop_ids().iter().copied()));
    ids.sort_unstable();
    ids.dedup();
    ids
}

struct LoadModel<'a> {
    options: &'a LoadOptions,
    config: &'a ModelConfig,
    eos_ids: Vec<TokenId>,
    show: Show,
}

impl WithBackend for LoadModel<'_> {
    type Output = EngineHandle;

    fn run<B: Measured>(self, backend: B) -> Result<EngineHandle, ServerError> {
        let source = SafetensorsDir::open(&self.options.dir)?;
        let checkpoint = open_checkpoint(&source, self.config, (self.options.quantize, backend.info()))?;
        let draft = self.options.drafts.open(self.config)?;
        let memory = (backend.info().memory_bytes, checkpoint.size_bytes());
        let engine_config = self.engine_config(memory, &draft)?;
        // Before the weights: whoever named a directory that cannot be used is to know soon.
        let disk = self.disk_tier((&source, &backend.info().name), &engine_config)?;
        let mut progress = LoadProgress::new(self.show);
        if self.options.weight_check == WeightCheck::Full {
            check_finite(&checkpoint, &mut |report| progress.report(report))?;
        }
        let model = Kimi::load(&backend, self.config, &checkpoint, &mut |report| progress.report(report));
        progress.finish();
        let model = model.map_err(server_error)?;
        tracing::info!(
            device = backend.info().name,
            context_length = engine_config.effective_context(),
            max_running_requests = engine_config.max_running_requests,
            cache_mib = (engine_config.cache.arena.len * 4) >> 20,
            host_cache_mib = (engine_config.cache.host_len * 4) >> 20,
            "loaded"
        );
        let check = self.options.weight_check;
        let speculation = draft.load(&backend, (self.config, &engine_config), check)?;
        let runner = ModelRunner::with_speculation((backend, model), &engine_config, speculation)?;
        let runner = runner.with_state_format(self.options.state_format)?;
        Ok(match disk {
            Some(disk) => Engine::start_with_disk(runner, engine_config, disk)?,
            None => Engine::start(runner, engine_config)?,
        })
    }
}

impl LoadModel<'_> {
    fn disk_tier(
        &self,
        (source, device): (&SafetensorsDir, &str),
        engine: &EngineConfig,
    ) -> Result<Option<DiskTier>, ServerError> {
        let Some(disk) = &self.options.disk_cache else { return Ok(None) };
        if self.options.prefixes == Prefixes::Forget {
            let (flag, value) = ("--disk-cache", disk.dir.display().to_string());
            return Err(ServerError::Flag {
                flag,
                value,
                rule: "--disable-prefix-cache leaves nothing to keep".into(),
            });
        }
        let computed = Computed { options: self.options, config: self.config, source, device, cache: &engine.cache };
        disk_cache::open(disk, &computed).map(Some)
    }

    /// Pools in what the weights leave of the memory.
    fn engine_config(
        &self,
        (memory_bytes, weights_bytes): (usize, u64),
        draft: &OpenedDraft<'_>,
    ) -> Result<EngineConfig, ServerError> {
        let options = self.options;
        let allowed = (memory_bytes as f64 * options.mem_fraction) as usize;
        let budget_bytes = allowed.saturating_sub(usize::try_from(weights_bytes).unwrap_or(usize::MAX));
        let request = |context_length| PoolRequest {
            model: self.config,
            budget_bytes,
            wanted_bytes: options.backend.wanted_cache_bytes(memory_bytes),
            block_size: options.block_size,
            draft_len: draft.context_len(),
            context_length,
            max_running_requests: options.max_running_requests,
        };
        let (context_length, sizes) = self.fit(request)?;
        Ok(EngineConfig {
            max_running_requests: options.max_running_requests,
            max_queued_requests: options.max_queued_requests,
            chunked_prefill_size: options.chunked_prefill_size,
            max_prompt_logit_rows: MAX_PROMPT_LOGIT_ROWS,
            max_drafts: draft.max_drafts(),
            context_length,
            cache: CacheConfig {
                arena: sizes.arena,
                block_size: options.block_size,
                prefixes: options.prefixes,
                host_len: options.host_cache_bytes.unwrap_or_else(|| options.backend.default_host_cache_bytes()) / 4,
            },
            checkpoints: CheckpointRules {
                interval: options.checkpoint_interval.unwrap_or_else(|| worthwhile(&sizes, options.block_size)),
                least_gap: options.block_size,
            },
            eos_ids: self.eos_ids.clone(),
            random_seed: options.random_seed,
        })
    }

    /// The context asked for; or the model's own limit, halved until it fits.
    fn fit<'r>(&self, request: impl Fn(usize) -> PoolRequest<'r>) -> Result<(usize, PoolSizes), ServerError> {
        let own = self.config.max_positions.unwrap_or(DEFAULT_CONTEXT);
        if let Some(asked) = self.options.context_length {
            if asked > own {
                tracing::warn!(asked, own, "--context-length is longer than the model was made for");
            }
            return Ok((asked, size_pools(request(asked))?));
        }
        let mut context = own;
        loop {
            match size_pools(request(context)) {
                Ok(sizes) => return Ok((context, sizes)),
                Err(_) if context > self.options.block_size => context /= 2,
                Err(error) => return Err(error.into()),
            }
        }
    }
}

/// The model's tensors, to be rounded as they are loaded where that was asked for and makes sense.
///
/// # Errors
/// What is wrong with them; `Flag` where the device takes no whole numbers or the model has nothing to round.
pub(crate) fn open_checkpoint<'s>(
    source: &'s SafetensorsDir,
    config: &ModelConfig,
    (quantize, device): (Option<Quantize>, &DeviceInfo),
) -> Result<Checkpoint<'s>, ServerError> {
    let checkpoint = Checkpoint::open(source, config)?;
    let Some(quantize) = quantize else { return Ok(checkpoint) };
    let refuse =
        |rule: String| ServerError::Flag { flag: "--quantize", value: format!("{quantize:?}").to_lowercase(), rule };
    if ![QuantFormat::Int8, QuantFormat::Int4].iter().all(|format| device.formats.contains(format)) {
        return Err(refuse(format!("{} does not multiply whole numbers", device.name)));
    }
    let (checkpoint, count) = checkpoint.quantized(quantize);
    if count == 0 {
        let rule = "no matrix of this checkpoint can be rounded: they are packed already or too small";
        return Err(refuse(rule.to_owned()));
    }
    Ok(checkpoint)
}

/// Tokens whose latents take as much memory as a state: computing fewer again costs less than keeping one.
fn worthwhile(sizes: &PoolSizes, block_size: usize) -> usize {
    sizes.arena.slot_len.div_ceil(sizes.arena.block_len).max(1) * block_size
}

/// The causes a loading model can fail with.
pub(crate) fn server_error(error: ModelError) -> ServerError {
    match error {
        ModelError::Weights(error) => error.into(),
        ModelError::Backend(error) => error.into(),
        other => ServerError::Answer(other.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_checkpoint_that_cannot_chat_or_end_is_doubted() {
        let config = perilune_tokenizer::Vocabulary::parse(&std::fs::read(demo().join("tiktoken.model")).unwrap());
        let bare = Tokenizer::from_parts(config.unwrap(), Default::default(), &[]).unwrap();
        let doubts_of_bare = doubts(Some(&TextSide::new(Arc::new(bare))), &[]);
        assert_eq!(doubts_of_bare.len(), 2);
        assert!(doubts_of_bare[0].contains("tokenizer_config.json"), "{doubts_of_bare:?}");
        let whole = TextSide::new(Arc::new(Tokenizer::from_dir(&demo()).unwrap()));
        assert!(doubts(Some(&whole), &[TokenId(1)]).is_empty());
    }

    fn demo() -> PathBuf {
        default_model().unwrap()
    }
}
