//! What an engine does when callers leave, rows are not numbers, devices fail, and queues are full.
//! Long because each fault is a scene of its own on one set of rigs.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // all of it is test code

use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};

use perilune_backend::BackendError;
use perilune_engine::{
    Engine, EngineConfig, EngineHandle, EngineState, FinishReason, GenerateRequest, SamplingParams, SharedGrammar,
    StepInput, StepOutput, StepRunner, SubmitError, TokenEvent, TokenRole, TokenStream,
};
use perilune_tensor::TokenId;
use perilune_tests::{
    FAULT, Gate, HashRunner, PANIC, POISON, Tiny, ToyGrammar, VOCAB, all_events, finish, gated, hash_config, room,
    stopped, tokens,
};

fn request(prompt: &[u32], max_tokens: usize) -> GenerateRequest {
    let params = SamplingParams { seed: Some(3), max_tokens: Some(max_tokens), ..SamplingParams::default() };
    GenerateRequest::new(prompt.iter().map(|id| TokenId(*id)).collect(), params)
}

fn hash_engine(config: EngineConfig) -> EngineHandle {
    Engine::start(HashRunner::default(), config).unwrap()
}

fn gated_engine(config: EngineConfig) -> (EngineHandle, Gate) {
    let (runner, gate) = gated(HashRunner::default());
    (Engine::start(runner, config).unwrap(), gate)
}

fn assert_clean(engine: &EngineHandle) {
    assert_eq!(stopped(engine).stalled_for, None);
}

fn is_failed(events: &[TokenEvent]) -> bool {
    matches!(events.last(), Some(TokenEvent::Failed { .. }))
}

// Rows that are not numbers.

#[test]
fn a_corrupt_row_ends_its_own_request_alone() {
    let prompts: [&[u32]; 4] = [&[1, 2, 3], &[4, 5], &[6, POISON.0, 7], &[8]];
    let alone = hash_engine(hash_config());
    let expected: Vec<_> = prompts.iter().map(|p| all_events(alone.submit(request(p, 6)).unwrap())).collect();
    let (engine, gate) = gated_engine(hash_config());
    let streams: Vec<_> = prompts.iter().map(|p| engine.submit(request(p, 6)).unwrap()).collect();
    drop(gate);
    let found: Vec<_> = streams.into_iter().map(all_events).collect();
    assert!(is_failed(&found[2]) && found[2].len() == 1, "{:?}", found[2]);
    assert_eq!(found, expected);
    let stats = engine.stats();
    assert_eq!((stats.corrupted_requests, stats.finished.failed, stats.finished.length), (1, 1, 3));
    assert_clean(&engine);
}

/// With a real model: the corrupt request writes NaN into its slot and blocks, which others get afterwards.
#[test]
fn memory_of_a_corrupt_request_harms_nobody() {
    let poison = TokenId(7);
    let model = Tiny::new("k3").with_poison(poison);
    // Memory for four at a time.
    let config = EngineConfig {
        max_running_requests: 4,
        context_length: 32,
        cache: model.room(4, (32, 4)),
        chunked_prefill_size: 64,
        ..hash_config()
    };
    // Whatever is drawn, it is not the poisonous token.
    let biased = |prompt: &[u32]| {
        let mut request = request(prompt, 12);
        request.params.logit_bias = vec![(poison, -100.0)];
        request.params.logprobs = Some(3);
        request
    };
    let healthy: Vec<_> = (10..13).map(|i| biased(&[i, 3, 9, i + 20, 4, 2])).collect();
    let fresh = Engine::start(Tiny::new("k3").runner(&config), config.clone()).unwrap();
    let expected: Vec<_> = healthy.iter().map(|r| all_events(fresh.submit(r.clone()).unwrap())).collect();

    let (runner, gate) = gated(model.runner(&config));
    let engine = Engine::start(runner, config).unwrap();
    let corrupt = engine.submit(biased(&[5, poison.0, 6, 6, 6, 6, 6, 6, 6, 6, 6, 6])).unwrap();
    let streams: Vec<_> = healthy.iter().map(|r| engine.submit(r.clone()).unwrap()).collect();
    drop(gate);
    assert!(is_failed(&all_events(corrupt)));
    assert_eq!(streams.into_iter().map(all_events).collect::<Vec<_>>(), expected, "in the same batch");
    for _ in 0..4 {
        let streams: Vec<_> = healthy.iter().map(|r| engine.submit(r.clone()).unwrap()).collect();
        assert_eq!(streams.into_iter().map(all_events).collect::<Vec<_>>(), expected, "in the same memory");
    }
    assert_eq!(engine.stats().corrupted_requests, 1);
    assert_clean(&engine);
}

