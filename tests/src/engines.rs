//! Engines on small models, and what their streams delivered.

use std::path::Path;

use perilune_backend::Backend;
use perilune_config::{DraftConfig, ModelConfig};
use perilune_cpu::{CpuBackend, CpuOptions, Pinning};
use perilune_engine::{
    ArenaShape, CacheConfig, EngineConfig, EngineHandle, EngineState, EngineStats, FinishReason, ModelRunner, Prefixes,
    Speculation, TokenEvent, TokenStream,
};
use perilune_model::{CacheShape, Kimi};
use perilune_speculate::{Draft, DraftLengths, DraftLimits, DraftSource, DsparkDraft};
use perilune_tensor::{HostTensor, TokenId};
use perilune_weights::{Checkpoint, MemorySource, SafetensorsDir, WeightSource};
use serde_json::Value;

use crate::{data_dir, demo_dir, tiny_checkpoint};

/// A tiny model that can be loaded again and again.
pub struct Tiny {
    config: ModelConfig,
    source: MemorySource,
}

impl Tiny {
    /// The model `tag` (`k3` or `kl`) of `kimi-k3.md` section 9: 64 tokens.
    pub fn new(tag: &str) -> Tiny {
        let text = std::fs::read_to_string(data_dir().join("vectors.json")).unwrap();
        let all: Value = serde_json::from_str(&text).unwrap();
        let config = ModelConfig::from_json_str(&all[tag]["config"].to_string()).unwrap();
        Tiny { source: tiny_checkpoint(&config, tag), config }
    }

    /// The same model, but the embedding of one token is not a number, and so is everything that follows from it.
    pub fn with_poison(mut self, token: TokenId) -> Tiny {
        let name = "model.embed_tokens.weight";
        let table = self.source.get(name).unwrap();
        let width = self.config.hidden_size;
        let mut values = table.to_f32();
        values[token.index() * width..(token.index() + 1) * width].fill(f32::NAN);
        let bytes = values.iter().flat_map(|v| half::bf16::from_f32(*v).to_le_bytes()).collect();
        let table = HostTensor::from_vec(table.spec().clone(), bytes).expect("the table is bf16");
        self.source.insert(name, table);
        self
    }

    /// Memory of this model for so many blocks and slots at once.
    pub fn room(&self, block_size: usize, units: (usize, usize)) -> CacheConfig {
        room_of(&self.config, (block_size, 0), units)
    }

    /// A runner with memory for `engine`.
    pub fn runner(&self, engine: &EngineConfig) -> ModelRunner<CpuBackend> {
        runner((&self.config, &self.source), engine, None)
    }

    /// The same with a draft that is always used as far as the engine's configuration allows.
    pub fn speculating(
        &self,
        engine: &EngineConfig,
        draft: impl Draft<CpuBackend> + 'static,
    ) -> ModelRunner<CpuBackend> {
        runner((&self.config, &self.source), engine, Some(Speculation::new(Box::new(draft), DraftLengths::Fixed)))
    }

    /// A runner on any backend, without a draft.
    pub fn runner_on<B: Backend>(&self, backend: B, engine: &EngineConfig) -> ModelRunner<B> {
        runner_on(backend, (&self.config, &self.source), engine, None)
    }
}

/// Memory of the demo for so many blocks and slots at once.
pub fn demo_room(block_size: usize, units: (usize, usize)) -> CacheConfig {
    room_of(&ModelConfig::from_dir(&demo_dir()).unwrap(), (block_size, 0), units)
}

fn room_of(
    config: &ModelConfig,
    (block_size, draft_len): (usize, usize),
    (blocks, slots): (usize, usize),
) -> CacheConfig {
    let CacheShape { block_len, slot_len, .. } = CacheShape::with_draft(config, (block_size, draft_len), 0);
    let arena = ArenaShape { len: blocks * block_len + slots * slot_len, block_len, slot_len };
    CacheConfig { arena, block_size, prefixes: Prefixes::Keep, host_len: 0 }
}

/// The shipped demo checkpoint with its shipped draft.
pub struct DemoDraft {
    target: ModelConfig,
    draft: DraftConfig,
}

impl DemoDraft {
    /// Reads their configurations.
    pub fn load() -> DemoDraft {
        let draft = DraftConfig::from_dir(&demo_dir().with_file_name("demo-dspark")).unwrap();
        DemoDraft { target: ModelConfig::from_dir(&demo_dir()).unwrap(), draft }
    }

