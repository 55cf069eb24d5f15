//! Faults that other engines had with prefix caches of hybrid models, each with stored prefixes on the device, in host
//! memory and on disk, and each with and without drafts: equal to the same request alone, cold, undrafted and whole.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // all of it is test code

mod rig;

use perilune_engine::{CheckpointRules, FinishReason, TokenEvent};
use perilune_tests::{all_events, finish, text, tokens};

use rig::{Drafts, POISON, Rig, Rules, Tier, cases, combinations, comparable, request, usage};

/// Snapshots that nobody had written were taken for states (sgl-project/sglang #31474).
#[test]
fn two_continuations_of_one_prefix_in_memory_full_of_garbage() {
    for combination in combinations() {
        let prefix = text(1, 700);
        let (a, b) = ([&prefix[..], &text(2, 30)].concat(), [&prefix[..], &text(3, 41)].concat());
        let cases = cases([(a, 12), (b, 12)], combination.1);
        let mut rig = Rig::poisoned(combination, Rules::of(16), &cases);
        for i in 0..6 {
            let mut prompt = text(50 + i, 300);
            prompt[i as usize] = POISON;
            let events = all_events(rig.engine().submit(request(&prompt, 2, Drafts::Off)).unwrap());
            assert!(matches!(events.last(), Some(TokenEvent::Failed { .. })));
        }
        for (which, least) in [(0, 0), (1, 0), (0, 700), (1, 700), (0, 700)] {
            let cached = rig.check(&cases[which], "a continuation");
            assert!(cached >= least, "{combination:?}: {cached} tokens stored, not {least}");
            rig.push_out();
        }
        rig.check(&cases[1], "the last continuation");
        assert!(rig.came_back(), "{combination:?}: {:?}", rig.engine().stats().prefixes);
        rig.stop();
    }
}

/// Twelve turns, then the first again; caches together with drafts gave other answers (vllm #53912, #43559, #48375).
#[test]
fn a_chat_of_twelve_turns_and_the_first_again() {
    for combination in combinations() {
        let mut history = text(4, 60);
        let mut all = Vec::new();
        for turn in 0..12 {
            history.extend(text(20 + turn, 25));
            let case = cases([(history.clone(), 15)], combination.1).remove(0);
            history.extend(tokens(&case.expected));
            all.push(case);
        }
        let mut rig = Rig::new(combination, Rules::of(16), &all);
        for (turn, case) in all.iter().chain(&all[..1]).enumerate() {
            let cached = rig.check(case, &format!("turn {turn}"));
            let before = if turn == 0 { 0 } else { all[turn - 1].request.prompt.len() };
            assert!(turn == 12 || cached + 16 > before, "{combination:?}, turn {turn}: {cached} of {before} stored");
            rig.push_out();
        }
        if combination.1 != Drafts::Off && combination.0 != Tier::Disk {
            assert!(rig.engine().stats().drafts.accepted[0] > 0, "nothing was drafted");
        }
        rig.stop();
    }
}

/// An earlier prefill that ended a few tokens past a block (vllm #55766).
#[test]
fn a_prompt_that_ended_anywhere_around_a_block_and_one_token_more() {
    const BLOCK: usize = 16;
    for (combination, blocks) in combinations().flat_map(|combination| (1..4).map(move |blocks| (combination, blocks)))
    {
        let lens = blocks * BLOCK..(blocks + 1) * BLOCK;
        let prompt = |len: usize| text(100 + len as u32, len + 1);
        let longer = cases(lens.clone().map(|len| (prompt(len), 4)), combination.1);
        let first = cases(lens.clone().map(|len| (prompt(len)[..len].to_vec(), 1)), combination.1);
        let mut rig = Rig::new(combination, Rules { units: (150, 50), ..Rules::of(BLOCK) }, &longer);
        for case in &first {
            rig.check(case, "a beginning");
        }
        rig.push_out();
        for (len, case) in lens.zip(&longer) {
            let cached = rig.check(case, &format!("{len} tokens, then one more"));
            assert_eq!(cached, len, "{combination:?}: all that were computed are stored");
        }
        assert!(rig.came_back());
        rig.stop();
    }
}