// Callers that leave.

#[test]
fn a_caller_may_leave_at_any_stage() {
    let (engine, gate) = gated_engine(EngineConfig { max_running_requests: 1, ..hash_config() });
    let long: Vec<u32> = (0..40).collect();
    // During its first chunk of three, another one while it waits, a third one after its first token.
    let chunked = engine.submit(request(&long, 50)).unwrap();
    let waiting = engine.submit(request(&[1, 2], 50)).unwrap();
    let mut talking = engine.submit(request(&[5, 6], 50)).unwrap();
    let finished = engine.submit(request(&[3], 1)).unwrap();
    assert_eq!(gate.arrival(), [0]);
    drop((chunked, waiting));
    gate.pass();
    assert_eq!(gate.arrival(), [2], "requests without a caller are left out of the very next step");
    gate.pass();
    assert!(matches!(talking.blocking_next(), Some(TokenEvent::Token { .. })));
    drop(talking);
    drop(gate);
    // Its events are never read.
    let last = engine.submit(request(&[9], 3)).unwrap();
    assert_eq!(tokens(&all_events(last)).len(), 3);
    drop(finished);
    assert_eq!(engine.stats().finished.abort, 3);
    assert_clean(&engine);
}

#[test]
fn nothing_is_computed_for_callers_that_left() {
    let (engine, gate) = gated_engine(hash_config());
    let streams: Vec<TokenStream> = (0..8).map(|i| engine.submit(request(&[i], 10_000)).unwrap()).collect();
    let mut batch = gate.arrival();
    while batch.len() < 8 {
        gate.pass();
        batch = gate.arrival();
    }
    // All eight are in a step now; they leave during it.
    drop(streams);
    gate.pass();
    let marker = engine.submit(request(&[7], 1)).unwrap();
    let mut steps = 0;
    loop {
        let batch = gate.arrival();
        gate.pass();
        if batch.iter().any(|id| *id < 8) {
            steps += 1;
        } else {
            assert_eq!(batch, [8]);
            break;
        }
    }
    assert_eq!(steps, 0, "the step they left in was the last one with them");
    assert_eq!(tokens(&all_events(marker)).len(), 1);
    assert_eq!(engine.stats().finished.abort, 8);
    assert_clean(&engine);
}

#[test]
fn abort_all_reaches_requests_that_wait() {
    let (engine, gate) = gated_engine(EngineConfig { max_running_requests: 2, ..hash_config() });
    let streams: Vec<_> = (0..32).map(|i| engine.submit(request(&[i], 1000)).unwrap()).collect();
    gate.arrival();
    engine.abort_all();
    drop(gate);
    for stream in streams {
        assert_eq!(finish(&all_events(stream)), Some(FinishReason::Abort));
    }
    let again = all_events(engine.submit(request(&[1], 2)).unwrap());
    assert_eq!(finish(&again), Some(FinishReason::Length), "the engine goes on");
    assert_clean(&engine);
}

// Little memory.

