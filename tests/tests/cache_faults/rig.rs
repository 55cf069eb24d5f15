//! An engine whose stored prefixes can be pushed out of device memory at any time, with a draft or without, beside one
//! that remembers nothing, drafts nothing and computes every prompt whole.

use std::collections::HashMap;
use std::sync::{LazyLock, Mutex};
use std::time::Duration;

use perilune_engine::{
    CacheConfig, CheckpointRules, DiskConfig, DiskPatience, DiskStore, DiskTier, Engine, EngineConfig, EngineHandle,
    EngineStats, GenerateRequest, Identity, Prefixes, TokenEvent, Usage,
};
use perilune_speculate::{NgramDraft, NgramOptions};
use perilune_tensor::TokenId;
use perilune_tests::{ByHeart, Tiny, all_events, drawn_request, text, tokens};
use tempfile::TempDir;

/// Its embedding is not a number.
pub const POISON: TokenId = TokenId(63);
const MAX_DRAFTS: usize = 5;

static PLAIN: LazyLock<Tiny> = LazyLock::new(|| Tiny::new("k3"));
static POISONED: LazyLock<Tiny> = LazyLock::new(|| Tiny::new("k3").with_poison(POISON));

/// Where stored prefixes are when they are wanted again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Tier {
    Device,
    Host,
    /// With an engine that is gone in between.
    Disk,
}

/// What drafts tokens ahead.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Drafts {
    Off,
    /// Knows what is right, and is wrong from that place of a proposal on.
    Known(Option<usize>),
    /// Prompt lookup.
    Lookup,
}

/// Every place of prefixes with every kind of draft.
pub fn combinations() -> impl Iterator<Item = (Tier, Drafts)> {
    let drafts = [Drafts::Off, Drafts::Known(None), Drafts::Known(Some(2)), Drafts::Lookup];
    [Tier::Device, Tier::Host, Tier::Disk].into_iter().flat_map(move |tier| drafts.map(|drafts| (tier, drafts)))
}

/// Sizes and rules of an engine.
#[derive(Debug, Clone, Copy)]
pub struct Rules {
    pub block_size: usize,
    /// Blocks and slots that the arena has room for at once.
    pub units: (usize, usize),
    pub chunk: usize,
    pub checkpoints: CheckpointRules,
}

impl Rules {
    /// Room for a handful of prompts of some hundred tokens.
    pub fn of(block_size: usize) -> Rules {
        let checkpoints = CheckpointRules { interval: 0, least_gap: block_size };
        Rules { block_size, units: (1600 / block_size, 12), chunk: 48, checkpoints }
    }
}

/// A request and what must come of it.
pub struct Case {
    pub request: GenerateRequest,
    pub expected: Vec<TokenEvent>,
}

/// Drawn without drafts, greedy with them.
pub fn request(prompt: &[TokenId], max_tokens: usize, drafts: Drafts) -> GenerateRequest {
    let mut request = drawn_request(prompt, max_tokens);
    request.params.logit_bias = vec![(POISON, -100.0)];
    request.params.temperature = if drafts == Drafts::Off { 1.0 } else { 0.0 };
    request
}

/// Prompt, most tokens of the answer, whether they are drawn.
type Asked = (Vec<TokenId>, usize, bool);

/// Requests with what the engine that remembers nothing makes of them.
pub fn cases(prompts: impl IntoIterator<Item = (Vec<TokenId>, usize)>, drafts: Drafts) -> Vec<Case> {
    static COLD: LazyLock<EngineHandle> = LazyLock::new(|| {
        let cache = CacheConfig { prefixes: Prefixes::Forget, ..PLAIN.room(64, (130, 4)) };
        let config = EngineConfig { chunked_prefill_size: 8192, max_drafts: 0, ..engine_config(cache, Rules::of(64)) };
        Engine::start(PLAIN.runner(&config), config).unwrap()
    });
    // The same requests come for every tier, and for every draft.
    static KNOWN: LazyLock<Mutex<HashMap<Asked, Vec<TokenEvent>>>> = LazyLock::new(Mutex::default);
    let case = |(prompt, max_tokens): (Vec<TokenId>, usize)| {
        let request = request(&prompt, max_tokens, drafts);
        let key = (prompt, max_tokens, drafts == Drafts::Off);
        let known = KNOWN.lock().unwrap().get(&key).cloned();
        let expected = known.unwrap_or_else(|| comparable(all_events(COLD.submit(request.clone()).unwrap())));
        KNOWN.lock().unwrap().insert(key, expected.clone());
        Case { request, expected }
    };
    prompts.into_iter().map(case).collect()
}

/// But for how much was remembered or drafted.
pub fn comparable(mut events: Vec<TokenEvent>) -> Vec<TokenEvent> {
    if let Some(TokenEvent::Finished { usage, .. }) = events.last_mut() {
        *usage = Usage { cached_tokens: 0, drafted_tokens: 0, accepted_tokens: 0, ..*usage };
    }
    events
}

/// What a stream said of itself at its end.
pub fn usage(events: &[TokenEvent]) -> Usage {
    match events.last() {
        Some(TokenEvent::Finished { usage, .. }) => *usage,
        other => panic!("{other:?}"),
    }
}

