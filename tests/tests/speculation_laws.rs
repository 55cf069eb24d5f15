//! Speculation changes nothing but the speed: greedy output token for token whatever the draft, sampled output in
//! distribution, and everything around it: stops, limits, caches, corrupt rows.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // all of it is test code

use std::collections::BTreeMap;

use perilune_backend::uniform;
use perilune_engine::{
    CacheConfig, CheckpointRules, Engine, EngineConfig, EngineHandle, FinishReason, GenerateRequest, Prefixes,
    SamplingParams, TokenEvent, TokenStream, Usage,
};
use perilune_tensor::TokenId;
use perilune_tests::{ByChance, ByHeart, Tiny, all_events, finish, stopped, tokens};

const VOCAB: usize = 64;
const EOS: TokenId = TokenId(1);

fn config(model: &Tiny, running: usize) -> EngineConfig {
    EngineConfig {
        max_running_requests: running,
        max_queued_requests: 100_000,
        random_seed: Some(17),
        chunked_prefill_size: 64,
        max_prompt_logit_rows: 16,
        max_drafts: 0,
        context_length: 400,
        cache: model.room(16, (26 * running, 3 * running)),
        checkpoints: CheckpointRules { interval: 16, least_gap: 4 },
        eos_ids: vec![EOS],
    }
}

fn plain(model: &Tiny) -> EngineHandle {
    let config = config(model, 16);
    let cache = CacheConfig { prefixes: Prefixes::Forget, ..config.cache };
    let config = EngineConfig { cache, ..config };
    Engine::start(model.runner(&config), config).unwrap()
}

/// With a draft that knows a book.
fn by_heart(model: &Tiny, book: &[Vec<TokenId>], (max_drafts, wrong_at): (usize, Option<usize>)) -> EngineHandle {
    let config = EngineConfig { max_drafts, ..config(model, 16) };
    let draft = ByHeart { book: book.to_vec(), max_drafts, wrong_at, vocab_size: VOCAB };
    Engine::start(model.speculating(&config, draft), config).unwrap()
}

fn run(engine: &EngineHandle, requests: &[GenerateRequest]) -> Vec<Vec<TokenEvent>> {
    let streams: Vec<TokenStream> = requests.iter().map(|request| engine.submit(request.clone()).unwrap()).collect();
    streams.into_iter().map(all_events).collect()
}

/// But for how much was remembered or drafted.
fn comparable(mut events: Vec<TokenEvent>) -> Vec<TokenEvent> {
    if let Some(TokenEvent::Finished { usage, .. }) = events.last_mut() {
        *usage = Usage { cached_tokens: 0, drafted_tokens: 0, accepted_tokens: 0, ..*usage };
    }
    events
}

fn usage(events: &[TokenEvent]) -> Usage {
    match events.last() {
        Some(TokenEvent::Finished { usage, .. }) => *usage,
        other => panic!("{other:?}"),
    }
}

fn book(requests: &[GenerateRequest], events: &[Vec<TokenEvent>]) -> Vec<Vec<TokenId>> {
    requests.iter().zip(events).map(|(request, events)| [&request.prompt[..], &tokens(events)].concat()).collect()
}

fn greedy() -> SamplingParams {
    SamplingParams { temperature: 0.0, max_tokens: Some(32), ..SamplingParams::default() }
}

