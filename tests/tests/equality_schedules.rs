//! Equality laws through the engine: alone ≡ batched ≡ chunked ≡ preempted ≡ continued from a stored prefix ≡ drafted, bit
//! for bit, greedy and seeded, with every log-probability, free and bound by a grammar. Random requests on real models, many of which begin alike, with
//! memory for little more than the longest of them.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // all of it is test code

use std::collections::BTreeSet;

use perilune_engine::{
    CacheConfig, CheckpointRules, Engine, EngineConfig, EngineHandle, EngineStats, GenerateRequest, Prefixes,
    SamplingParams, TokenEvent, TokenStream, Usage,
};
use perilune_tensor::TokenId;
use perilune_tests::{ByHeart, Tiny, ToyGrammar, all_events, demo_engine, demo_room, gated, stopped, tokens};
use proptest::prelude::*;
use proptest::test_runner::RngSeed;

const EOS: TokenId = TokenId(1);

/// Memory of a model for so many blocks and slots.
type Room<'a> = &'a dyn Fn(usize, (usize, usize)) -> CacheConfig;

/// Everything at once, nothing in the way, nothing remembered: one request whole in one step.
fn calm(requests: &[GenerateRequest], room: Room<'_>) -> EngineConfig {
    let context_length = requests.iter().map(length).max().unwrap_or(1);
    EngineConfig {
        max_running_requests: 1,
        max_queued_requests: 64,
        random_seed: None,
        chunked_prefill_size: context_length,
        max_prompt_logit_rows: context_length,
        max_drafts: 0,
        context_length,
        cache: CacheConfig { prefixes: Prefixes::Forget, ..room(16, (context_length.div_ceil(16), 1)) },
        checkpoints: CheckpointRules { interval: 0, least_gap: 1 },
        eos_ids: vec![EOS],
    }
}

fn length(request: &GenerateRequest) -> usize {
    request.prompt.len() + request.params.max_tokens.unwrap_or(0)
}

#[derive(Debug, Clone)]
struct Schedule {
    requests: Vec<GenerateRequest>,
    /// Events after which a caller leaves.
    patience: Vec<Option<usize>>,
    /// Running requests, prefill tokens, scored rows.
    limits: (usize, usize, usize),
    block_size: usize,
    /// Blocks beside those of the longest request, and slots.
    spare: (usize, usize),
    /// Blocks' worth of host memory.
    host_blocks: usize,
    checkpoints: CheckpointRules,
    /// Most drafts per step, and where in a proposal they begin to be wrong; 0 for no draft.
    drafts: (usize, Option<usize>),
}

impl Schedule {
    fn engine(&self, room: Room<'_>) -> EngineConfig {
        let calm = calm(&self.requests, room);
        let blocks = calm.context_length.div_ceil(self.block_size) + self.spare.0;
        let cache = room(self.block_size, (blocks, self.spare.1));
        let host_len = self.host_blocks * cache.arena.block_len;
        EngineConfig {
            max_running_requests: self.limits.0,
            chunked_prefill_size: self.limits.1,
            max_prompt_logit_rows: self.limits.2,
            max_drafts: self.drafts.0,
            cache: CacheConfig { host_len, ..cache },
            checkpoints: self.checkpoints,
            ..calm
        }
    }
}

fn params() -> impl Strategy<Value = SamplingParams> {
    let draw = (prop_oneof![Just(0.0_f32), 0.3_f32..1.8], -1_i64..20, 0.3_f32..=1.0, 0.0_f32..0.2);
    let penalties =
        prop_oneof![2 => Just((1.0_f32, 0.0_f32, 0.0_f32)), 1 => (0.8_f32..1.5, -1.0_f32..1.0, -1.0_f32..1.0)];
    let limits = (0_usize..20, 0_usize..5, any::<bool>());
    let scores = (prop::option::of(0_usize..6), prop::option::weighted(0.4, 0_usize..4));
    let bias = prop::collection::vec(((0_u32..60).prop_map(TokenId), -100.0_f32..5.0), 0..3);
    (draw, penalties, limits, scores, bias, any::<u64>()).prop_map(|(draw, penalties, limits, scores, bias, seed)| {
        SamplingParams {
            temperature: draw.0,
            top_k: draw.1,
            top_p: draw.2,
            min_p: draw.3,
            repetition_penalty: penalties.0,
            presence_penalty: penalties.1,
            frequency_penalty: penalties.2,
            logit_bias: bias,
            seed: Some(seed),
            max_tokens: Some(limits.0),
            min_tokens: limits.1.min(limits.0),
            ignore_eos: limits.2,
            logprobs: scores.0,
            prompt_logprobs: scores.1,
            ..SamplingParams::default()
        }
    })
}