fn engine_config(cache: CacheConfig, rules: Rules) -> EngineConfig {
    EngineConfig {
        max_running_requests: 8,
        max_queued_requests: 2000,
        random_seed: None,
        chunked_prefill_size: rules.chunk,
        max_prompt_logit_rows: 64,
        max_drafts: MAX_DRAFTS,
        context_length: 8192,
        cache,
        checkpoints: rules.checkpoints,
        eos_ids: vec![],
    }
}

/// An engine under test.
pub struct Rig {
    pub tier: Tier,
    pub drafts: Drafts,
    rules: Rules,
    model: &'static Tiny,
    book: Vec<Vec<TokenId>>,
    dir: Option<TempDir>,
    engine: Option<EngineHandle>,
    fillers: u32,
}

impl Rig {
    /// One whose draft knows the right answers of some cases.
    pub fn new((tier, drafts): (Tier, Drafts), rules: Rules, cases: &[Case]) -> Rig {
        Self::on(&PLAIN, (tier, drafts), rules, cases)
    }

    /// The same on the model that can be made to compute what is not a number.
    pub fn poisoned((tier, drafts): (Tier, Drafts), rules: Rules, cases: &[Case]) -> Rig {
        Self::on(&POISONED, (tier, drafts), rules, cases)
    }

    fn on(model: &'static Tiny, (tier, drafts): (Tier, Drafts), rules: Rules, cases: &[Case]) -> Rig {
        let known = |case: &Case| [&case.request.prompt[..], &tokens(&case.expected)].concat();
        let book = cases.iter().map(known).collect();
        let dir = (tier == Tier::Disk).then(|| tempfile::tempdir().unwrap());
        let mut rig = Rig { tier, drafts, rules, model, book, dir, engine: None, fillers: 0 };
        rig.start();
        rig
    }

    pub fn engine(&self) -> &EngineHandle {
        self.engine.as_ref().unwrap()
    }

    fn config(&self) -> EngineConfig {
        let cache = self.model.room(self.rules.block_size, self.rules.units);
        let host_len = if self.tier == Tier::Host { 100 * cache.arena.len } else { 0 };
        let config = engine_config(CacheConfig { host_len, ..cache }, self.rules);
        EngineConfig { max_drafts: if self.drafts == Drafts::Off { 0 } else { MAX_DRAFTS }, ..config }
    }

    fn start(&mut self) {
        let config = self.config();
        let by_heart = |wrong_at| ByHeart { book: self.book.clone(), max_drafts: MAX_DRAFTS, wrong_at, vocab_size: 64 };
        let runner = match self.drafts {
            Drafts::Off => self.model.runner(&config),
            Drafts::Known(wrong_at) => self.model.speculating(&config, by_heart(wrong_at)),
            Drafts::Lookup => self.model.speculating(&config, NgramDraft::new(NgramOptions::default())),
        };
        self.engine = Some(match &self.dir {
            None => Engine::start(runner, config).unwrap(),
            Some(dir) => {
                let (store, found) = DiskStore::open(dir.path(), Identity([3; 32])).unwrap();
                let sizes = DiskConfig { len: 100 << 20, queue_len: 100 << 20 };
                // Machines that run tests may be slow.
                let patience = DiskPatience { read: Duration::from_secs(60), save: Duration::from_secs(60) };
                let tier = DiskTier { store, found, config: sizes, patience };
                Engine::start_with_disk(runner, config, tier).unwrap()
            }
        });
    }

    /// Runs a case; how many tokens of its prompt were not computed.
    pub fn check(&self, case: &Case, what: &str) -> usize {
        let events = all_events(self.engine().submit(case.request.clone()).unwrap());
        let cached = usage(&events).cached_tokens;
        let (tier, drafts) = (self.tier, self.drafts);
        assert_eq!(comparable(events), case.expected, "{what}, {tier:?}, {drafts:?}, {cached} tokens stored");
        cached
    }

    /// What is stored leaves the device, where there is a place for it: a request that needs all memory comes, or the
    /// process ends and another one begins.
    pub fn push_out(&mut self) {
        match self.tier {
            Tier::Device => {}
            Tier::Host => {
                let prompt = text(1000 + self.fillers, self.config().cache.capacity_tokens() - 1);
                self.fillers += 1;
                let filler = GenerateRequest { cache_salt: Some("filler".into()), ..request(&prompt, 1, Drafts::Off) };
                all_events(self.engine().submit(filler).unwrap());
                assert!(self.engine().stats().usage.host_used > 0, "nothing left the device");
            }
            Tier::Disk => {
                self.stop();
                self.start();
            }
        }
    }

    /// Lengths of a block and a slot.
    pub fn unit_lens(&self) -> (usize, usize) {
        let arena = self.config().cache.arena;
        (arena.block_len, arena.slot_len)
    }

    /// Whether anything came back from where it was pushed.
    pub fn came_back(&self) -> bool {
        let stats = self.engine().stats().prefixes;
        match self.tier {
            Tier::Device => stats.restores > 0,
            Tier::Host => stats.promoted_blocks > 0,
            Tier::Disk => stats.disk_restores > 0 && stats.disk_losses == 0,
        }
    }

    /// Ends the engine; nobody may hold anything.
    pub fn stop(&mut self) -> EngineStats {
        perilune_tests::stopped(&self.engine.take().unwrap())
    }
}