/// Greedy requests with one feature or another.
fn requests(count: usize, seed: u64) -> Vec<GenerateRequest> {
    let number = |i: usize, j: u64, below: usize| (uniform(seed + i as u64, j) * below as f64) as usize;
    let request = |i: usize| {
        let prompt = (0..1 + number(i, 0, 50)).map(|j| TokenId(2 + number(i, 10 + j as u64, 60) as u32)).collect();
        let mut params = SamplingParams { max_tokens: Some(1 + number(i, 1, 40)), ..greedy() };
        match i % 7 {
            0 => params.frequency_penalty = 0.7,
            1 => params.logprobs = Some(3),
            2 => params.stop_token_ids = (0..6).map(|j| TokenId(number(i, 100 + j, VOCAB) as u32)).collect(),
            3 => params.logit_bias = vec![(TokenId(number(i, 3, VOCAB) as u32), 4.0), (TokenId(7), -100.0)],
            4 => (params.repetition_penalty, params.prompt_logprobs) = (1.3, Some(1)),
            5 => params.min_tokens = params.max_tokens.unwrap() / 2,
            _ => params.ignore_eos = true,
        }
        GenerateRequest::new(prompt, params)
    };
    (0..count).map(request).collect()
}

#[test]
fn greedy_output_is_the_same_whatever_the_draft() {
    let model = Tiny::new("k3");
    let requests = requests(500, 3);
    let expected = run(&plain(&model), &requests);
    let book = book(&requests, &expected);
    let drafts = [(7, None), (3, None), (1, None)].into_iter().chain((0..7).map(|k| (7, Some(k))));
    for (max_drafts, wrong_at) in drafts {
        let engine = by_heart(&model, &book, (max_drafts, wrong_at));
        let found = run(&engine, &requests);
        for (i, (found, expected)) in found.into_iter().zip(&expected).enumerate() {
            assert_eq!(&comparable(found), expected, "request {i}, {max_drafts} drafts, wrong from {wrong_at:?} on");
        }
        let stats = stopped(&engine).drafts;
        let right = wrong_at.unwrap_or(max_drafts);
        for place in 0..max_drafts {
            let (drafted, accepted) = (stats.drafted[place], stats.accepted[place]);
            assert!(drafted > 500, "{drafted} drafts at place {place}");
            // Nearly all right ones, but for features that make the book wrong; next to none of the wrong ones.
            let enough = if place < right { accepted * 10 > drafted * 8 } else { accepted * 100 < drafted };
            assert!(enough, "{accepted} of {drafted} at place {place}, wrong from {wrong_at:?} on");
        }
        if wrong_at.is_none() {
            assert!(stats.accept_length().unwrap() > 0.5 + max_drafts as f64 / 2.0, "{stats:?}");
        }
    }
}

#[test]
fn both_families_and_drafts_that_know_nothing() {
    let model = Tiny::new("kl");
    let requests = requests(60, 9);
    let expected = run(&plain(&model), &requests);
    for book in [book(&requests, &expected), Vec::new()] {
        let engine = by_heart(&model, &book, (7, None));
        let found = run(&engine, &requests);
        assert_eq!(found.into_iter().map(comparable).collect::<Vec<_>>(), expected);
        stopped(&engine);
    }
}

#[test]
fn a_seed_draws_the_same_tokens_whatever_the_draft() {
    let model = Tiny::new("k3");
    let params = |seed: u64| SamplingParams {
        temperature: 0.3 + (seed % 3) as f32 * 0.4,
        top_p: if seed.is_multiple_of(2) { 0.9 } else { 1.0 },
        frequency_penalty: if seed.is_multiple_of(5) { 0.5 } else { 0.0 },
        logprobs: (seed.is_multiple_of(4)).then_some(2),
        seed: Some(seed),
        max_tokens: Some(24),
        ..SamplingParams::default()
    };
    let prompt = |seed: u64| [5, 15, 39, seed as u32 % 40].map(TokenId).to_vec();
    let requests: Vec<_> = (0..200).map(|seed| GenerateRequest::new(prompt(seed), params(seed))).collect();
    let expected = run(&plain(&model), &requests);
    let config = EngineConfig { max_drafts: 5, ..config(&model, 16) };
    let draft = ByChance { max_drafts: 5, vocab_size: VOCAB, sharpness: 1.0 };
    let by_chance = Engine::start(model.speculating(&config, draft), config.clone()).unwrap();
    for engine in [by_chance, by_heart(&model, &book(&requests, &expected), (7, None))] {
        let found = run(&engine, &requests);
        for (i, (found, expected)) in found.into_iter().zip(&expected).enumerate() {
            assert_eq!(&comparable(found), expected, "request {i}");
        }
        let stats = stopped(&engine).drafts;
        assert!(stats.drafted[0] > 500 && stats.accepted[0] > 20, "{stats:?}");
    }
}

