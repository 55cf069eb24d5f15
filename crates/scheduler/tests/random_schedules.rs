//! Random requests, pools, limits and aborts against what each request alone gives.
//!
//! Long because the world that plays a schedule checks everything about it in one place.
#![allow(clippy::expect_used, clippy::panic, reason = "test code")]

mod toy_model;

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};

use perilune_cache::{ArenaShape, CacheConfig, CacheKey, CacheManager, CacheStats, Place, Prefixes};
use perilune_sampling::{SamplingParams, TokenLogprobs};
use perilune_scheduler::{
    CheckpointRules, Draws, EventKind, FinishReason, RowOutcome, RunOutcome, Scheduler, SchedulerConfig, SeqId,
    SequenceRequest, StepPlan, Turn,
};
use perilune_tensor::TokenId;
use proptest::prelude::*;
use proptest::test_runner::{RngSeed, TestRunner};
use toy_model::{EOS, ToyModel, ToyRun, VOCAB, digest, draw, logprobs, mix, oracle, prompt_logprobs};

/// One request of a schedule.
#[derive(Debug, Clone)]
struct Plan {
    prompt: Vec<TokenId>,
    params: SamplingParams,
    seed: u64,
    key: CacheKey,
    hints: Vec<usize>,
    /// Step at which it arrives.
    arrival: usize,
    /// Steps after which its caller leaves.
    patience: Option<usize>,
}

#[derive(Debug, Clone)]
struct Schedule {
    requests: Vec<Plan>,
    config: SchedulerConfig,
    cache: CacheConfig,
    /// Sequences may not always draw; when is a matter of this number.
    moods: Option<u64>,
}

fn request() -> impl Strategy<Value = Plan> {
    // Few beginnings, so that many requests share one, up to where they part.
    let stem = |which: u32| (0..60u32).map(move |i| TokenId(1 + (i * 7 + which * 11) % (VOCAB - 1)));
    let own = prop::collection::vec((1..VOCAB).prop_map(TokenId), 1..12);
    let prompt = (0u32..3, 0usize..40, own)
        .prop_map(move |(which, shared, own)| stem(which).take(shared).chain(own).collect::<Vec<_>>());
    let limits = (0usize..30, 0usize..6, any::<bool>(), prop::option::weighted(0.2, Just(0usize)));
    let sharing = (prop::option::weighted(0.2, Just("tenant")), prop::collection::btree_set(1usize..50, 0..3));
    let when = (0usize..60, prop::option::weighted(0.2, 0usize..40));
    (prompt, limits, any::<u64>(), when, sharing).prop_map(|(prompt, limits, seed, (arrival, patience), sharing)| {
        let (salt, hints) = sharing;
        let (max_tokens, min_tokens, ignore_eos, prompt_logprobs) = limits;
        let params = SamplingParams {
            max_tokens: Some(max_tokens),
            min_tokens: min_tokens.min(max_tokens),
            ignore_eos,
            prompt_logprobs,
            logprobs: Some(0),
            ..SamplingParams::default()
        };
        let key = CacheKey { salt: salt.map(Into::into), ..CacheKey::default() };
        Plan { prompt, params, seed, key, hints: hints.into_iter().collect(), arrival, patience }
    })
}

fn config(
    (max_running, chunked_prefill_size, max_prompt_logit_rows): (usize, usize, usize),
    context_length: usize,
) -> SchedulerConfig {
    let checkpoints = CheckpointRules { interval: 0, least_gap: 1 };
    let eos_ids = vec![EOS];
    SchedulerConfig {
        max_running,
        chunked_prefill_size,
        max_prompt_logit_rows,
        context_length,
        eos_ids,
        max_drafts: 0,
        checkpoints,
    }
}