fn schedule() -> impl Strategy<Value = Schedule> {
    let stem = |which: u32| (0..40_u32).map(move |i| TokenId(2 + (i * 7 + which * 13) % 58));
    let own = prop::collection::vec((2_u32..60).prop_map(TokenId), 1..8);
    let prompt = (0_u32..2, 0_usize..32, own)
        .prop_map(move |(which, shared, own)| stem(which).take(shared).chain(own).collect::<Vec<_>>());
    let sharing =
        (prop::option::weighted(0.2, Just("tenant".to_owned())), prop::collection::btree_set(1..36_usize, 0..3));
    let bound = (sharing, prop::bool::weighted(0.3));
    let request = (prompt, params(), prop::option::weighted(0.15, 0_usize..8), bound);
    let limits = (1_usize..6, 1_usize..20, 1_usize..6);
    let pools = (1_usize..9, 0_usize..6, 1_usize..6);
    let rules = (0_usize..60, prop_oneof![Just(0_usize), 4_usize..20], 1_usize..6);
    let drafts = (prop_oneof![Just(0_usize), 1_usize..8], prop::option::of(0_usize..7));
    (prop::collection::vec(request, 1..9), limits, pools, rules, drafts).prop_map(
        |(all, limits, pools, rules, drafts)| {
            let patience = all.iter().map(|(_, _, patience, _)| *patience).collect();
            // With a draft, drawn tokens have the same distribution, not the same values.
            let steady = |params: SamplingParams| match drafts.0 {
                0 => params,
                _ => SamplingParams { temperature: 0.0, ..params },
            };
            let request =
                |(prompt, params, _, ((cache_salt, hints), bound)): (_, _, _, ((_, BTreeSet<usize>), bool))| {
                    GenerateRequest {
                        grammar: bound.then(ToyGrammar::shared),
                        cache_salt,
                        checkpoint_hints: hints.into_iter().collect(),
                        ..GenerateRequest::new(prompt, steady(params))
                    }
                };
            Schedule {
                requests: all.into_iter().map(request).collect(),
                patience,
                limits,
                block_size: pools.0,
                spare: (pools.1, pools.2),
                host_blocks: rules.0,
                checkpoints: CheckpointRules { interval: rules.1, least_gap: rules.2 },
                drafts,
            }
        },
    )
}

/// Each request after the other.
fn alone(engine: &EngineHandle, requests: &[GenerateRequest]) -> Vec<Vec<TokenEvent>> {
    requests.iter().map(|request| results(engine.submit(request.clone()).unwrap())).collect()
}

/// Everything that a stream delivers, but how much of it was remembered or drafted.
fn results(stream: TokenStream) -> Vec<TokenEvent> {
    let mut events = all_events(stream);
    if let Some(TokenEvent::Finished { usage, .. }) = events.last_mut() {
        *usage = Usage { cached_tokens: 0, drafted_tokens: 0, accepted_tokens: 0, ..*usage };
    }
    events
}

/// All requests at once; `None` for those whose caller left. The draft, if there is one, knows the `book`.
fn together(model: &Tiny, schedule: &Schedule, book: Vec<Vec<TokenId>>) -> (Vec<Option<Vec<TokenEvent>>>, EngineStats) {
    // The first step waits until every request is there.
    let config = schedule.engine(&|block_size, units| model.room(block_size, units));
    let (max_drafts, wrong_at) = schedule.drafts;
    let runner = match max_drafts {
        0 => model.runner(&config),
        _ => model.speculating(&config, ByHeart { book, max_drafts, wrong_at, vocab_size: 64 }),
    };
    let (runner, gate) = gated(runner);
    let engine = Engine::start(runner, config).unwrap();
    let streams: Vec<_> = schedule.requests.iter().map(|r| engine.submit(r.clone()).unwrap()).collect();
    drop(gate);
    let read = |(mut stream, patience): (TokenStream, &Option<usize>)| match patience {
        None => Some(results(stream)),
        Some(events) => {
            (0..*events).for_each(|_| drop(stream.blocking_next()));
            None
        }
    };
    let events = streams.into_iter().zip(&schedule.patience).map(read).collect();
    (events, stopped(&engine))
}