/// Counts of the second and third token of many samples, which is where drafts come in.
fn pairs(engine: &EngineHandle, params: &SamplingParams, samples: u64) -> BTreeMap<(u32, u32), f64> {
    // Without a seed of its own: with one, every token is that of a run without drafts.
    let params = SamplingParams { seed: None, max_tokens: Some(4), ignore_eos: true, ..params.clone() };
    let request = GenerateRequest::new([5, 15, 39].map(TokenId).to_vec(), params);
    let mut counts = BTreeMap::new();
    for events in run(engine, &vec![request; samples as usize]) {
        let tokens = tokens(&events);
        *counts.entry((tokens[1].0, tokens[2].0)).or_insert(0.0) += 1.0;
    }
    counts
}

/// Of two samples of the same size over the same cells: statistic and degrees of freedom. Rare cells go together.
fn chi_square(a: &BTreeMap<(u32, u32), f64>, b: &BTreeMap<(u32, u32), f64>) -> (f64, f64) {
    let cells: std::collections::BTreeSet<_> = a.keys().chain(b.keys()).collect();
    let count = |sample: &BTreeMap<(u32, u32), f64>, cell| sample.get(cell).copied().unwrap_or(0.0);
    let (mut chi, mut used, mut rest) = (0.0, 0.0, (0.0, 0.0));
    let mut add = |(x, y): (f64, f64)| {
        chi += (x - y).powi(2) / (x + y);
        used += 1.0;
    };
    for cell in cells {
        let pair = (count(a, cell), count(b, cell));
        if pair.0 + pair.1 >= 20.0 { add(pair) } else { rest = (rest.0 + pair.0, rest.1 + pair.1) }
    }
    if rest.0 + rest.1 >= 20.0 {
        add(rest);
    }
    (chi, used - 1.0)
}

/// The value that chi-square passes once in a thousand (Wilson and Hilferty's approximation).
fn critical(df: f64) -> f64 {
    df * (1.0 - 2.0 / (9.0 * df) + 3.09 * (2.0 / (9.0 * df)).sqrt()).powi(3)
}

#[test]
fn drawn_output_has_the_same_distribution_with_and_without_a_draft() {
    const SAMPLES: u64 = 20_000;
    let model = Tiny::new("k3");
    let settings = [
        SamplingParams::default(),
        SamplingParams { top_p: 0.95, ..SamplingParams::default() },
        SamplingParams { min_p: 0.1, ..SamplingParams::default() },
        SamplingParams { frequency_penalty: 1.5, repetition_penalty: 1.4, top_k: 20, ..SamplingParams::default() },
    ];
    let without = plain(&model);
    let config = EngineConfig { max_drafts: 2, ..config(&model, 16) };
    let draft = |sharpness| ByChance { max_drafts: 2, vocab_size: VOCAB, sharpness };
    let blunt = Engine::start(model.speculating(&config, draft(1.0)), config.clone()).unwrap();
    // One that is certain proposes what a book says: here, that everything goes on as the greedy output does.
    let request = GenerateRequest::new([5, 15, 39].map(TokenId).to_vec(), greedy());
    let request = std::slice::from_ref(&request);
    let known = book(request, &run(&without, request));
    let certain = by_heart(&model, &known, (2, None));
    for params in settings {
        let expected = pairs(&without, &params, SAMPLES);
        let engines = if params == SamplingParams::default() { vec![&blunt, &certain] } else { vec![&blunt] };
        for engine in engines {
            let (chi, df) = chi_square(&pairs(engine, &params, SAMPLES), &expected);
            assert!(df > 3.0 && chi < critical(df), "{chi} at {df} degrees of freedom: {params:?}");
        }
    }
    for engine in [blunt, certain] {
        let stats = stopped(&engine).drafts;
        assert!(stats.accepted[0] > 500 && stats.drafted[1] > 10_000, "{stats:?}");
    }
}