fn schedule() -> impl Strategy<Value = Schedule> {
    let limits = (1usize..6, 1usize..24, 1usize..8);
    let sizes = (1usize..6, 0usize..120, (1usize..4, 1usize..20), prop_oneof![Just(0usize), 1usize..200]);
    let drafts = prop_oneof![Just(0usize), 1usize..8];
    let rules = (prop_oneof![Just(0usize), 3usize..20], 1usize..8, prop::bool::weighted(0.9), drafts);
    let requests = (prop::collection::vec(request(), 1..14), prop::option::of(any::<u64>()));
    (requests, limits, sizes, rules).prop_map(|(requests, limits, sizes, (interval, least_gap, keep, max_drafts))| {
        let (requests, moods) = requests;
        let (max_running, chunked_prefill_size, max_prompt_logit_rows) = limits;
        let longest = requests.iter().map(|r| r.prompt.len() + r.params.max_tokens.unwrap_or(0)).max().unwrap_or(1);
        let (block_size, spare, (block_len, slot_len), host_len) = sizes;
        // Just enough for the longest request, and a little more: so that memory runs out all the time.
        let len = longest.div_ceil(block_size) * block_len + slot_len + spare;
        let mut config = config((max_running, chunked_prefill_size, max_prompt_logit_rows), longest);
        config.max_drafts = max_drafts;
        config.checkpoints = CheckpointRules { interval, least_gap };
        let arena = ArenaShape { len, block_len, slot_len };
        let prefixes = if keep { Prefixes::Keep } else { Prefixes::Forget };
        Schedule { requests, config, cache: CacheConfig { arena, block_size, prefixes, host_len }, moods }
    })
}

/// What one request's caller has seen.
#[derive(Debug, Default)]
struct Seen {
    prompt: Option<Vec<Option<TokenLogprobs>>>,
    tokens: Vec<TokenId>,
    logprobs: Vec<TokenLogprobs>,
    finish: Option<FinishReason>,
}

struct World {
    schedule: Schedule,
    scheduler: Scheduler,
    cache: CacheManager,
    model: ToyModel,
    seen: BTreeMap<SeqId, Seen>,
    /// Tokens of each running sequence that are in its memory.
    computed: BTreeMap<SeqId, usize>,
    preemptions: usize,
    started: BTreeSet<SeqId>,
    /// Tokens that sequences had when they started.
    reused: usize,
    /// Verifications of the last step, by the place of their run, and how much of each run was kept.
    verified: Vec<(usize, Verified)>,
    kept: Vec<usize>,
    drafted: usize,
    accepted: usize,
    steps: u64,
}

struct Verified {
    tokens: Vec<TokenId>,
    position: usize,
    slot: Place,
    snapshots: Vec<(usize, Place)>,
}

impl World {
    fn new(schedule: Schedule) -> Self {
        let (cache, arena) = (schedule.cache, schedule.cache.arena);
        World {
            scheduler: Scheduler::new(schedule.config.clone()),
            cache: CacheManager::new(cache),
            model: ToyModel::new(cache.block_size, arena.max_blocks(), arena.max_slots()),
            seen: BTreeMap::new(),
            computed: BTreeMap::new(),
            preemptions: 0,
            started: BTreeSet::new(),
            reused: 0,
            verified: Vec::new(),
            kept: Vec::new(),
            drafted: 0,
            accepted: 0,
            steps: 0,
            schedule,
        }
    }

    /// Runs until everything has ended; each step must bring something forward, so the number of steps is bounded.
    fn run(&mut self) {
        let mut order: Vec<_> = (0..self.schedule.requests.len()).collect();
        order.sort_by_key(|&i| self.schedule.requests[i].arrival);
        let mut arrived = Vec::new();
        for step in 0.. {
            assert!(step < 200_000, "no end in sight");
            while let Some(&i) = order.get(arrived.len()).filter(|&&i| self.schedule.requests[i].arrival <= step) {
                self.add(SeqId(arrived.len() as u64), i);
                arrived.push(i);
            }
            for (id, &i) in arrived.iter().enumerate() {
                let Plan { arrival, patience, .. } = self.schedule.requests[i];
                let leaves = patience.is_some_and(|p| arrival + p == step);
                if let Some(event) = leaves.then(|| self.scheduler.abort(SeqId(id as u64), &mut self.cache)).flatten() {
                    self.see(event.seq, event.kind);
                }
            }
            self.step();
            if self.scheduler.is_idle() && arrived.len() == order.len() {
                break;
            }
        }
        for (id, i) in arrived.into_iter().enumerate() {
            self.check_end(SeqId(id as u64), i);
        }
        let usage = self.cache.usage();
        assert_eq!((usage.blocks_used, usage.slots_used), (0, 0), "memory was not returned");
        self.check_numbers();
        self.cache.flush();
        self.perform_rest();
        let usage = self.cache.usage();
        assert_eq!((usage.free_len, usage.host_used), (usage.arena_len, 0), "memory was not returned: {usage:?}");
        assert_eq!((usage.nodes, usage.checkpoints, self.model.num_saved()), (0, 0, 0), "{usage:?}");
    }

