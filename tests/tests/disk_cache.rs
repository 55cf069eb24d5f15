//! Prefixes that went to disk, with an engine that is gone in between, against the same requests cold: equal to the last bit.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // all of it is test code

use std::path::{Path, PathBuf};
use std::sync::LazyLock;
use std::time::{Duration, Instant};

use perilune_engine::{
    CacheConfig, CheckpointRules, DiskConfig, DiskPatience, DiskStore, DiskTier, Engine, EngineConfig, EngineHandle,
    GenerateRequest, Identity, Prefixes, StateFormat, TokenEvent,
};
use perilune_tensor::TokenId;
use perilune_tests::{Tiny, all_events, demo_room, demo_runner, drawn_request as request, text};

const BLOCK: usize = 16;
const ME: Identity = Identity([3; 32]);

static MODEL: LazyLock<Tiny> = LazyLock::new(|| Tiny::new("k3"));

fn config(units: (usize, usize)) -> EngineConfig {
    EngineConfig {
        max_running_requests: 4,
        max_queued_requests: 100,
        random_seed: None,
        chunked_prefill_size: 64,
        max_prompt_logit_rows: 64,
        max_drafts: 0,
        context_length: 600,
        cache: MODEL.room(BLOCK, units),
        checkpoints: CheckpointRules { interval: 0, least_gap: BLOCK },
        eos_ids: vec![],
    }
}

fn cold() -> EngineHandle {
    let config = config((100, 4));
    let config = EngineConfig { cache: CacheConfig { prefixes: Prefixes::Forget, ..config.cache }, ..config };
    Engine::start(MODEL.runner(&config), config).unwrap()
}

fn tier(dir: &Path, identity: Identity) -> DiskTier {
    let (store, found) = DiskStore::open(dir, identity).unwrap();
    // Machines that run tests may be slow.
    let patience = DiskPatience { read: Duration::from_secs(60), save: Duration::from_secs(60) };
    DiskTier { store, found, config: DiskConfig { len: 100 << 20, queue_len: 100 << 20 }, patience }
}

fn engine(dir: &Path, units: (usize, usize)) -> EngineHandle {
    let config = config(units);
    Engine::start_with_disk(MODEL.runner(&config), config, tier(dir, ME)).unwrap()
}

fn run(engine: &EngineHandle, prompt: &[TokenId], max_tokens: usize) -> (Vec<TokenEvent>, usize) {
    let mut events = all_events(engine.submit(request(prompt, max_tokens)).unwrap());
    let Some(TokenEvent::Finished { usage, .. }) = events.pop() else { panic!("{events:?}") };
    (events, usage.cached_tokens)
}

/// Waits until nothing more is written: what is on its way serves nobody, and a busy machine takes its time.
fn wait_for_writes(engine: &EngineHandle) {
    let writes = || engine.stats().prefixes.disk_writes;
    let (mut before, mut quiet_since) = (writes(), Instant::now());
    while quiet_since.elapsed() < Duration::from_millis(300) {
        std::thread::sleep(Duration::from_millis(10));
        if writes() != before {
            (before, quiet_since) = (writes(), Instant::now());
        }
    }
}

fn records(dir: &Path) -> Vec<PathBuf> {
    let all = std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path());
    let mut records: Vec<PathBuf> = all.filter(|path| path.extension().is_some_and(|e| e == "record")).collect();
    records.sort();
    records
}

#[test]
fn a_restart_at_every_place_around_the_ends_of_blocks() {
    let (cold, dir) = (cold(), tempfile::tempdir().unwrap());
    let first = engine(dir.path(), (300, 60));
    let prompts: Vec<_> = (2 * BLOCK - 1..=4 * BLOCK + 1).map(|len| text(100 + len as u32, len)).collect();
    for prompt in &prompts {
        run(&first, prompt, 1);
    }
    perilune_tests::stopped(&first);
    let second = engine(dir.path(), (300, 60));
    for prompt in &prompts {
        for more in [1, 2] {
            let longer = [&prompt[..], &text(9, more)].concat();
            let (events, cached) = run(&second, &longer, 4);
            assert_eq!(events, run(&cold, &longer, 4).0, "{} tokens, then {more}", prompt.len());
            assert!(cached >= prompt.len(), "{cached} of {} came back", prompt.len());
        }
        // One token fewer than what is stored: nothing of it may be used beyond its place.
        let (events, cached) = run(&second, &prompt[..prompt.len() - 1], 4);
        assert_eq!(events, run(&cold, &prompt[..prompt.len() - 1], 4).0);
        assert!(cached < prompt.len() - 1);
    }
    let stats = second.stats().prefixes;
    assert!(stats.disk_restores as usize >= prompts.len() && stats.disk_losses == 0, "{stats:?}");
    perilune_tests::stopped(&second);
}

