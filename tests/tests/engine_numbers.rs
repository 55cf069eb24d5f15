//! What an engine reports: limits it settles at start, counters, seeds, and streams that are awaited.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // all of it is test code

use perilune_engine::{
    Engine, EngineConfig, EngineError, EngineHandle, EngineState, FinishReason, GenerateRequest, SamplingParams,
    SubmitError, TokenEvent,
};
use perilune_tensor::TokenId;
use perilune_tests::{HashRunner, all_events, finish, gated, hash_config, room, stopped, tokens};

fn config() -> EngineConfig {
    EngineConfig {
        max_running_requests: 4,
        chunked_prefill_size: 8,
        max_prompt_logit_rows: 4,
        context_length: 64,
        cache: room(4, (64, 4)),
        ..hash_config()
    }
}

fn engine(config: EngineConfig) -> EngineHandle {
    Engine::start(HashRunner::default(), config).unwrap()
}

fn request(prompt: Vec<u32>, max_tokens: usize) -> GenerateRequest {
    let params = SamplingParams { seed: Some(3), max_tokens: Some(max_tokens), ..SamplingParams::default() };
    GenerateRequest::new(prompt.into_iter().map(TokenId).collect(), params)
}

/// One edit of a configuration.
type Change = fn(&mut EngineConfig);

#[test]
fn a_size_of_zero_does_not_start() {
    let zeroed: [(&str, Change); 9] = [
        ("max_running_requests", |c| c.max_running_requests = 0),
        ("max_queued_requests", |c| c.max_queued_requests = 0),
        ("chunked_prefill_size", |c| c.chunked_prefill_size = 0),
        ("max_prompt_logit_rows", |c| c.max_prompt_logit_rows = 0),
        ("context_length", |c| c.context_length = 0),
        ("cache.block_size", |c| c.cache.block_size = 0),
        ("cache.arena.block_len", |c| c.cache.arena.block_len = 0),
        ("cache.arena.slot_len", |c| c.cache.arena.slot_len = 0),
        ("cache.capacity_tokens", |c| c.cache.arena.len = 3),
    ];
    for (name, zero) in zeroed {
        let mut config = config();
        zero(&mut config);
        let error = Engine::start(HashRunner::default(), config).unwrap_err();
        assert!(matches!(error, EngineError::Config { field, value: 0, .. } if field == name), "{name}: {error}");
    }
}

#[test]
fn blocks_for_less_than_the_context_are_the_context() {
    let engine = engine(EngineConfig { cache: room(4, (5, 1)), ..config() });
    assert_eq!(engine.context_length(), 20);
    let refused = engine.submit(request(vec![1; 10], 11)).unwrap_err();
    assert_eq!(refused, SubmitError::PromptTooLong { prompt: 10, max_tokens: 11, context: 20 });
    let events = all_events(engine.submit(request(vec![1; 10], 10)).unwrap());
    assert_eq!((tokens(&events).len(), finish(&events)), (10, Some(FinishReason::Length)));
}

#[test]
fn fewer_slots_than_running_requests_are_enough() {
    let engine = engine(EngineConfig { cache: room(4, (4, 1)), ..config() });
    let streams: Vec<_> = (0..6).map(|i| engine.submit(request(vec![i, 1], 5)).unwrap()).collect();
    assert!(streams.into_iter().all(|stream| tokens(&all_events(stream)).len() == 5));
    assert_eq!(engine.stats().preemptions, 0);
}

#[test]
fn no_tokens_wanted_is_a_request_for_scores_alone() {
    let engine = engine(config());
    let mut scored = request((1..20).collect(), 0);
    scored.params.prompt_logprobs = Some(0);
    let events = all_events(engine.submit(scored).unwrap());
    assert_eq!(events.len(), 2);
    let TokenEvent::PromptLogprobs(scores) = &events[0] else { panic!("{events:?}") };
    assert!(scores.len() == 19 && scores[0].is_none());
    let ids: Vec<_> = scores[1..].iter().map(|s| s.as_ref().unwrap().chosen.id.0).collect();
    assert_eq!(ids, (2..20).collect::<Vec<_>>());
    assert_eq!(finish(&events), Some(FinishReason::Length));
    let plain = all_events(engine.submit(request(vec![1], 0)).unwrap());
    assert_eq!((plain.len(), finish(&plain)), (1, Some(FinishReason::Length)));
}

