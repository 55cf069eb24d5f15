//! Requests that go on from stored prefixes against the same requests alone, cold, whole: equal to the last bit, and
//! counted exactly. Each case is one that other engines got wrong.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // all of it is test code

use std::sync::LazyLock;
use std::time::{Duration, Instant};

use perilune_engine::{
    CacheConfig, CheckpointRules, Engine, EngineConfig, EngineHandle, GenerateRequest, Prefixes, TokenEvent,
};
use perilune_tensor::TokenId;
use perilune_tests::{HashRunner, Tiny, all_events, demo_engine, demo_room, drawn_request, gated, room, text};

/// Draws from it are never asked for, and its embedding is not a number.
const POISON: TokenId = TokenId(63);

static MODEL: LazyLock<Tiny> = LazyLock::new(|| Tiny::new("k3"));

fn config(block_size: usize, units: (usize, usize)) -> EngineConfig {
    EngineConfig {
        max_running_requests: 8,
        max_queued_requests: 2000,
        random_seed: None,
        chunked_prefill_size: 256,
        max_prompt_logit_rows: 64,
        max_drafts: 0,
        context_length: 8192,
        cache: MODEL.room(block_size, units),
        checkpoints: CheckpointRules { interval: 0, least_gap: block_size },
        eos_ids: vec![],
    }
}

/// An engine that remembers nothing.
fn cold() -> EngineHandle {
    let config = config(64, (200, 4));
    let cache = CacheConfig { prefixes: Prefixes::Forget, ..config.cache };
    let config = EngineConfig { cache, ..config };
    Engine::start(MODEL.runner(&config), config).unwrap()
}

fn engine(config: EngineConfig) -> EngineHandle {
    Engine::start(MODEL.runner(&config), config).unwrap()
}

fn request(prompt: &[TokenId], max_tokens: usize) -> GenerateRequest {
    let mut request = drawn_request(prompt, max_tokens);
    request.params.logit_bias = vec![(POISON, -100.0)];
    request
}

/// What was generated, with its log-probabilities, and how many prompt tokens were not computed.
fn run(engine: &EngineHandle, request: &GenerateRequest) -> (Vec<TokenEvent>, usize) {
    let mut events = all_events(engine.submit(request.clone()).unwrap());
    let Some(TokenEvent::Finished { usage, .. }) = events.pop() else { panic!("{events:?}") };
    (events, usage.cached_tokens)
}

fn tokens(events: &[TokenEvent]) -> Vec<TokenId> {
    perilune_tests::tokens(events)
}

#[test]
fn two_continuations_of_a_long_prefix_in_memory_full_of_garbage() {
    let cold = cold();
    let model = Tiny::new("k3").with_poison(POISON);
    let config = config(64, (120, 12));
    let engine = Engine::start(model.runner(&config), config).unwrap();
    // Requests that fill slots and blocks with what is not a number.
    let corrupt: Vec<_> = (0..6)
        .map(|i| {
            let mut prompt = text(50 + i, 900);
            prompt[i as usize] = POISON;
            engine.submit(request(&prompt, 2)).unwrap()
        })
        .collect();
    assert!(corrupt.into_iter().all(|stream| matches!(all_events(stream).last(), Some(TokenEvent::Failed { .. }))));
    let prefix = text(1, 2000);
    let (a, b) = ([&prefix[..], &text(2, 30)].concat(), [&prefix[..], &text(3, 41)].concat());
    for (prompt, least) in [(&a, 0), (&b, 0), (&a, 1900), (&b, 1999), (&a, 1999)] {
        let (events, cached) = run(&engine, &request(prompt, 12));
        assert_eq!(events, run(&cold, &request(prompt, 12)).0, "after {cached} stored tokens");
        assert!(cached >= least, "{cached} of {} tokens were stored, not {least}", prompt.len());
    }
    assert_eq!(engine.stats().corrupted_requests, 6);
    perilune_tests::stopped(&engine);
}

#[test]
fn a_prompt_that_ended_anywhere_around_a_block_and_one_token_more() {
    const BLOCK: usize = 16;
    let (cold, engine) = (cold(), engine(config(BLOCK, (300, 40))));
    for (which, len) in (BLOCK..4 * BLOCK).enumerate() {
        let prompt = text(100 + which as u32, len + 1);
        run(&engine, &request(&prompt[..len], 1));
        let (events, cached) = run(&engine, &request(&prompt, 4));
        assert_eq!(events, run(&cold, &request(&prompt, 4)).0, "{len} tokens, then one more");
        assert_eq!(cached, len, "all that were computed");
    }
    perilune_tests::stopped(&engine);
}