#[test]
fn what_gives_way_in_memory_goes_to_disk_and_comes_back() {
    let (cold, dir) = (cold(), tempfile::tempdir().unwrap());
    for host_units in [0, 12] {
        let small = config((40, 4));
        let cache = CacheConfig { host_len: host_units * small.cache.arena.slot_len, ..small.cache };
        let small = EngineConfig { cache, ..small };
        let engine = Engine::start_with_disk(MODEL.runner(&small), small, tier(dir.path(), ME)).unwrap();
        let prompts: Vec<_> = (0..8).map(|i| text(200 + i, 200 + 13 * i as usize)).collect();
        for round in 0..3 {
            for prompt in &prompts {
                let longer = [&prompt[..], &text(round, 9)].concat();
                let (events, _) = run(&engine, &longer, 5);
                assert_eq!(events, run(&cold, &longer, 5).0);
            }
            wait_for_writes(&engine);
        }
        let stats = engine.stats().prefixes;
        assert!(stats.disk_writes > 5 && stats.disk_restores > 5 && stats.disk_losses == 0, "{stats:?}");
        engine.flush_cache();
        perilune_tests::stopped(&engine);
        assert!(records(dir.path()).is_empty(), "a flush reaches the disk");
    }
}

#[test]
fn a_spoilt_file_costs_time_and_nothing_else() {
    let cold = cold();
    let prompt = text(5, 150);
    let longer = [&prompt[..], &text(6, 3)].concat();
    let expected = run(&cold, &longer, 6).0;
    let mut lost = 0;
    for which in 0.. {
        let dir = tempfile::tempdir().unwrap();
        let first = engine(dir.path(), (100, 8));
        run(&first, &prompt, 1);
        perilune_tests::stopped(&first);
        let files = records(dir.path());
        assert!(files.len() >= 11, "nine blocks, a tail, a state: {files:?}");
        if which == files.len() {
            assert!(lost >= 11, "{lost} of {which} were needed");
            break;
        }
        let mut bytes = std::fs::read(&files[which]).unwrap();
        let last = bytes.len() - 1 - which;
        bytes[last] ^= 4;
        std::fs::write(&files[which], bytes).unwrap();
        let second = engine(dir.path(), (100, 8));
        let (events, cached) = run(&second, &longer, 6);
        assert_eq!(events, expected, "record {which}");
        // Another state may be whole, and what is not needed is not read.
        let losses = second.stats().prefixes.disk_losses;
        assert!(losses <= 1 && (losses == 0 || cached < 150), "{cached} stored, {losses} lost");
        assert_eq!(run(&second, &longer, 6).0, expected);
        assert!(losses == 0 || !files[which].exists(), "the spoilt file is gone");
        lost += losses;
        perilune_tests::stopped(&second);
    }
}

#[test]
fn another_models_files_are_a_miss_and_are_removed() {
    let dir = tempfile::tempdir().unwrap();
    let first = engine(dir.path(), (100, 8));
    run(&first, &text(5, 100), 1);
    perilune_tests::stopped(&first);
    assert!(!records(dir.path()).is_empty());
    let config = config((100, 8));
    let other = tier(dir.path(), Identity([4; 32]));
    assert!(other.found.records.is_empty() && records(dir.path()).is_empty());
    let engine = Engine::start_with_disk(MODEL.runner(&config), config, other).unwrap();
    assert_eq!(run(&engine, &text(5, 101), 1).1, 0);
    perilune_tests::stopped(&engine);
}

#[test]
fn tenants_meet_on_disk_no_more_than_in_memory() {
    let dir = tempfile::tempdir().unwrap();
    let prompt = text(6, 100);
    let cached = |engine: &EngineHandle, salt: Option<&str>, more: u32| {
        let longer = [&prompt[..], &text(7 + more, 3)].concat();
        let request = GenerateRequest { cache_salt: salt.map(str::to_owned), ..request(&longer, 1) };
        let events = all_events(engine.submit(request).unwrap());
        let Some(TokenEvent::Finished { usage, .. }) = events.last() else { panic!("{events:?}") };
        usage.cached_tokens
    };
    let salts = [Some("a"), None];
    for (i, salt) in salts.into_iter().enumerate() {
        // Another process for each, so that all they could share is on disk.
        let engine = engine(dir.path(), (100, 8));
        assert_eq!(cached(&engine, salt, 0), 0, "{salt:?} after {i} others");
        perilune_tests::stopped(&engine);
    }
    let engine = engine(dir.path(), (100, 8));
    assert_eq!(cached(&engine, Some("b"), 1), 0);
    for salt in salts {
        assert!(cached(&engine, salt, 0) >= prompt.len(), "{salt:?} has its own");
    }
    perilune_tests::stopped(&engine);
}