    fn perform_rest(&mut self) {
        self.fold();
        self.cache.take_ops().into_iter().for_each(|op| self.model.perform(op));
    }

    /// Every unit is held or free, and what is held is within what there is.
    fn check_numbers(&mut self) {
        let (usage, arena) = (self.cache.usage(), self.schedule.cache.arena);
        let blocks = (usage.blocks_used + usage.blocks_stored) * arena.block_len;
        let slots = (usage.slots_used + usage.slots_stored) * arena.slot_len;
        assert_eq!(blocks + slots + usage.free_len, arena.len, "{usage:?}");
        assert!(usage.host_used <= usage.host_len, "{usage:?}");
        assert_eq!(usage.slots_used, self.scheduler.num_running(), "{usage:?}");
        if self.schedule.cache.prefixes == Prefixes::Forget {
            assert_eq!((usage.blocks_stored, usage.slots_stored, usage.checkpoints), (0, 0, 0));
        }
    }

    fn add(&mut self, id: SeqId, i: usize) {
        let Plan { prompt, params, seed, key, hints: checkpoint_hints, .. } = self.schedule.requests[i].clone();
        self.scheduler.add(SequenceRequest { id, prompt, params, seed, key, checkpoint_hints });
        self.seen.insert(id, Seen::default());
    }

    fn step(&mut self) {
        self.steps += 1;
        let (moods, steps) = (self.schedule.moods, self.steps);
        let turn = |id: SeqId| match moods.map_or(0, |moods| mix(moods ^ mix(steps) ^ id.0) % 3) {
            0 => Turn::Free,
            1 => Turn::NoDrafts,
            _ => Turn::Later,
        };
        let ready = self.decode_ready().into_iter().filter(|id| turn(*id) != Turn::Later).collect();
        let plan = self.scheduler.plan(&mut self.cache, &turn);
        for run in plan.runs.iter().filter(|run| run.draws == Draws::Token) {
            assert!(turn(run.seq) == Turn::Free || run.drafts == 0, "no drafts were to be made");
            assert_ne!(turn(run.seq), Turn::Later, "it was not to draw");
        }
        self.check_plan(&plan, &ready);
        self.preemptions += plan.preempted.len();
        // A plan without runs has no operations either: both wait for the next one.
        if !plan.runs.is_empty() {
            self.fold();
        }
        plan.ops.iter().for_each(|op| self.model.perform(*op));
        let outcomes = (0..plan.runs.len()).map(|i| self.compute(&plan, i)).collect();
        let committed = self.scheduler.commit(&mut self.cache, &plan, outcomes);
        for (run, kept) in plan.runs.iter().zip(&committed.kept) {
            self.computed.insert(run.seq, run.tokens.start + kept);
        }
        if !plan.runs.is_empty() {
            self.kept = committed.kept;
        }
        for event in committed.events {
            self.see(event.seq, event.kind);
        }
        self.check_numbers();
    }

    fn fold(&mut self) {
        for (run, verified) in std::mem::take(&mut self.verified) {
            let Verified { tokens, position, slot, snapshots } = &verified;
            let run_of = ToyRun { tokens, position: *position, slot: *slot, blocks: &[], snapshots };
            self.model.keep(&run_of, self.kept[run]);
        }
    }

    /// Some drafts, right up to some place, and what stands of them.
    fn verify(&mut self, plan: &StepPlan, i: usize, (drafted, right): (usize, usize)) -> RunOutcome {
        let run = &plan.runs[i];
        let seq = self.scheduler.running(run.seq).expect("planned");
        let held = seq.cache().expect("it runs");
        let place = |slot| self.cache.slot_place(slot).expect("held");
        let blocks: Vec<_> = held.blocks().iter().map(|b| self.cache.block_place(*b).expect("held")).collect();
        let mut history = seq.tokens().to_vec();
        for ahead in 0..drafted {
            let next = draw(digest(&history), (seq.seed(), seq.generated() + ahead), seq.banned(ahead));
            history.push(if ahead < right { next } else { TokenId((next.0 + 1) % VOCAB) });
        }
        let verified = Verified {
            tokens: history[run.tokens.start..].to_vec(),
            position: run.tokens.start,
            slot: place(held.slot()),
            snapshots: run.snapshots.iter().map(|s| (s.position, place(s.slot))).collect(),
        };
        let Verified { tokens, position, slot, .. } = &verified;
        let run_of = ToyRun { tokens, position: *position, slot: *slot, blocks: &blocks, snapshots: &[] };
        let digests = self.model.verify(&run_of);
        let mut rows = Vec::new();
        for (ahead, after) in digests.into_iter().enumerate() {
            let id = draw(after, (seq.seed(), seq.generated() + ahead), seq.banned(ahead));
            rows.push(RowOutcome::Token(logprobs(after, id)));
            if tokens.get(ahead + 1) != Some(&id) {
                break;
            }
        }
        self.verified.push((i, verified));
        RunOutcome { seq: run.seq, rows, drafted }
    }