#[test]
fn any_block_size_any_interval_and_a_return_at_every_saved_state() {
    let cold = cold();
    let prompt = text(9, 1300);
    for block_size in [16, 64, 128] {
        for interval in [64, 100, 128, 1024] {
            let checkpoints = CheckpointRules { interval, least_gap: 1 };
            let engine = engine(EngineConfig { checkpoints, ..config(block_size, (3000 / block_size, 60)) });
            run(&engine, &request(&prompt, 1));
            for saved in (interval..1300).step_by(interval.max(300)) {
                for len in [saved - 1, saved, saved + 1, saved + 2] {
                    // Another ending, so that nothing after the saved state fits.
                    let other = [&prompt[..len], &text(77, 5)].concat();
                    let (events, cached) = run(&engine, &request(&other, 3));
                    let what = format!("blocks of {block_size}, every {interval}, {len} tokens alike");
                    assert_eq!(events, run(&cold, &request(&other, 3)).0, "{what}");
                    assert!(cached <= len && cached + interval > len, "{what}: {cached} stored");
                }
            }
            perilune_tests::stopped(&engine);
        }
    }
}

#[test]
fn callers_that_leave_at_any_stage_lose_no_memory() {
    let config = EngineConfig { cache: room(4, (400, 30)), chunked_prefill_size: 16, ..config(4, (1, 1)) };
    let (runner, gate) = gated(HashRunner::default());
    let engine = Engine::start(runner, config.clone()).unwrap();
    let calm = EngineConfig { cache: CacheConfig { prefixes: Prefixes::Forget, ..config.cache }, ..config };
    let oracle = Engine::start(HashRunner::default(), calm).unwrap();
    let shared = text(4, 60);
    let mut leaving = Vec::new();
    for i in 0..1000_u32 {
        let prompt = [&shared[..], &text(i, 1 + i as usize % 20)].concat();
        leaving.push(engine.submit(request(&prompt, 1 + i as usize % 30)).unwrap());
        // While queued, found, in a chunk, or decoding: as far as they have come by now.
        if leaving.len() > 40 {
            for _ in 0..i % 3 {
                gate.arrival();
                gate.pass();
            }
            drop(leaving.swap_remove((i * 7919) as usize % leaving.len()));
        }
    }
    drop(gate);
    drop(leaving);
    let last = request(&[&shared[..], &text(5000, 7)].concat(), 9);
    let (events, cached) = run(&engine, &last);
    assert_eq!(tokens(&events), tokens(&run(&oracle, &last).0));
    assert_eq!(cached, 60, "what the others began with is stored");
    let usage = engine.stats().usage;
    let held = usage.blocks_stored + 3 * usage.slots_stored;
    assert_eq!(held + usage.free_len, usage.arena_len, "{usage:?}");
    engine.flush_cache();
    perilune_tests::stopped(&engine);
    assert_eq!(engine.stats().usage.free_len, usage.arena_len, "{:?}", engine.stats().usage);
}

#[test]
fn each_turn_of_a_chat_computes_only_what_is_new() {
    for begin in [50, 500, 5000] {
        let engine = engine(config(64, (300, 40)));
        let mut prompt = text(1, begin);
        let mut before = 0;
        for turn in 0..10 {
            let (events, cached) = run(&engine, &request(&prompt, 20));
            let prefilled = engine.stats().prefilled_tokens;
            let new = if turn == 0 { begin } else { 200 };
            let computed = (prefilled - before) as usize;
            assert!(computed <= new + 64, "turn {turn} from {begin}: {computed} computed, {new} new, {cached} stored");
            before = prefilled;
            prompt.extend(tokens(&events));
            prompt.extend(text(30 + turn, 200));
        }
        perilune_tests::stopped(&engine);
    }
}

#[test]
fn the_same_prompt_again_computes_at_most_one_block() {
    let engine = engine(config(64, (100, 10)));
    for len in [70, 640, 1000] {
        let prompt = text(len as u32, len);
        let first = run(&engine, &request(&prompt, 5)).0;
        let before = engine.stats().prefilled_tokens;
        let (again, cached) = run(&engine, &request(&prompt, 5));
        let computed = (engine.stats().prefilled_tokens - before) as usize;
        assert_eq!(again, first);
        assert!(computed <= 64 && cached + computed == len, "{computed} of {len} computed, {cached} stored");
    }
    perilune_tests::stopped(&engine);
}

#[test]
fn of_many_that_arrive_together_one_computes_what_all_begin_with() {
    let (runner, gate) = gated(MODEL.runner(&config(64, (200, 20))));
    let engine = Engine::start(runner, config(64, (200, 20))).unwrap();
    let shared = text(8, 768);
    let requests: Vec<_> = (0..4).map(|i| request(&[&shared[..], &text(60 + i, 25)].concat(), 6)).collect();
    let streams: Vec<_> = requests.iter().map(|r| engine.submit(r.clone()).unwrap()).collect();
    drop(gate);
    let cold = cold();
    for (stream, request) in streams.into_iter().zip(&requests) {
        let mut events = all_events(stream);
        events.pop();
        assert_eq!(events, run(&cold, request).0);
    }
    let prefilled = engine.stats().prefilled_tokens;
    assert!(prefilled <= 768 + 4 * 27, "{prefilled} tokens computed; {:?}", engine.stats().prefixes);
    perilune_tests::stopped(&engine);
}