#[test]
fn a_directory_that_vanishes_is_counted_and_requests_go_on() {
    let (cold, dir) = (cold(), tempfile::tempdir().unwrap());
    let inner = dir.path().join("inner");
    let engine = engine(&inner, (40, 4));
    std::fs::remove_dir_all(&inner).unwrap();
    for which in 0..8 {
        let prompt = text(300 + which, 200);
        assert_eq!(run(&engine, &prompt, 3).0, run(&cold, &prompt, 3).0);
    }
    let begin = Instant::now();
    perilune_tests::stopped(&engine);
    assert!(begin.elapsed() < Duration::from_secs(30));
    let (stats, usage) = (engine.stats().prefixes, engine.stats().usage);
    assert!(stats.disk_skips > 0 && stats.disk_restores == 0, "{stats:?}");
    assert_eq!(usage.disk_used, 0, "nothing is there, and nothing is counted");
}

/// The device that is always full stands where each record is to be written, then no more.
#[cfg(target_os = "linux")]
#[test]
fn a_full_disk_costs_prefixes_and_no_answers() {
    let (cold, dir) = (cold(), tempfile::tempdir().unwrap());
    let engine = engine(dir.path(), (40, 4));
    let ask = |which: u32| {
        let prompt = text(300 + which, 200);
        assert_eq!(run(&engine, &prompt, 3).0, run(&cold, &prompt, 3).0, "prompt {which}");
    };
    let partial = |id: u64| dir.path().join(format!("{id:016x}.partial"));
    (1..400).for_each(|id| std::os::unix::fs::symlink("/dev/full", partial(id)).unwrap());
    (0..8).for_each(ask);
    eventually("a write fails", || {
        ask(0);
        engine.stats().prefixes.disk_skips > 0
    });
    let usage = engine.stats().usage;
    assert!(usage.disk_len <= usage.disk_used, "no more than is there may be there: {usage:?}");
    // Somebody makes room, and says so.
    (1..400).for_each(|id| drop(std::fs::remove_file(partial(id))));
    engine.flush_cache();
    (8..16).for_each(ask);
    eventually("records are written again", || {
        ask(0);
        !records(dir.path()).is_empty()
    });
    perilune_tests::stopped(&engine);
    let second = self::engine(dir.path(), (40, 4));
    let longer = [&text(315, 200)[..], &text(9, 2)].concat();
    let (events, cached) = run(&second, &longer, 4);
    assert_eq!((events, cached >= 199), (run(&cold, &longer, 4).0, true), "{cached} stored");
    perilune_tests::stopped(&second);
}

/// Waits for what another thread does; `condition` may ask for more of it.
fn eventually(what: &str, mut condition: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(60);
    while !condition() {
        assert!(Instant::now() < deadline, "never: {what}");
    }
}

/// A pipe that nobody writes to stands where the records were.
#[cfg(target_os = "linux")]
#[test]
fn a_disk_that_does_not_answer_costs_a_wait_and_nothing_else() {
    let (cold, dir) = (cold(), tempfile::tempdir().unwrap());
    let first = engine(dir.path(), (100, 8));
    let prompt = text(5, 150);
    run(&first, &prompt, 1);
    perilune_tests::stopped(&first);
    let config = config((100, 8));
    let patience = DiskPatience { read: Duration::from_millis(300), save: Duration::from_millis(300) };
    let second = DiskTier { patience, ..tier(dir.path(), ME) };
    let second = Engine::start_with_disk(MODEL.runner(&config), config, second).unwrap();
    let files = records(dir.path());
    for file in &files {
        std::fs::remove_file(file).unwrap();
        assert!(std::process::Command::new("mkfifo").arg(file).status().unwrap().success());
    }
    let longer = [&prompt[..], &text(6, 3)].concat();
    let begin = Instant::now();
    let (events, cached) = run(&second, &longer, 6);
    assert!(begin.elapsed() >= patience.read, "it was meant to wait");
    assert_eq!((events, cached), (run(&cold, &longer, 6).0, 0));
    assert!(run(&second, &longer, 6).1 >= 150, "memory needs no disk");
    // The disk answers at last, with nothing.
    let answer = std::fs::File::options().read(true).write(true).open(&files[0]).unwrap();
    eventually("the read ends", || {
        run(&second, &text(77, 20), 1);
        second.stats().prefixes.disk_losses > 0
    });
    drop(answer);
    files.iter().for_each(|file| drop(std::fs::remove_file(file)));
    perilune_tests::stopped(&second);
}