/// Any block size, any interval (vllm #53142); an interval need not fit the kernel's chunk here.
#[test]
fn any_block_size_any_interval_and_a_return_at_every_saved_state() {
    let prompt = text(9, 1300);
    for combination in combinations().filter(|(_, drafts)| matches!(drafts, Drafts::Off | Drafts::Known(None))) {
        for (block_size, interval) in [(16, 64), (16, 1024), (64, 64), (64, 100), (64, 1024), (128, 128), (128, 1024)] {
            let checkpoints = CheckpointRules { interval, least_gap: 1 };
            let rules = Rules { checkpoints, units: (2600 / block_size, 40), chunk: 200, ..Rules::of(block_size) };
            let places: Vec<usize> = (interval..1300).step_by(interval.max(400)).collect();
            let lens: Vec<usize> = places.iter().flat_map(|saved| [saved - 1, *saved, saved + 1]).collect();
            // Another ending, so that nothing after the saved state fits.
            let ends = lens.iter().map(|len| ([&prompt[..*len], &text(77, 5)].concat(), 3));
            let all = cases([(prompt.clone(), 1)].into_iter().chain(ends), combination.1);
            let mut rig = Rig::new(combination, rules, &all);
            rig.check(&all[0], "the whole prompt");
            rig.push_out();
            for (len, case) in lens.iter().zip(&all[1..]) {
                let what = format!("blocks of {block_size}, every {interval}, {len} tokens alike");
                let cached = rig.check(case, &what);
                assert!(cached <= *len && cached + interval > *len, "{what}, {combination:?}: {cached} stored");
            }
            rig.stop();
        }
    }
}

/// A request that gave way resumes on its own state, not on a stale one (vllm-metal #488).
#[test]
fn requests_that_gave_way_resume_as_if_they_had_not() {
    for combination in combinations() {
        let prompts = (0..3).map(|i| (text(300 + i, 150 + 20 * i as usize), 110));
        let all = cases(prompts, combination.1);
        // Room for all three to start, and for two of them at their full length.
        let mut rig = Rig::new(combination, Rules { units: (39, 3), ..Rules::of(16) }, &all);
        let mut computed = Vec::new();
        for round in 0..2 {
            let streams: Vec<_> = all.iter().map(|case| rig.engine().submit(case.request.clone()).unwrap()).collect();
            for (stream, case) in streams.into_iter().zip(&all) {
                assert_eq!(comparable(all_events(stream)), case.expected, "{combination:?}, round {round}");
            }
            computed.push(rig.engine().stats().prefilled_tokens);
        }
        assert!(rig.stop().preemptions > 0, "{combination:?}: memory was meant to run out");
        if combination.0 == Tier::Host {
            // What was given up was not lost: nothing but the prompts was computed, and a token or two where one resumed.
            assert!(computed[0] < 510 + 60, "{combination:?}: {computed:?} computed");
        }
    }
}

/// Units leaked where a request was aborted between being matched and running (sglang #12693, #16067, #21404).
#[test]
fn callers_that_leave_at_any_stage_leave_nothing_behind() {
    for combination in combinations().filter(|(_, drafts)| *drafts != Drafts::Known(Some(2))) {
        let shared = text(4, 90);
        let prompt = |i: u32| [&shared[..], &text(i, 1 + i as usize % 20)].concat();
        let last = cases([(prompt(7), 9)], combination.1).remove(0);
        let mut rig = Rig::new(combination, Rules { units: (60, 5), ..Rules::of(16) }, std::slice::from_ref(&last));
        rig.check(&last, "before the others");
        rig.push_out();
        let mut leaving = Vec::new();
        for i in 0..250 {
            let request = request(&prompt(i), 1 + i as usize % 30, combination.1);
            leaving.push((rig.engine().submit(request).unwrap(), i as usize % 7));
            if leaving.len() > 12 {
                let (mut stream, patience) = leaving.swap_remove((i * 7919) as usize % leaving.len());
                (0..patience).for_each(|_| drop(stream.blocking_next()));
            }
        }
        drop(leaving);
        assert!(rig.check(&last, "after the others") > 80);
        let usage = rig.engine().stats().usage;
        let (block_len, slot_len) = rig.unit_lens();
        let held = usage.blocks_stored * block_len + usage.slots_stored * slot_len;
        assert_eq!(held + usage.free_len, usage.arena_len, "{combination:?}: {usage:?}");
        rig.engine().flush_cache();
        let usage = rig.stop().usage;
        assert_eq!((usage.free_len, usage.host_used, usage.disk_used), (usage.arena_len, 0, 0), "{combination:?}");
    }
}