fn check(model: &Tiny, schedule: &Schedule) -> EngineStats {
    let config = calm(&schedule.requests, &|block_size, units| model.room(block_size, units));
    let engine = Engine::start(model.runner(&config), config).unwrap();
    let expected = alone(&engine, &schedule.requests);
    assert_eq!(stopped(&engine).preemptions, 0);
    let book =
        |(request, events): (&GenerateRequest, &Vec<TokenEvent>)| [&request.prompt[..], &tokens(events)].concat();
    let book = schedule.requests.iter().zip(&expected).map(book).collect();
    let (found, stats) = together(model, schedule, book);
    for (i, (found, expected)) in found.iter().zip(&expected).enumerate() {
        if let Some(found) = found {
            assert_eq!(found, expected, "request {i}");
        }
    }
    stats
}

fn proptest_config(cases: u32, seed: u64) -> ProptestConfig {
    ProptestConfig { cases, failure_persistence: None, rng_seed: RngSeed::Fixed(seed), ..ProptestConfig::default() }
}

proptest! {
    #![proptest_config(proptest_config(60, 11))]

    #[test]
    fn alone_is_batched_is_chunked_is_preempted_for_k3(schedule in schedule()) {
        check(&Tiny::new("k3"), &schedule);
    }
}

proptest! {
    #![proptest_config(proptest_config(30, 12))]

    #[test]
    fn alone_is_batched_is_chunked_is_preempted_for_kimi_linear(schedule in schedule()) {
        check(&Tiny::new("kl"), &schedule);
    }
}

fn long(prompt_len: usize, seed: u64) -> GenerateRequest {
    let prompt = (0..prompt_len).map(|i| TokenId(2 + (i as u32 * 7 + seed as u32) % 50)).collect();
    let params = SamplingParams {
        temperature: if seed.is_multiple_of(2) { 0.0 } else { 1.0 },
        seed: Some(seed),
        max_tokens: Some(40),
        ignore_eos: true,
        logprobs: Some(2),
        prompt_logprobs: Some(1),
        ..SamplingParams::default()
    };
    GenerateRequest::new(prompt, params)
}

#[test]
fn preempted_requests_give_the_bits_of_undisturbed_ones() {
    let requests: Vec<_> = (0..5).map(|i| long(8 + i as usize, i)).collect();
    let schedule = Schedule {
        patience: vec![None; requests.len()],
        limits: (5, 7, 3),
        block_size: 4,
        spare: (5, 2),
        host_blocks: 0,
        checkpoints: CheckpointRules { interval: 0, least_gap: 4 },
        drafts: (0, None),
        requests,
    };
    let stats = check(&Tiny::new("k3"), &schedule);
    assert!(stats.preemptions > 0, "memory was meant to run out");
}

#[test]
fn the_demo_checkpoint_obeys_the_laws_too() {
    let requests: Vec<_> = (0..4).map(|i| long(20 + 9 * i as usize, i)).collect();
    let undisturbed = demo_engine(&calm(&requests, &demo_room));
    let expected = alone(&undisturbed, &requests);
    let schedule = Schedule {
        patience: vec![None; requests.len()],
        limits: (4, 13, 6),
        block_size: 8,
        spare: (40, 12),
        host_blocks: 40,
        checkpoints: CheckpointRules { interval: 16, least_gap: 4 },
        drafts: (0, None),
        requests,
    };
    let engine = demo_engine(&schedule.engine(&demo_room));
    let streams: Vec<_> = schedule.requests.iter().map(|r| engine.submit(r.clone()).unwrap()).collect();
    assert_eq!(streams.into_iter().map(results).collect::<Vec<_>>(), expected);
    // Again, without scores of the prompt, for which it would have to be computed.
    let unscored = |mut request: GenerateRequest| {
        request.params.prompt_logprobs = None;
        request
    };
    let again = schedule.requests.iter().map(|r| engine.submit(unscored(r.clone())).unwrap());
    for (stream, expected) in again.collect::<Vec<_>>().into_iter().zip(&expected) {
        assert_eq!(results(stream), expected[1..]);
    }
    assert!(stopped(&engine).prefixes.restores > 0, "prefixes were meant to be used");
}