    /// Memory for so many blocks and slots at once, with what the draft keeps.
    pub fn room(&self, block_size: usize, units: (usize, usize)) -> CacheConfig {
        room_of(&self.target, (block_size, self.draft.context_len()), units)
    }

    /// A runner that drafts as far as the engine's configuration allows.
    pub fn runner(&self, engine: &EngineConfig) -> ModelRunner<CpuBackend> {
        let source = SafetensorsDir::open(&demo_dir().with_file_name("demo-dspark")).unwrap();
        let checkpoint = Checkpoint::open_draft(&source, &self.draft).unwrap();
        let limits = DraftLimits {
            max_rows: engine.max_step_rows(),
            max_sequences: engine.max_running_requests,
            max_blocks: engine.max_running_requests * engine.context_length.div_ceil(engine.cache.block_size),
        };
        let source = DraftSource { config: &self.draft, checkpoint: &checkpoint, target: &self.target };
        let backend = CpuBackend::new(CpuOptions { threads: Some(1), ..CpuOptions::default() }).unwrap();
        let draft = DsparkDraft::load(&backend, source, limits).unwrap();
        let target = SafetensorsDir::open(Path::new(&demo_dir())).unwrap();
        let speculation = Speculation::new(Box::new(draft), DraftLengths::Fixed);
        runner((&self.target, &target), engine, Some(speculation))
    }
}

/// An engine on the shipped demo checkpoint.
pub fn demo_engine(engine: &EngineConfig) -> EngineHandle {
    perilune_engine::Engine::start(demo_runner(engine), engine.clone()).unwrap()
}

/// A runner of the demo with memory for `engine`.
pub fn demo_runner(engine: &EngineConfig) -> ModelRunner<CpuBackend> {
    let config = ModelConfig::from_dir(&demo_dir()).unwrap();
    let source = SafetensorsDir::open(Path::new(&demo_dir())).unwrap();
    runner((&config, &source), engine, None)
}

fn runner(
    (config, source): (&ModelConfig, &dyn WeightSource),
    engine: &EngineConfig,
    speculation: Option<Speculation<CpuBackend>>,
) -> ModelRunner<CpuBackend> {
    let options = CpuOptions { threads: Some(2), pinning: Pinning::Off, ..CpuOptions::default() };
    runner_on(CpuBackend::new(options).unwrap(), (config, source), engine, speculation)
}

fn runner_on<B: Backend>(
    backend: B,
    (config, source): (&ModelConfig, &dyn WeightSource),
    engine: &EngineConfig,
    speculation: Option<Speculation<B>>,
) -> ModelRunner<B> {
    let checkpoint = Checkpoint::open(source, config).unwrap();
    let model = Kimi::load(&backend, config, &checkpoint, &mut |_| {}).unwrap();
    ModelRunner::with_speculation((backend, model), engine, speculation).unwrap()
}

/// Everything a stream delivers. Checks that it ends once and that nothing follows.
pub fn all_events(mut stream: TokenStream) -> Vec<TokenEvent> {
    let events: Vec<TokenEvent> = std::iter::from_fn(|| stream.blocking_next()).collect();
    let ends = events.iter().filter(|event| event.is_last()).count();
    assert!(ends == 1 && events.last().unwrap().is_last(), "one end, and it comes last: {events:?}");
    let prompts = events.iter().filter(|event| matches!(event, TokenEvent::PromptLogprobs(_))).count();
    let first = matches!(events.first(), Some(TokenEvent::PromptLogprobs(_)));
    assert_eq!(prompts, usize::from(first), "prompt log-probabilities come once and first");
    events
}

/// The tokens among some events.
pub fn tokens(events: &[TokenEvent]) -> Vec<TokenId> {
    let token = |event: &TokenEvent| if let TokenEvent::Token { id, .. } = event { Some(*id) } else { None };
    events.iter().filter_map(token).collect()
}

/// Ends an engine once everybody is served; nobody may hold anything then: what is not free is stored.
pub fn stopped(engine: &EngineHandle) -> EngineStats {
    engine.drain();
    assert_eq!(engine.join(), EngineState::Stopped);
    let stats = engine.stats();
    assert_eq!((stats.running, stats.waiting, stats.usage.blocks_used, stats.usage.slots_used), (0, 0, 0, 0));
    stats
}

/// Why the stream ended; `None` where it failed.
pub fn finish(events: &[TokenEvent]) -> Option<FinishReason> {
    match events.last() {
        Some(TokenEvent::Finished { reason, .. }) => Some(*reason),
        _ => None,
    }
}