/// Hybrid models computed the whole prompt again at each turn (llama.cpp #24055, #21831, #28302).
#[test]
fn each_turn_of_a_chat_computes_only_what_is_new() {
    for combination in combinations().filter(|(_, drafts)| *drafts != Drafts::Known(Some(2))) {
        for begin in [50, 500] {
            let mut history = text(1, begin);
            let mut all = Vec::new();
            for turn in 0..10 {
                let case = cases([(history.clone(), 12)], combination.1).remove(0);
                history.extend(tokens(&case.expected));
                history.extend(text(30 + turn, 60));
                all.push(case);
            }
            let mut rig = Rig::new(combination, Rules { units: (110, 6), ..Rules::of(16) }, &all);
            for (turn, case) in all.iter().enumerate() {
                let before = rig.engine().stats().prefilled_tokens;
                rig.check(case, &format!("turn {turn} from {begin}"));
                let computed = (rig.engine().stats().prefilled_tokens - before) as usize;
                let new = if turn == 0 { begin } else { 72 };
                assert!(computed <= new + 16, "{combination:?}, turn {turn} from {begin}: {computed} computed");
                rig.push_out();
            }
            rig.stop();
        }
    }
}

/// Drafted decoding beside a prompt in chunks, all of them after a hit (vllm #35447).
#[test]
fn a_long_prompt_in_chunks_beside_drafted_sequences_after_hits() {
    for combination in combinations() {
        let long = |end| [&text(40, 400)[..], &text(end, 150)].concat();
        let short = |i: u32| [&text(41 + i, 60)[..], &text(60 + i, 5)].concat();
        let all = cases([(short(0), 40), (short(1), 40), (short(2), 40), (long(70), 12)], combination.1);
        let beginnings =
            cases([(text(41, 60), 1), (text(42, 60), 1), (text(43, 60), 1), (text(40, 400), 1)], combination.1);
        let mut rig = Rig::new(combination, Rules { chunk: 16, ..Rules::of(16) }, &all);
        for case in &beginnings {
            rig.check(case, "a beginning");
        }
        rig.push_out();
        let streams: Vec<_> = all.iter().map(|case| rig.engine().submit(case.request.clone()).unwrap()).collect();
        for (i, (stream, case)) in streams.into_iter().zip(&all).enumerate() {
            let events = all_events(stream);
            let cached = usage(&events).cached_tokens;
            assert_eq!(comparable(events), case.expected, "request {i}, {combination:?}");
            assert!(cached >= 60, "request {i}, {combination:?}: {cached} stored");
        }
        rig.stop();
    }
}

/// After a hit the stream ended after three tokens, without a finish (Rapid-MLX #2586).
#[test]
fn a_second_turn_after_a_hit_has_all_its_tokens_and_an_end() {
    for combination in combinations() {
        let first = cases([(text(5, 90), 8)], combination.1).remove(0);
        let history = [&first.request.prompt[..], &tokens(&first.expected), &text(6, 20)].concat();
        let all = [first, cases([(history, 32)], combination.1).remove(0)];
        let mut rig = Rig::new(combination, Rules::of(16), &all);
        rig.check(&all[0], "the first turn");
        rig.push_out();
        let events = all_events(rig.engine().submit(all[1].request.clone()).unwrap());
        let usage = usage(&events);
        assert_eq!((tokens(&events).len(), finish(&events)), (32, Some(FinishReason::Length)), "{combination:?}");
        assert!(usage.cached_tokens >= 97 && usage.completion_tokens == 32, "{combination:?}: {usage:?}");
        assert_eq!(comparable(events), all[1].expected, "{combination:?}");
        if matches!(combination.1, Drafts::Known(_)) {
            assert!(usage.accepted_tokens > 0, "{combination:?}: drafts were meant to be kept");
        }
        rig.stop();
    }
}