#[test]
fn two_hundred_prompts_in_memory_for_little_more_than_one_all_finish() {
    let sizes = EngineConfig { context_length: 48, cache: room(4, (14, 3)), ..hash_config() };
    let calm = hash_engine(hash_config());
    let engine = hash_engine(sizes);
    let request = |i: u32| {
        let prompt: Vec<u32> = (0..1 + i % 30).map(|k| (i + k * k) % 60).collect();
        request(&prompt, 1 + i as usize % 17)
    };
    let streams: Vec<_> = (0..200).map(|i| engine.submit(request(i)).unwrap()).collect();
    for (i, stream) in streams.into_iter().enumerate() {
        let (found, expected) = (all_events(stream), all_events(calm.submit(request(i as u32)).unwrap()));
        assert_eq!((tokens(&found), finish(&found)), (tokens(&expected), finish(&expected)), "request {i}");
    }
    assert!(engine.stats().preemptions > 0, "memory was meant to run out");
    assert_clean(&engine);
}

// Faults of the device.

fn everything_fails(poison: TokenId, message: &str) {
    let (engine, gate) = gated_engine(EngineConfig { max_running_requests: 2, ..hash_config() });
    let mut streams: Vec<_> = (0..4).map(|i| engine.submit(request(&[i, 2], 100)).unwrap()).collect();
    gate.arrival();
    streams.push(engine.submit(request(&[poison.0], 1)).unwrap());
    // The two that run make way for the faulty one.
    streams.drain(..2);
    drop(gate);
    let (_, ends): (Vec<_>, Vec<_>) = streams.into_iter().map(all_events).map(|e| (e.len(), e)).unzip();
    let state = engine.join();
    assert!(matches!(&state, EngineState::Dead { reason } if reason.contains(message)), "{state:?}");
    assert!(is_failed(ends.last().unwrap()), "{ends:?}");
    let refused = engine.submit(request(&[1], 1)).unwrap_err();
    assert!(matches!(&refused, SubmitError::Dead { reason } if reason.contains(message)), "{refused}");
    let stats = engine.stats();
    assert_eq!((stats.running, stats.waiting, stats.usage.blocks_used, stats.usage.slots_used), (0, 0, 0, 0));
}

#[test]
fn a_failing_device_ends_every_stream_and_the_engine() {
    everything_fails(FAULT, "asked to fail");
}

#[test]
fn a_panic_ends_every_stream_and_the_engine() {
    everything_fails(PANIC, "asked to panic");
}

#[test]
fn streams_that_wait_fail_with_the_engine() {
    let (engine, gate) = gated_engine(EngineConfig { max_running_requests: 1, ..hash_config() });
    let faulty = engine.submit(request(&[FAULT.0], 1)).unwrap();
    let waiting: Vec<_> = (0..5).map(|i| engine.submit(request(&[i], 5)).unwrap()).collect();
    drop(gate);
    assert!(is_failed(&all_events(faulty)));
    for stream in waiting {
        let events = all_events(stream);
        assert!(is_failed(&events) && events.len() == 1, "{events:?}");
    }
    assert_eq!(engine.stats().finished.failed, 6);
}

/// Returns fewer rows than it was asked for.
struct Forgetful;

impl StepRunner for Forgetful {
    fn vocab_size(&self) -> usize {
        VOCAB
    }

    fn run(&mut self, input: &StepInput<'_>) -> Result<StepOutput, BackendError> {
        Ok(StepOutput { runs: vec![vec![]; input.runs.len()], ..StepOutput::default() })
    }
}

#[test]
fn a_runner_that_returns_too_little_is_a_fault() {
    let engine = Engine::start(Forgetful, hash_config()).unwrap();
    assert!(is_failed(&all_events(engine.submit(request(&[1], 1)).unwrap())));
    assert!(matches!(engine.join(), EngineState::Dead { .. }));
}

// Submission.

#[test]
fn a_full_queue_refuses_and_recovers() {
    let (engine, gate) =
        gated_engine(EngineConfig { max_running_requests: 1, max_queued_requests: 2, ..hash_config() });
    let first = engine.submit(request(&[1], 2)).unwrap();
    gate.arrival();
    let second = engine.submit(request(&[2], 2)).unwrap();
    let third = engine.submit(request(&[3], 2)).unwrap();
    assert_eq!(engine.submit(request(&[4], 2)).unwrap_err(), SubmitError::QueueFull { max_queued_requests: 2 });
    assert_eq!(engine.stats().waiting, 2);
    // A waiting request that goes away makes room.
    drop(second);
    gate.pass();
    gate.arrival();
    let fourth = engine.submit(request(&[4], 2)).unwrap();
    drop(gate);
    for stream in [first, third, fourth] {
        assert_eq!(finish(&all_events(stream)), Some(FinishReason::Length));
    }
    assert_clean(&engine);
}