    fn compute(&mut self, plan: &StepPlan, i: usize) -> RunOutcome {
        let run = &plan.runs[i];
        let seq = self.scheduler.running(run.seq).expect("planned");
        let luck = mix(seq.seed() ^ seq.generated() as u64) as usize;
        match luck % (run.drafts + 1) {
            0 => self.advance(plan, i),
            drafted => self.verify(plan, i, (drafted, luck / 64 % (drafted + 1))),
        }
    }

    fn advance(&mut self, plan: &StepPlan, i: usize) -> RunOutcome {
        let run = &plan.runs[i];
        let seq = self.scheduler.running(run.seq).expect("planned");
        let held = seq.cache().expect("it runs");
        let start = run.tokens.start;
        let blocks: Vec<_> = held.blocks().iter().map(|b| self.cache.block_place(*b).expect("held")).collect();
        let place = |slot| self.cache.slot_place(slot).expect("held");
        let snapshots: Vec<_> = run.snapshots.iter().map(|s| (s.position, place(s.slot))).collect();
        let digests = self.model.run(&ToyRun {
            tokens: &seq.tokens()[run.tokens.clone()],
            position: start,
            slot: place(held.slot()),
            blocks: &blocks,
            snapshots: &snapshots,
        });
        let scores = run.scored.clone().map(|p| logprobs(digests[p - start], seq.tokens()[p + 1]));
        let mut rows: Vec<_> = scores.map(RowOutcome::Token).collect();
        if run.draws == Draws::Token {
            let after = *digests.last().expect("at least one token");
            let id = draw(after, (seq.seed(), seq.generated()), seq.banned(0));
            rows.push(RowOutcome::Token(logprobs(after, id)));
        }
        RunOutcome { seq: run.seq, rows, drafted: 0 }
    }

    /// Running sequences that need one step per token now.
    fn decode_ready(&self) -> BTreeSet<SeqId> {
        let seqs = self.seen.iter().filter_map(|(&id, seen)| Some((self.scheduler.running(id)?, seen)));
        let ready = seqs.filter(|(seq, seen)| {
            let computed = self.computed.get(&seq.id()).copied().unwrap_or(0);
            seq.generated() > 0 && computed + 1 == seq.tokens().len() && seen.finish.is_none()
        });
        ready.map(|(seq, _)| seq.id()).collect()
    }

    fn check_plan(&mut self, plan: &StepPlan, ready: &BTreeSet<SeqId>) {
        let config = &self.schedule.config;
        let (decodes, chunks): (Vec<_>, Vec<_>) = plan.runs.iter().partition(|run| ready.contains(&run.seq));
        assert!(decodes.iter().all(|run| run.tokens.len() == 1));
        let is_last = |seq: SeqId, run: &std::ops::Range<usize>| {
            let seq = self.scheduler.running(seq).expect("planned");
            seq.generated() > 0 && run.end == seq.tokens().len() && run.len() == 1
        };
        let prefilled: usize =
            chunks.iter().filter(|run| !is_last(run.seq, &run.tokens)).map(|run| run.tokens.len()).sum();
        assert!(prefilled <= config.chunked_prefill_size, "prefill budget");
        assert!(
            plan.runs.iter().map(|run| run.scored.len()).sum::<usize>() <= config.max_prompt_logit_rows,
            "score rows"
        );
        assert!(self.scheduler.num_running() <= config.max_running, "running limit");
        let mut once = BTreeSet::new();
        assert!(plan.runs.iter().all(|run| once.insert(run.seq)), "one run per sequence");
        // Decodes wait for memory only, never for prefills.
        for id in ready.iter().filter(|id| !once.contains(id)) {
            assert!(plan.preempted.contains(id), "{id} was ready to decode and had to wait");
        }
        // First come, first served: whoever runs arrived before whoever has never run.
        let (running, waiting): (Vec<_>, Vec<_>) =
            self.scheduler.ids().into_iter().partition(|&id| self.scheduler.running(id).is_some());
        self.started.extend(&running);
        let fresh = waiting.iter().filter(|id| !self.started.contains(id)).min();
        assert!(fresh.is_none_or(|fresh| running.iter().max() < Some(fresh)), "{running:?} before {waiting:?}");
        // Something moves whenever anything is there.
        let moves = !plan.runs.is_empty() || self.scheduler.is_idle();
        assert!(moves || self.schedule.moods.is_some(), "nothing was planned");
        for id in &plan.preempted {
            self.computed.remove(id);
        }
        for run in &plan.runs {
            let before = self.computed.insert(run.seq, run.tokens.end);
            assert!(before.is_none_or(|before| before == run.tokens.start), "positions must follow each other");
            self.reused += if before.is_none() { run.tokens.start } else { 0 };
        }
    }

