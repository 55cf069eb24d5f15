//! A draft that takes in the target's streams late proposes what it would have proposed otherwise.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // all of it is test code

use perilune_engine::{CheckpointRules, Engine, EngineConfig, EngineHandle, GenerateRequest, SamplingParams, Usage};
use perilune_engine::{TokenEvent, TokenStream};
use perilune_tensor::TokenId;
use perilune_tests::{DemoDraft, all_events, stopped, tokens};

fn engine() -> EngineHandle {
    let draft = DemoDraft::load();
    let config = EngineConfig {
        max_running_requests: 4,
        max_queued_requests: 16,
        random_seed: Some(3),
        chunked_prefill_size: 256,
        max_prompt_logit_rows: 16,
        max_drafts: 7,
        context_length: 1024,
        cache: draft.room(16, (400, 24)),
        checkpoints: CheckpointRules { interval: 64, least_gap: 16 },
        eos_ids: Vec::new(),
    };
    Engine::start(draft.runner(&config), config).unwrap()
}

fn ask(engine: &EngineHandle, prompts: &[Vec<TokenId>], max_drafts: Option<usize>) -> Vec<(Vec<TokenId>, Usage)> {
    let request = |prompt: &Vec<TokenId>| {
        let params = SamplingParams { max_drafts, ..SamplingParams::greedy(90) };
        engine.submit(GenerateRequest::new(prompt.clone(), params)).unwrap()
    };
    let streams: Vec<TokenStream> = prompts.iter().map(request).collect();
    let answer = |stream| {
        let events = all_events(stream);
        let Some(TokenEvent::Finished { usage, .. }) = events.last() else { panic!("{events:?}") };
        (tokens(&events), *usage)
    };
    streams.into_iter().map(answer).collect()
}

/// Conversations go on after answers that were made without drafts, or with them.
fn second_answers(first_drafts: Option<usize>) -> Vec<(Vec<TokenId>, Usage)> {
    let engine = engine();
    let prompts: Vec<Vec<TokenId>> =
        (0..3).map(|n| (0..20 + 7 * n).map(|i| TokenId(300 + (i * 37 + n * 11) % 900)).collect()).collect();
    let answers = ask(&engine, &prompts, first_drafts);
    let together =
        prompts.iter().zip(&answers).map(|(prompt, (answer, _))| [&prompt[..], answer, &prompt[..9]].concat());
    let second: Vec<(Vec<TokenId>, Usage)> = together.flat_map(|prompt| ask(&engine, &[prompt], None)).collect();
    stopped(&engine);
    second
}

#[test]
fn what_was_taken_in_late_is_as_good_to_draft_from() {
    let (late, at_once) = (second_answers(Some(0)), second_answers(None));
    for ((late, after_late), (at_once, after)) in late.iter().zip(&at_once) {
        assert_eq!(late, at_once);
        assert!(after_late.cached_tokens > 60 && after.cached_tokens > 60, "{after_late:?}, {after:?}");
        assert!(after.accepted_tokens > 0, "{after:?}");
        assert_eq!(
            (after_late.drafted_tokens, after_late.accepted_tokens),
            (after.drafted_tokens, after.accepted_tokens)
        );
    }
}