#[test]
fn refusals_name_what_is_wrong() {
    let engine = hash_engine(EngineConfig { context_length: 10, ..hash_config() });
    let refusal = |request| engine.submit(request).unwrap_err();
    assert_eq!(refusal(request(&[], 1)), SubmitError::EmptyPrompt);
    let unknown = SubmitError::UnknownToken { index: 1, id: 64, vocab_size: VOCAB };
    assert_eq!(refusal(request(&[1, 64], 1)), unknown);
    let long = SubmitError::PromptTooLong { prompt: 4, max_tokens: 7, context: 10 };
    assert_eq!(refusal(request(&[1, 2, 3, 4], 7)), long);
    assert_eq!(
        refusal(request(&[1, 2, 3, 4], usize::MAX)),
        SubmitError::PromptTooLong { prompt: 4, max_tokens: usize::MAX, context: 10 }
    );
    let mut unlimited = request(&[1; 10], 0);
    unlimited.params.max_tokens = None;
    assert_eq!(refusal(unlimited), SubmitError::PromptTooLong { prompt: 10, max_tokens: 1, context: 10 });
    let mut hot = request(&[1], 1);
    hot.params.temperature = f32::NAN;
    assert!(matches!(refusal(hot), SubmitError::Invalid(error) if error.field == "temperature"));
    assert_eq!(engine.stats().waiting, 0);
    let fits = all_events(engine.submit(request(&[1, 2, 3, 4], 6)).unwrap());
    assert_eq!(tokens(&fits).len(), 6);
    assert_clean(&engine);
}

#[test]
fn without_a_limit_the_context_is_one() {
    let engine = hash_engine(EngineConfig { context_length: 10, ..hash_config() });
    let mut open = request(&[1, 2, 3], 0);
    open.params.max_tokens = None;
    let events = all_events(engine.submit(open).unwrap());
    assert_eq!((tokens(&events).len(), finish(&events)), (7, Some(FinishReason::Length)));
    assert_clean(&engine);
}

#[test]
fn the_stop_token_is_delivered_and_counted() {
    let free = all_events(hash_engine(hash_config()).submit(request(&[1, 2], 30)).unwrap());
    let stop = tokens(&free)[4];
    let before = tokens(&free).iter().position(|id| *id == stop).unwrap();
    let engine = hash_engine(EngineConfig { eos_ids: vec![stop], ..hash_config() });
    let events = all_events(engine.submit(request(&[1, 2], 30)).unwrap());
    assert_eq!(tokens(&events), tokens(&free)[..=before]);
    let last_token = &events[events.len() - 2];
    assert!(matches!(last_token, TokenEvent::Token { id, role: TokenRole::Stop, .. } if *id == stop));
    let Some(TokenEvent::Finished { reason, usage }) = events.last() else { panic!("no finish") };
    assert_eq!(*reason, FinishReason::Stop { token: stop });
    assert_eq!((usage.prompt_tokens, usage.completion_tokens), (2, before + 1));
}

// The end.

#[test]
fn draining_finishes_what_runs_and_refuses_what_comes() {
    let (engine, gate) = gated_engine(EngineConfig { max_running_requests: 2, ..hash_config() });
    let streams: Vec<_> = (0..4).map(|i| engine.submit(request(&[i], 5)).unwrap()).collect();
    gate.arrival();
    engine.drain();
    assert_eq!(engine.submit(request(&[1], 1)).unwrap_err(), SubmitError::Draining);
    drop(gate);
    for stream in streams {
        assert_eq!(finish(&all_events(stream)), Some(FinishReason::Length));
    }
    assert_eq!(engine.join(), EngineState::Stopped);
    assert!(matches!(engine.submit(request(&[1], 1)), Err(SubmitError::Dead { .. })));
}