    fn see(&mut self, id: SeqId, kind: EventKind) {
        let seen = self.seen.get_mut(&id).expect("known");
        assert!(seen.finish.is_none(), "{id} went on after its end: {kind:?}");
        match kind {
            EventKind::PromptLogprobs(list) => {
                assert!(seen.prompt.replace(list).is_none() && seen.tokens.is_empty(), "once, and before any token");
            }
            EventKind::Token { id, logprobs, .. } => {
                seen.tokens.push(id);
                seen.logprobs.extend(logprobs);
            }
            EventKind::Finished { reason, usage } => {
                assert_eq!(usage.completion_tokens, seen.tokens.len());
                assert!(usage.accepted_tokens <= usage.drafted_tokens.min(usage.completion_tokens));
                self.drafted += usage.drafted_tokens;
                self.accepted += usage.accepted_tokens;
                seen.finish = Some(reason);
            }
            EventKind::Corrupt => panic!("nothing corrupt here"),
        }
    }

    fn check_end(&self, id: SeqId, i: usize) {
        let Plan { prompt, params, seed, patience, .. } = &self.schedule.requests[i];
        let (tokens, reason) = oracle(prompt, params, (*seed, usize::MAX));
        let seen = &self.seen[&id];
        let finish = seen.finish.expect("every request ends");
        if finish == FinishReason::Abort {
            assert!(patience.is_some());
            assert!(tokens.starts_with(&seen.tokens), "{id}: {:?} is not the beginning of {tokens:?}", seen.tokens);
        } else {
            assert_eq!((&seen.tokens, finish), (&tokens, reason), "{id}");
            let wanted = params.prompt_logprobs.map(|_| prompt_logprobs(prompt, 0..prompt.len()));
            assert_eq!(seen.prompt, wanted);
        }
        let all: Vec<_> = prompt.iter().chain(&seen.tokens).copied().collect();
        let after = |n: usize| logprobs(digest(&all[..prompt.len() + n]), seen.tokens[n]);
        assert_eq!(seen.logprobs, (0..seen.tokens.len()).map(after).collect::<Vec<_>>());
    }
}

#[test]
fn every_request_gets_what_it_would_get_alone() {
    let cases = std::env::var("PERILUNE_CASES").ok().and_then(|n| n.parse().ok()).unwrap_or(4000);
    let seed = RngSeed::Fixed(3);
    let config = ProptestConfig { cases, failure_persistence: None, rng_seed: seed, ..ProptestConfig::default() };
    let (stats, totals) = (RefCell::new(Vec::new()), RefCell::new((0, 0, 0, 0)));
    let hits = RefCell::new((0, 0));
    let outcome = TestRunner::new(config).run(&schedule(), |schedule| {
        let mut world = World::new(schedule);
        world.run();
        stats.borrow_mut().push(world.cache.stats());
        totals.borrow_mut().0 += world.preemptions;
        totals.borrow_mut().1 += world.reused;
        totals.borrow_mut().2 += world.drafted;
        totals.borrow_mut().3 += world.accepted;
        // With moods a sequence may start and be gone before it has a run.
        if world.schedule.moods.is_none() {
            hits.borrow_mut().0 += world.cache.stats().hit_tokens;
            hits.borrow_mut().1 += world.reused as u64;
        }
        Ok(())
    });
    outcome.unwrap_or_else(|failure| panic!("{failure}"));
    // Nothing of what may go wrong was left out.
    let sum = |f: fn(&CacheStats) -> u64| stats.borrow().iter().map(f).sum::<u64>();
    let (preemptions, reused, drafted, accepted) = totals.into_inner();
    assert!(accepted > 1000 && drafted > accepted + 1000, "{accepted} of {drafted} drafts");
    assert!(preemptions > 100 && reused > 1000, "{preemptions} preemptions, {reused} tokens reused");
    for (what, count) in [
        ("restores", sum(|s| s.restores)),
        ("evictions", sum(|s| s.evictions)),
        ("demotions", sum(|s| s.demotions)),
        ("host evictions", sum(|s| s.host_evictions)),
        ("promoted blocks", sum(|s| s.promoted_blocks)),
        ("moves", sum(|s| s.moves)),
    ] {
        assert!(count > 100, "{count} {what}");
    }
    let (counted, found) = hits.into_inner();
    assert_eq!(counted, found, "hits are counted exactly");
}