#[test]
fn many_that_want_the_same_and_callers_that_leave() {
    let (cold, dir) = (cold(), tempfile::tempdir().unwrap());
    let first = engine(dir.path(), (100, 8));
    let prompt = text(5, 300);
    run(&first, &prompt, 1);
    perilune_tests::stopped(&first);
    let second = engine(dir.path(), (100, 8));
    let longer: Vec<_> = (0..6).map(|i| [&prompt[..], &text(40 + i, 4)].concat()).collect();
    let mut streams: Vec<_> = longer.iter().map(|p| second.submit(request(p, 4)).unwrap()).collect();
    drop(streams.swap_remove(5));
    for (stream, prompt) in streams.into_iter().zip(&longer) {
        let mut events = all_events(stream);
        let Some(TokenEvent::Finished { usage, .. }) = events.pop() else { panic!("{events:?}") };
        assert_eq!((events, usage.cached_tokens), (run(&cold, prompt, 4).0, 300));
    }
    assert_eq!(second.stats().prefixes.disk_restores, 1);
    perilune_tests::stopped(&second);
}

/// Time to the first token.
fn first_token(engine: &EngineHandle, prompt: &[TokenId]) -> Duration {
    let begin = Instant::now();
    let mut stream = engine.submit(request(prompt, 2)).unwrap();
    assert!(matches!(stream.blocking_next(), Some(TokenEvent::Token { .. })));
    let time = begin.elapsed();
    all_events(stream);
    time
}

#[test]
fn a_prefix_on_disk_is_there_sooner_than_it_is_computed() {
    let dir = tempfile::tempdir().unwrap();
    let config = EngineConfig { cache: demo_room(64, (300, 8)), context_length: 8192, ..config((1, 1)) };
    let start = || Engine::start_with_disk(demo_runner(&config), config.clone(), tier(dir.path(), ME)).unwrap();
    let prefix: Vec<TokenId> = (0..4096_u32).map(|i| TokenId(300 + (i * i + 3 * i) % 1500)).collect();
    let first = start();
    let cold = first_token(&first, &prefix);
    perilune_tests::stopped(&first);
    let second = start();
    let warm = first_token(&second, &[&prefix[..], &[TokenId(7)]].concat());
    // States were saved before the last token of the prompt, which is always computed, and after the answer, which goes on
    // otherwise than this prompt.
    assert_eq!(second.stats().prefixes.hit_tokens, 4095);
    eprintln!("first token after 4096 tokens: {cold:?} cold, {warm:?} from disk");
    assert!(warm * 3 < cold, "{warm:?} from disk, {cold:?} without");
    perilune_tests::stopped(&second);
}

/// The first token's log-probability.
fn first_logprob(events: &[TokenEvent]) -> f32 {
    let Some(TokenEvent::Token { logprobs: Some(logprobs), .. }) = events.first() else { panic!("{events:?}") };
    logprobs.chosen.logprob
}

#[test]
fn rounded_states_take_less_and_answers_stay_near() {
    let cold = cold();
    let mut states = Vec::new();
    for format in [StateFormat::F32, StateFormat::Bf16, StateFormat::Int8] {
        let dir = tempfile::tempdir().unwrap();
        let config = config((100, 8));
        let start = || {
            let runner = MODEL.runner(&config).with_state_format(format).unwrap();
            Engine::start_with_disk(runner, config.clone(), tier(dir.path(), ME)).unwrap()
        };
        let first = start();
        let prompt = text(5, 4 * BLOCK);
        run(&first, &prompt, 1);
        perilune_tests::stopped(&first);
        let second = start();
        let longer = [&prompt[..], &text(6, 3)].concat();
        let ((events, cached), exact) = (run(&second, &longer, 6), run(&cold, &longer, 6).0);
        assert!(cached >= prompt.len(), "{cached} came back");
        let difference = (first_logprob(&events) - first_logprob(&exact)).abs();
        let bound = if format == StateFormat::F32 { 0.0 } else { 0.3 };
        assert!(difference <= bound, "{format:?}: {difference}");
        states.push(second.stats().usage.disk_used);
        perilune_tests::stopped(&second);
    }
    assert!(states[1] < states[0] && states[2] < states[1], "{states:?}");
}

#[test]
fn tiers_that_cannot_work_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let config = config((40, 4));
    let none = EngineConfig { cache: CacheConfig { prefixes: Prefixes::Forget, ..config.cache }, ..config.clone() };
    let error = Engine::start_with_disk(MODEL.runner(&none), none.clone(), tier(dir.path(), ME)).unwrap_err();
    assert!(error.to_string().contains("not kept"), "{error}");
    let small = DiskTier { config: DiskConfig { len: 10, queue_len: 10 }, ..tier(dir.path(), ME) };
    let error = Engine::start_with_disk(MODEL.runner(&config), config.clone(), small).unwrap_err();
    assert!(error.to_string().contains("hold no state"), "{error}");
}
