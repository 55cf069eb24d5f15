//! The engine on the GPU backend: requests that come together, are chunked, cached and decoded from recorded steps give the
//! tokens that the CPU gives each of them alone.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // all of it is test code

mod rig;

use std::sync::atomic::Ordering;

use perilune_emulator::OnDemand;
use perilune_engine::{
    CheckpointRules, Engine, EngineConfig, EngineHandle, GenerateRequest, SamplingParams, StepRunner, TokenEvent,
};
use perilune_gpu::Gpu;
use perilune_tensor::TokenId;
use perilune_tests::{Tiny, all_events, tokens};

fn config(model: &Tiny) -> EngineConfig {
    EngineConfig {
        max_running_requests: 3,
        max_queued_requests: 16,
        random_seed: None,
        chunked_prefill_size: 12,
        max_prompt_logit_rows: 4,
        max_drafts: 0,
        context_length: 64,
        cache: model.room(16, (16, 8)),
        checkpoints: CheckpointRules { interval: 0, least_gap: 16 },
        eos_ids: vec![TokenId(1)],
    }
}

/// Two that begin alike, and one of its own.
fn requests() -> Vec<GenerateRequest> {
    let stem: Vec<u32> = (0..20).map(|i| 2 + (i * 7) % 58).collect();
    let prompts = [[&stem[..], &[40, 9]].concat(), [&stem[..], &[11]].concat(), vec![5, 15, 39]];
    let params =
        SamplingParams { temperature: 0.0, max_tokens: Some(8), ignore_eos: true, ..SamplingParams::default() };
    prompts.map(|ids| GenerateRequest::new(ids.into_iter().map(TokenId).collect(), params.clone())).to_vec()
}

fn end(engine: &EngineHandle) {
    engine.drain();
    engine.join();
}

/// Tokens of all requests, submitted together.
fn answers(runner: impl StepRunner, config: EngineConfig) -> Vec<Vec<TokenId>> {
    let engine = Engine::start(runner, config).unwrap();
    let streams: Vec<_> = requests().into_iter().map(|request| engine.submit(request).unwrap()).collect();
    let events: Vec<Vec<TokenEvent>> = streams.into_iter().map(all_events).collect();
    // Again, now from what was stored.
    let again = all_events(engine.submit(requests().remove(0)).unwrap());
    assert_eq!(tokens(&again), tokens(&events[0]));
    end(&engine);
    events.iter().map(|events| tokens(events)).collect()
}

#[test]
fn requests_together_on_recorded_steps() {
    for (plane, tag) in [(32, "k3"), (64, "kl")] {
        let Some(emulator) = rig::emulator(plane, 5) else { return };
        let (model, replays) = (Tiny::new(tag), emulator.replays());
        let gpu = model.runner_on(Gpu::new(emulator, OnDemand), &config(&model));
        let found = answers(gpu, config(&model));
        let alone = EngineConfig { max_running_requests: 1, ..config(&model) };
        assert_eq!(found, answers(model.runner(&alone), alone.clone()), "{tag}");
        assert!(found.iter().all(|tokens| tokens.len() == 8));
        assert!(replays.load(Ordering::Relaxed) >= 4, "no step was replayed");
    }
}