#[test]
fn shutdown_aborts_everything() {
    let (engine, gate) = gated_engine(EngineConfig { max_running_requests: 2, ..hash_config() });
    let streams: Vec<_> = (0..5).map(|i| engine.submit(request(&[i], 1000)).unwrap()).collect();
    gate.arrival();
    engine.shutdown();
    drop(gate);
    for stream in streams {
        assert_eq!(finish(&all_events(stream)), Some(FinishReason::Abort));
    }
    assert_eq!(engine.join(), EngineState::Stopped);
    assert_eq!(engine.stats().usage.blocks_used, 0);
}

/// Tells when it is dropped.
struct Mortal(HashRunner, #[allow(dead_code, reason = "its drop is what is waited for")] Sender<()>);

impl StepRunner for Mortal {
    fn vocab_size(&self) -> usize {
        self.0.vocab_size()
    }

    fn run(&mut self, input: &StepInput<'_>) -> Result<StepOutput, BackendError> {
        self.0.run(input)
    }
}

#[test]
fn an_engine_without_callers_ends() {
    let (alive, ended): (Sender<()>, Receiver<()>) = channel();
    let engine = Engine::start(Mortal(HashRunner::default(), alive), hash_config()).unwrap();
    let stream = engine.submit(request(&[1], 5)).unwrap();
    drop(engine);
    assert_eq!(tokens(&all_events(stream)).len(), 5, "a stream outlives its handle");
    assert!(ended.recv().is_err(), "the runner and its memory are gone");
}

#[test]
fn a_stall_can_be_seen() {
    let (engine, gate) = gated_engine(hash_config());
    assert_eq!(engine.stats().stalled_for, None);
    let stream = engine.submit(request(&[1], 1)).unwrap();
    gate.arrival();
    assert!(engine.stats().stalled_for.is_some());
    drop(gate);
    all_events(stream);
    assert_clean(&engine);
}

#[test]
fn a_stream_says_when_its_request_left_the_queue() {
    let (engine, gate) = gated_engine(EngineConfig { max_running_requests: 1, ..hash_config() });
    let [mut first, mut second, mut third] = [1, 2, 3].map(|id| engine.submit(request(&[id], 1)).unwrap());
    gate.arrival();
    let began = first.started_at().expect("its step has begun");
    assert_eq!((second.started_at(), third.started_at()), (None, None));
    gate.pass();
    gate.arrival();
    assert!(second.started_at().unwrap() >= began);
    assert_eq!((first.started_at(), third.started_at()), (Some(began), None), "it stays what it was");
    engine.abort_all();
    drop(gate);
    while third.blocking_next().is_some() {}
    assert!(third.started_at().is_some(), "one that ends without a step has left it, too");
    assert_clean(&engine);
}

#[test]
fn a_grammar_that_cannot_go_on_ends_its_own_request_alone() {
    let engine = hash_engine(hash_config());
    let bound = |fails_after| {
        let grammar = Some(SharedGrammar(Arc::new(ToyGrammar { fails_after })));
        GenerateRequest { grammar, ..request(&[1, 2], 9) }
    };
    let expected = all_events(engine.submit(bound(None)).unwrap());
    assert_eq!(finish(&expected), Some(FinishReason::Length));
    let limits = [None, Some(0), Some(4), None, Some(8), Some(9)];
    let streams: Vec<_> = limits.iter().map(|limit| engine.submit(bound(*limit)).unwrap()).collect();
    for (stream, limit) in streams.into_iter().zip(limits) {
        let events = all_events(stream);
        match limit {
            Some(count) if count < 9 => {
                assert!(is_failed(&events), "{events:?}");
                assert_eq!(tokens(&events), tokens(&expected)[..count]);
            }
            _ => assert_eq!(tokens(&events), tokens(&expected)),
        }
    }
    assert_eq!(engine.stats().finished.failed, 3);
    assert_clean(&engine);
}