fn plain(prompt_len: usize, max_tokens: usize) -> Plan {
    let (max_tokens, logprobs) = (Some(max_tokens), Some(0));
    let params = SamplingParams { max_tokens, logprobs, ignore_eos: true, ..SamplingParams::default() };
    let prompt = (0..prompt_len).map(|i| TokenId(1 + i as u32 % (VOCAB - 1))).collect();
    let (key, hints) = (CacheKey::default(), Vec::new());
    Plan { prompt, params, seed: 5, key, hints, arrival: 0, patience: None }
}

fn world(requests: Vec<Plan>, num_blocks: usize) -> World {
    let arena = ArenaShape { len: num_blocks + 8 * 3, block_len: 1, slot_len: 3 };
    let cache = CacheConfig { arena, block_size: 4, prefixes: Prefixes::Keep, host_len: 0 };
    World::new(Schedule { requests, config: config((8, 16, 4), 4 * num_blocks), cache, moods: None })
}

#[test]
fn three_long_requests_in_memory_for_two_preempt_and_still_agree() {
    let mut world = world(vec![plain(8, 60), plain(9, 60), plain(10, 60)], 24);
    world.run();
    assert!(world.preemptions > 0, "memory was meant to run out");
}

#[test]
fn hundreds_of_requests_in_memory_for_little_more_than_one_all_finish() {
    let requests = (0..200).map(|i| plain(1 + i % 37, 1 + i % 11)).collect();
    let mut world = world(requests, 13);
    world.run();
    assert!(world.seen.values().all(|seen| seen.finish == Some(FinishReason::Length)));
}

#[test]
fn a_corrupt_sequence_ends_alone() {
    let other = Plan { prompt: vec![TokenId(9); 4], ..plain(4, 5) };
    let mut world = world(vec![plain(3, 5), other], 20);
    world.add(SeqId(0), 0);
    world.add(SeqId(1), 1);
    let plan = world.scheduler.plan(&mut world.cache, &|_| Turn::Free);
    let outcomes = vec![
        RunOutcome { seq: SeqId(0), rows: vec![RowOutcome::Token(logprobs(0, TokenId(3)))], drafted: 0 },
        RunOutcome { seq: SeqId(1), rows: vec![RowOutcome::NonFinite], drafted: 0 },
    ];
    let events = world.scheduler.commit(&mut world.cache, &plan, outcomes).events;
    let kinds: Vec<_> = events.iter().map(|event| (event.seq, &event.kind)).collect();
    assert!(matches!(kinds[..], [(SeqId(0), EventKind::Token { .. }), (SeqId(1), EventKind::Corrupt)]), "{kinds:?}");
    assert!(world.scheduler.running(SeqId(0)).is_some() && world.scheduler.running(SeqId(1)).is_none());
    assert_eq!(world.cache.usage().slots_used, 1);
}

#[test]
fn decode_goes_on_while_a_long_prompt_is_read() {
    let mut world = world(vec![plain(2, 30), plain(160, 1)], 200);
    world.add(SeqId(0), 0);
    world.step();
    world.add(SeqId(1), 1);
    for _ in 0..10 {
        world.step();
    }
    assert_eq!(world.seen[&SeqId(0)].tokens.len(), 11, "one token per step");
    assert_eq!(world.seen[&SeqId(1)].finish, Some(FinishReason::Length), "160 tokens in ten steps of 16");
}