#[test]
fn requests_without_a_seed_differ_and_those_with_one_do_not() {
    let engine = engine(config());
    let ask = |seed| {
        let mut request = request(vec![5], 40);
        request.params.seed = seed;
        tokens(&all_events(engine.submit(request).unwrap()))
    };
    assert_ne!(ask(None), ask(None));
    assert_eq!(ask(Some(9)), ask(Some(9)));
}

#[test]
fn counters_are_exact() {
    let engine = engine(config());
    let (mut prompt_tokens, mut generated) = (0, 0);
    for i in 0..20 {
        let (prompt, max_tokens) = (1 + i % 7, 1 + i % 5);
        (prompt_tokens, generated) = (prompt_tokens + prompt as u64, generated + max_tokens as u64);
        all_events(engine.submit(request(vec![i as u32; prompt], max_tokens)).unwrap());
    }
    let stats = engine.stats();
    assert_eq!(
        (stats.prompt_tokens, stats.prefilled_tokens, stats.generated_tokens),
        (prompt_tokens, prompt_tokens, generated)
    );
    assert_eq!((stats.finished.length, stats.finished.stop, stats.finished.abort), (20, 0, 0));
    // One at a time, each prompt in one chunk: a step per token.
    assert_eq!((stats.steps, stats.preemptions, stats.corrupted_requests), (generated, 0, 0));
}

#[test]
fn recomputed_tokens_count_as_prefilled_but_not_twice_as_prompt() {
    let engine = engine(EngineConfig { cache: room(4, (16, 4)), ..config() });
    let streams: Vec<_> = (0..6).map(|i| engine.submit(request(vec![i; 20], 40)).unwrap()).collect();
    streams.into_iter().for_each(|stream| drop(all_events(stream)));
    let stats = engine.stats();
    assert!(stats.preemptions > 0, "memory was meant to run out");
    assert_eq!((stats.prompt_tokens, stats.generated_tokens), (120, 240));
    assert!(stats.prefilled_tokens > 120);
}

#[test]
fn a_step_under_way_shows_in_the_numbers() {
    let (runner, gate) = gated(HashRunner::default());
    let engine = Engine::start(runner, config()).unwrap();
    let first = engine.submit(request(vec![1; 6], 1)).unwrap();
    assert_eq!(gate.arrival(), [0]);
    let waiting = engine.submit(request(vec![2], 1)).unwrap();
    let stats = engine.stats();
    // One slot for the request, and one that takes its state at the end of the prompt.
    assert_eq!((stats.running, stats.waiting, stats.usage.blocks_used, stats.usage.slots_used), (1, 1, 2, 2));
    drop(gate);
    drop((all_events(first), all_events(waiting)));
}

/// A prompt of four chunks and eight tokens: its caller leaves before the first step, after it, and so on to the end.
#[test]
fn leaving_at_any_step_frees_everything_and_harms_nobody() {
    let expected = all_events(engine(config()).submit(request(vec![4, 5], 3)).unwrap());
    for steps in 0..13 {
        let (runner, gate) = gated(HashRunner::default());
        let engine = Engine::start(runner, config()).unwrap();
        let leaving = engine.submit(request((0..30).collect(), 8)).unwrap();
        let staying = engine.submit(request(vec![4, 5], 3)).unwrap();
        for _ in 0..steps.min(11) {
            gate.arrival();
            gate.pass();
        }
        drop(leaving);
        drop(gate);
        assert_eq!(all_events(staying), expected, "after {steps} steps");
        let stats = stopped(&engine);
        assert_eq!(stats.finished.abort + stats.finished.length, 2);
    }
}

#[test]
fn streams_and_the_end_can_be_awaited() {
    let engine = engine(config());
    let mut stream = engine.submit(request(vec![1, 2], 5)).unwrap();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).build().unwrap();
    let events = runtime.block_on(async {
        let mut events = Vec::new();
        while let Some(event) = stream.next().await {
            events.push(event);
        }
        engine.drain();
        assert_eq!(engine.stopped().await, EngineState::Stopped);
        events
    });
    assert_eq!(events, all_events(self::engine(config()).submit(request(vec![1, 2], 5)).unwrap()));
}