#[test]
fn nothing_after_a_stop_or_the_limit_leaks() {
    let model = Tiny::new("k3");
    let prompt: Vec<TokenId> = (0..20).map(|i| TokenId(2 + i * 7 % 50)).collect();
    let request = |max_tokens, stops: &[TokenId]| {
        let params = SamplingParams {
            max_tokens: Some(max_tokens),
            stop_token_ids: stops.to_vec(),
            ignore_eos: true,
            ..greedy()
        };
        GenerateRequest::new(prompt.clone(), params)
    };
    let without = plain(&model);
    let long = request(40, &[]);
    let whole = run(&without, std::slice::from_ref(&long)).remove(0);
    let known = book(std::slice::from_ref(&long), std::slice::from_ref(&whole));
    let output = tokens(&whole);
    let engine = by_heart(&model, &known, (7, None));
    for at in 1..20 {
        let stop = output[at];
        let first = output.iter().position(|id| *id == stop).unwrap();
        for cap in [first, first + 1, first + 5] {
            let events = run(&engine, &[request(cap.max(1), &[stop])]).remove(0);
            let expected = run(&without, &[request(cap.max(1), &[stop])]).remove(0);
            assert_eq!(comparable(events.clone()), expected, "stop at {first}, {cap} tokens");
            let usage = usage(&events);
            assert_eq!(usage.completion_tokens, tokens(&events).len());
            assert!(usage.accepted_tokens <= usage.drafted_tokens);
            // What is remembered of it ends where the output does, not where the draft did.
            let went_on = [&prompt[..], &tokens(&events), &[TokenId(33), TokenId(34)]].concat();
            let next = GenerateRequest::new(went_on, greedy());
            let found = run(&engine, std::slice::from_ref(&next)).remove(0);
            assert_eq!(comparable(found), run(&without, &[next]).remove(0), "after a stop at {first}, {cap} tokens");
        }
    }
    assert!(matches!(finish(&whole), Some(FinishReason::Length)));
    let stats = stopped(&engine).drafts;
    assert!(stats.accepted[1] > 20 && stats.accepted[4] > 0, "{stats:?}");
}

#[test]
fn a_chat_of_twelve_turns_with_cache_and_draft_is_the_chat_without() {
    let model = Tiny::new("k3");
    let without = plain(&model);
    let mut history: Vec<TokenId> = (0..30).map(|i| TokenId(2 + i * 11 % 53)).collect();
    let (mut turns, mut known) = (Vec::new(), Vec::new());
    for turn in 0..12_u32 {
        history.extend((0..9).map(|i| TokenId(2 + (i * 5 + turn * 3) % 57)));
        let request = GenerateRequest::new(history.clone(), SamplingParams { max_tokens: Some(14), ..greedy() });
        let events = run(&without, std::slice::from_ref(&request)).remove(0);
        history.extend(tokens(&events));
        known.extend(book(std::slice::from_ref(&request), std::slice::from_ref(&events)));
        turns.push((request, events));
    }
    for wrong_at in [None, Some(0), Some(3)] {
        let engine = by_heart(&model, &known, (7, wrong_at));
        for (turn, (request, expected)) in turns.iter().chain(&turns[..1]).enumerate() {
            let events = run(&engine, std::slice::from_ref(request)).remove(0);
            let cached = usage(&events).cached_tokens;
            assert_eq!(&comparable(events), expected, "turn {turn}, wrong from {wrong_at:?} on");
            assert!(turn == 0 || cached > 0, "turn {turn} was meant to go on from the one before");
        }
        stopped(&engine);
    }
}