#[test]
fn what_went_to_host_memory_and_came_back_is_the_same() {
    let cold = cold();
    let small = config(16, (40, 4));
    let cache = CacheConfig { host_len: 40 * small.cache.arena.len, ..small.cache };
    let engine = engine(EngineConfig { cache, context_length: 600, ..small });
    let prompts: Vec<_> = (0..8).map(|i| text(200 + i, 300 + 13 * i as usize)).collect();
    for round in 0..3 {
        for prompt in &prompts {
            let longer = [&prompt[..], &text(round, 9)].concat();
            let (events, cached) = run(&engine, &request(&longer, 5));
            assert_eq!(events, run(&cold, &request(&longer, 5)).0);
            // The second round finds where the first one's answers part, and saves the state there.
            let stats = engine.stats().prefixes;
            assert!(
                round < 2 || cached >= prompt.len(),
                "round {round}: {cached} of {} stored; {stats:?}",
                prompt.len()
            );
        }
    }
    let stats = engine.stats().prefixes;
    assert!(stats.demotions > 8 && stats.promoted_blocks > 100, "{stats:?}");
    perilune_tests::stopped(&engine);
}

#[test]
fn tenants_do_not_share_and_a_flush_forgets() {
    let engine = engine(config(64, (100, 10)));
    let prompt = text(3, 500);
    let salted = |salt: &str| GenerateRequest { cache_salt: Some(salt.into()), ..request(&prompt, 2) };
    run(&engine, &request(&prompt, 2));
    assert_eq!(run(&engine, &salted("a")).1, 0);
    assert!(run(&engine, &salted("a")).1 > 400);
    assert_eq!(run(&engine, &salted("b")).1, 0);
    assert!(run(&engine, &request(&prompt, 2)).1 > 400);
    engine.flush_cache();
    assert_eq!(run(&engine, &request(&prompt, 2)).1, 0);
    assert_eq!(run(&engine, &salted("a")).1, 0);
    perilune_tests::stopped(&engine);
}

#[test]
fn counters_are_exact_and_only_grow() {
    let engine = engine(config(16, (60, 6)));
    let (mut queried, mut hit, mut last) = (0, 0, engine.stats().prefixes);
    for i in 0..40 {
        let prompt = [&text(i % 3, 100)[..], &text(i, 10)].concat();
        let (_, cached) = run(&engine, &request(&prompt, 3));
        queried += prompt.len() as u64;
        hit += cached as u64;
        let now = engine.stats().prefixes;
        assert_eq!((now.queried_tokens, now.hit_tokens), (queried, hit));
        assert!(now.restores >= last.restores && now.evictions >= last.evictions);
        assert_eq!(now.restores - last.restores, u64::from(cached > 0));
        last = now;
    }
    assert!(hit > 1000, "{hit} of {queried} stored");
    perilune_tests::stopped(&engine);
}

#[test]
fn scores_of_a_prompt_are_computed_whatever_is_stored() {
    let (cold, engine) = (cold(), engine(config(16, (60, 6))));
    let mut scored = request(&text(5, 120), 3);
    run(&engine, &scored);
    scored.params.prompt_logprobs = Some(2);
    for _ in 0..2 {
        let (events, cached) = run(&engine, &scored);
        assert_eq!((events, cached), (run(&cold, &scored).0, 0));
    }
    perilune_tests::stopped(&engine);
}

/// Time from submission to the first token.
fn first_token(engine: &EngineHandle, request: &GenerateRequest) -> Duration {
    let begin = Instant::now();
    let mut stream = engine.submit(request.clone()).unwrap();
    assert!(matches!(stream.blocking_next(), Some(TokenEvent::Token { .. })));
    let time = begin.elapsed();
    all_events(stream);
    time
}

#[test]
fn a_stored_prefix_is_there_in_a_twentieth_of_the_time() {
    let config = EngineConfig { cache: demo_room(64, (300, 8)), ..config(64, (1, 1)) };
    let engine = demo_engine(&config);
    let prefix: Vec<TokenId> = (0..4096_u32).map(|i| TokenId(300 + (i * i + 3 * i) % 1500)).collect();
    let cold = first_token(&engine, &request(&prefix, 2));
    let warm = (0..5).map(|i| first_token(&engine, &request(&[&prefix[..], &text(i, 3)].concat(), 2))).min().unwrap();
    assert!(warm * 20 < cold, "{warm:?} with 4096 tokens stored, {cold:?} without");
    eprintln!("first token after 4096 tokens: {cold:?} cold, {warm:?} stored");
    perilune_tests::stopped(&engine);
}
