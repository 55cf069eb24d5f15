//! Equality laws through the engine: alone ≡ batched ≡ chunked ≡ preempted, bit for bit, greedy and seeded, with every
//! log-probability. Random requests on real models with memory for little more than the longest of them.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // all of it is test code

use perilune_engine::{
    Engine, EngineConfig, EngineHandle, EngineState, EngineStats, GenerateRequest, SamplingParams, TokenEvent,
};
use perilune_tensor::TokenId;
use perilune_tests::{Tiny, all_events, demo_engine, gated};
use proptest::prelude::*;
use proptest::test_runner::RngSeed;

const EOS: TokenId = TokenId(1);

/// Everything at once, nothing in the way: one request whole in one step.
fn calm(requests: &[GenerateRequest]) -> EngineConfig {
    let context_length = requests.iter().map(length).max().unwrap_or(1);
    EngineConfig {
        max_running_requests: 1,
        max_queued_requests: 64,
        chunked_prefill_size: context_length,
        max_prompt_logit_rows: context_length,
        context_length,
        block_size: 16,
        num_blocks: context_length.div_ceil(16),
        num_slots: 1,
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
    engine: EngineConfig,
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
    let prompt = prop::collection::vec((2_u32..60).prop_map(TokenId), 1..30);
    let request = (prompt, params(), prop::option::weighted(0.15, 0_usize..8));
    let limits = (1_usize..6, 1_usize..20, 1_usize..6);
    let pools = (1_usize..9, 0_usize..6, 1_usize..6);
    (prop::collection::vec(request, 1..9), limits, pools).prop_map(|(all, limits, pools)| {
        let patience = all.iter().map(|(_, _, patience)| *patience).collect();
        let requests: Vec<_> = all.into_iter().map(|(prompt, params, _)| GenerateRequest { prompt, params }).collect();
        let calm = calm(&requests);
        let engine = EngineConfig {
            max_running_requests: limits.0,
            chunked_prefill_size: limits.1,
            max_prompt_logit_rows: limits.2,
            block_size: pools.0,
            num_blocks: calm.context_length.div_ceil(pools.0) + pools.1,
            num_slots: pools.2,
            ..calm
        };
        Schedule { requests, patience, engine }
    })
}

/// Each request after the other.
fn alone(engine: &EngineHandle, requests: &[GenerateRequest]) -> Vec<Vec<TokenEvent>> {
    requests.iter().map(|request| all_events(engine.submit(request.clone()).unwrap())).collect()
}

/// Ends an engine that has nothing left to do; checks that it gave everything back.
fn end(engine: &EngineHandle) -> EngineStats {
    engine.drain();
    assert_eq!(engine.join(), EngineState::Stopped);
    let stats = engine.stats();
    let left = (stats.running, stats.waiting, stats.blocks_used, stats.slots_used);
    assert_eq!(left, (0, 0, 0, 0), "nothing may stay behind");
    stats
}

/// All requests at once; `None` for those whose caller left.
fn together(model: &Tiny, schedule: &Schedule) -> (Vec<Option<Vec<TokenEvent>>>, EngineStats) {
    // The first step waits until every request is there.
    let (runner, gate) = gated(model.runner(&schedule.engine));
    let engine = Engine::start(runner, schedule.engine.clone()).unwrap();
    let streams: Vec<_> = schedule.requests.iter().map(|r| engine.submit(r.clone()).unwrap()).collect();
    drop(gate);
    let read = |(mut stream, patience): (perilune_engine::TokenStream, &Option<usize>)| match patience {
        None => Some(all_events(stream)),
        Some(events) => {
            (0..*events).for_each(|_| drop(stream.blocking_next()));
            None
        }
    };
    let events = streams.into_iter().zip(&schedule.patience).map(read).collect();
    (events, end(&engine))
}

fn check(model: &Tiny, schedule: &Schedule) -> EngineStats {
    let config = calm(&schedule.requests);
    let engine = Engine::start(model.runner(&config), config).unwrap();
    let expected = alone(&engine, &schedule.requests);
    assert_eq!(end(&engine).preemptions, 0);
    let (found, stats) = together(model, schedule);
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
    GenerateRequest { prompt, params }
}

#[test]
fn preempted_requests_give_the_bits_of_undisturbed_ones() {
    let requests: Vec<_> = (0..5).map(|i| long(8 + i as usize, i)).collect();
    let pools = EngineConfig {
        max_running_requests: 5,
        chunked_prefill_size: 7,
        max_prompt_logit_rows: 3,
        block_size: 4,
        num_blocks: 20,
        num_slots: 5,
        ..calm(&requests)
    };
    let schedule = Schedule { patience: vec![None; requests.len()], requests, engine: pools };
    let stats = check(&Tiny::new("k3"), &schedule);
    assert!(stats.preemptions > 0, "memory was meant to run out");
}

#[test]
fn the_demo_checkpoint_obeys_the_laws_too() {
    let requests: Vec<_> = (0..4).map(|i| long(20 + 9 * i as usize, i)).collect();
    let calm = calm(&requests);
    let undisturbed = demo_engine(&calm);
    let expected = alone(&undisturbed, &requests);
    let pools = EngineConfig {
        max_running_requests: 4,
        chunked_prefill_size: 13,
        max_prompt_logit_rows: 6,
        block_size: 8,
        num_blocks: calm.context_length.div_ceil(8) + 4,
        num_slots: 4,
        ..calm
    };
    let engine = demo_engine(&pools);
    let streams: Vec<_> = requests.iter().map(|request| engine.submit(request.clone()).unwrap()).collect();
    let found: Vec<_> = streams.into_iter().map(all_events).collect();
    assert_eq!(found, expected);
    end(&engine);
}