#[test]
fn a_long_prompt_in_chunks_beside_drafted_sequences_harms_nobody() {
    let model = Tiny::new("k3");
    let long = GenerateRequest::new((0..300).map(|i| TokenId(2 + i * 7 % 55)).collect(), greedy());
    let short = |i: u32| GenerateRequest::new((0..8).map(|j| TokenId(2 + (i * 9 + j) % 60)).collect(), greedy());
    let all = [short(0), short(1), short(2), long];
    let expected = run(&plain(&model), &all);
    let known = book(&all, &expected);
    let config = EngineConfig { max_drafts: 5, chunked_prefill_size: 16, ..config(&model, 8) };
    let draft = ByHeart { book: known, max_drafts: 5, wrong_at: Some(4), vocab_size: VOCAB };
    let engine = Engine::start(model.speculating(&config, draft), config).unwrap();
    let found = run(&engine, &all);
    assert_eq!(found.into_iter().map(comparable).collect::<Vec<_>>(), expected);
    assert!(stopped(&engine).drafts.accepted[2] > 0);
}

#[test]
fn a_draft_that_makes_later_rows_not_finite_corrupts_nobody() {
    let poison = TokenId(63);
    let model = Tiny::new("k3").with_poison(poison);
    let requests: Vec<GenerateRequest> = (0..6)
        .map(|i| {
            let params = SamplingParams {
                temperature: if i % 2 == 0 { 0.0 } else { 1.0 },
                logit_bias: vec![(poison, -100.0)],
                seed: Some(i),
                ..greedy()
            };
            GenerateRequest::new((0..9).map(|j| TokenId(2 + (i as u32 * 9 + j) % 60)).collect(), params)
        })
        .collect();
    let expected = run(&plain(&model), &requests);
    // After every known beginning it proposes the poison, in the middle of what is right.
    let poisoned = book(&requests, &expected)
        .into_iter()
        .flat_map(|known| (10..known.len()).map(move |at| [&known[..at], &[poison; 9]].concat()).collect::<Vec<_>>());
    let engine = by_heart(&model, &poisoned.collect::<Vec<_>>(), (5, None));
    for (i, (found, expected)) in run(&engine, &requests).into_iter().zip(&expected).enumerate() {
        assert!(finish(&found).is_some(), "request {i} was called corrupt");
        if i % 2 == 0 {
            assert_eq!(&comparable(found), expected, "request {i}");
        }
    }
    let stats = stopped(&engine);
    assert_eq!(stats.corrupted_requests, 0);
    assert!(stats.drafts.drafted[1] > 0);
}

#[test]
fn a_request_may_turn_it_off_and_more_drafts_than_rows_are_refused() {
    let model = Tiny::new("k3");
    let request = GenerateRequest::new(vec![TokenId(9); 5], SamplingParams { max_drafts: Some(0), ..greedy() });
    let expected = run(&plain(&model), std::slice::from_ref(&request));
    let engine = by_heart(&model, &book(std::slice::from_ref(&request), &expected), (7, None));
    let found = run(&engine, std::slice::from_ref(&request)).remove(0);
    assert_eq!(usage(&found).drafted_tokens, 0);
    let limited = GenerateRequest { params: SamplingParams { max_drafts: Some(2), ..request.params }, ..request };
    assert!(usage(&run(&engine, &[limited])[0]).drafted_tokens > 0);
    let stats = stopped(&engine).drafts;
    assert!(stats.drafted[1] > 0 && stats.drafted[2] == 0, "{stats:?}");
    let config = EngineConfig { max_drafts: 8, ..config(&model, 2) };
    let error = config.validate().unwrap_err().to_string();
    assert!(error.contains("max_drafts") && error.contains('8'), "{error}");
}
