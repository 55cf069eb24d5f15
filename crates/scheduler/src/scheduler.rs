//! The scheduler: who runs, who waits, and what each step computes.
//!
//! First come, first served. Running sequences are served in order of arrival; where memory runs out, a later one gives
//! its memory up: the one whose tokens are cheapest to compute again for what it holds. What it had computed is stored as
//! any other prefix is, so it resumes from there unless others needed that memory. The earliest sequence always makes
//! progress, and as every accepted sequence fits when it is alone, every one ends.
//!
//! A sequence whose beginning an earlier one is computing right now waits for it, and the state where the two part is
//! saved: of many requests with one long beginning only the first computes it.
//!
//! A sequence that cannot draw yet ([`Turn::Later`]) is left out, or computed up to its last token; it keeps its memory and
//! its place.

use std::collections::{BTreeMap, VecDeque};
use std::ops::{Bound, Range};

use perilune_cache::{CacheManager, Match, SequenceCache, common_prefix};
use perilune_tensor::TokenId;

use crate::checkpoints::{CheckpointRules, Known};
use crate::sequence::finite;
use crate::{
    Committed, Draws, Event, EventKind, FinishReason, PlannedRun, PlannedSnapshot, RowOutcome, RunOutcome, SeqId,
    Sequence, SequenceRequest, StepPlan, Turn,
};

/// Limits of a step.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SchedulerConfig {
    /// Most sequences that run at once, at least 1.
    pub max_running: usize,
    /// Most prefill tokens of a step, at least 1.
    pub chunked_prefill_size: usize,
    /// Most prompt positions scored in a step, at least 1.
    pub max_prompt_logit_rows: usize,
    /// Most tokens of prompt and output together.
    pub context_length: usize,
    /// Tokens that end an output.
    pub eos_ids: Vec<TokenId>,
    /// Most tokens that are drafted for a sequence in a step; 0 without speculation.
    pub max_drafts: usize,
    /// When states are saved.
    pub checkpoints: CheckpointRules,
}

/// Sequences that a new one is compared with, to find where they part.
const MAX_COMPARED: usize = 32;

/// What is left of a step's limits while it is planned, and who may draw in it.
struct Budget<'a> {
    prefill: usize,
    scored: usize,
    turn: &'a dyn Fn(SeqId) -> Turn,
}

/// Sequences that run and wait.
#[derive(Debug)]
pub struct Scheduler {
    config: SchedulerConfig,
    /// In order of arrival.
    /// Boxed, so that the tree's nodes are small: each is looked up several times a step.
    running: BTreeMap<SeqId, Box<Sequence>>,
    /// In order of arrival; preempted ones are older than those that never ran.
    waiting: VecDeque<Box<Sequence>>,
}

impl Scheduler {
    /// Without sequences.
    pub fn new(config: SchedulerConfig) -> Self {
        Scheduler { config, running: BTreeMap::new(), waiting: VecDeque::new() }
    }

    /// Queues a request.
    pub fn add(&mut self, request: SequenceRequest) {
        let sequence = Box::new(Sequence::new(request, &self.config.eos_ids, self.config.context_length));
        let running: Vec<SeqId> = self.running.keys().copied().collect();
        running.into_iter().take(MAX_COMPARED).for_each(|id| self.plan_parting(id, &sequence));
        self.enqueue(sequence);
    }

    /// Ends a sequence; what it computed is stored. `None` where there is none of that number.
    pub fn abort(&mut self, id: SeqId, cache: &mut CacheManager) -> Option<Event> {
        let waiting = self.waiting.iter().position(|s| s.id() == id);
        let mut sequence = self.running.remove(&id).or_else(|| self.waiting.remove(waiting?))?;
        let event = sequence.finish(FinishReason::Abort);
        donate(&mut sequence, cache);
        Some(event)
    }

    /// Numbers of all sequences, running ones first.
    pub fn ids(&self) -> Vec<SeqId> {
        self.running.keys().copied().chain(self.waiting.iter().map(|sequence| sequence.id())).collect()
    }

    /// A running sequence.
    pub fn running(&self, id: SeqId) -> Option<&Sequence> {
        self.running.get(&id).map(Box::as_ref)
    }

    /// How many run.
    pub fn num_running(&self) -> usize {
        self.running.len()
    }

    /// How many wait, preempted ones included.
    pub fn num_waiting(&self) -> usize {
        self.waiting.len()
    }

    /// Whether nothing is left to do.
    pub fn is_idle(&self) -> bool {
        self.running.is_empty() && self.waiting.is_empty()
    }

    /// The next step; without runs only when idle, where somebody gave up memory, or where those who could run may not draw.
    pub fn plan(&mut self, cache: &mut CacheManager, turn: &dyn Fn(SeqId) -> Turn) -> StepPlan {
        let mut plan = StepPlan::default();
        let (prefill, scored) = (self.config.chunked_prefill_size, self.config.max_prompt_logit_rows);
        let mut budget = Budget { prefill, scored, turn };
        let in_order: Vec<SeqId> = self.running.keys().copied().collect();
        for id in in_order {
            self.serve(id, cache, (&mut plan, &mut budget));
        }
        // Memory that somebody just gave up belongs to those who run.
        if plan.preempted.is_empty() {
            self.admit(cache, (&mut plan, &mut budget));
        }
        // Without a run there is no step now; then they wait for the next one.
        if !plan.runs.is_empty() {
            plan.ops = cache.take_ops();
        }
        plan
    }

    /// Takes in what a step computed; events in the order of its runs. What ended sequences computed is stored: their states
    /// are to include what [`Committed::kept`] says before anything else is done with them.
    pub fn commit(&mut self, cache: &mut CacheManager, plan: &StepPlan, outcomes: Vec<RunOutcome>) -> Committed {
        let (events, kept) = (Vec::with_capacity(plan.runs.len()), Vec::with_capacity(plan.runs.len()));
        let mut committed = Committed { events, kept };
        for (run, outcome) in plan.runs.iter().zip(outcomes) {
            let Some(sequence) = self.running.get_mut(&run.seq) else {
                run.snapshots.iter().for_each(|snapshot| cache.return_slot(snapshot.slot));
                committed.kept.push(0);
                continue;
            };
            let before = committed.events.len();
            settle(sequence, (run, outcome), &mut committed.events);
            committed.kept.push(sequence.computed - run.tokens.start);
            let end = committed.events[before..].last().map(|event| &event.kind);
            let corrupt = matches!(end, Some(EventKind::Corrupt));
            let ended = corrupt || matches!(end, Some(EventKind::Finished { .. }));
            store_snapshots(sequence, run, (cache, corrupt));
            if let Some(mut sequence) = ended.then(|| self.running.remove(&run.seq)).flatten() {
                if corrupt { discard(&mut sequence, cache) } else { donate(&mut sequence, cache) }
            }
        }
        committed
    }

    /// Adds the next tokens of a running sequence to the plan, if budget and memory allow.
    fn serve(&mut self, id: SeqId, cache: &mut CacheManager, (plan, budget): (&mut StepPlan, &mut Budget<'_>)) {
        loop {
            let Some(sequence) = self.running.get(&id) else { return };
            let wanted = chunk(sequence, budget);
            if wanted.is_empty() {
                return;
            }
            let Some(held) = sequence.cache() else { return };
            let end = wanted.end.min(cache.reachable_tokens(held));
            if end > wanted.start {
                return self.take(id, wanted.start..end, cache, (plan, budget));
            }
            // No block for even one token: somebody who came later gives way, or this one where it is the latest.
            let victim = self.cheapest_after(id, cache).unwrap_or(id);
            self.preempt(victim, cache, plan);
        }
    }

    /// Among those that came after `id`, the sequence that loses least for what it holds; the latest among equals.
    fn cheapest_after(&self, id: SeqId, cache: &CacheManager) -> Option<SeqId> {
        let later = self.running.range((Bound::Excluded(id), Bound::Unbounded));
        let worth = |sequence: &Sequence| {
            let held = sequence.cache().map_or(1, |held| cache.own_len(held));
            sequence.computed as f64 / held as f64
        };
        later.rev().min_by(|(_, a), (_, b)| worth(a).total_cmp(&worth(b))).map(|(id, _)| *id)
    }

    fn take(
        &mut self,
        id: SeqId,
        tokens: Range<usize>,
        cache: &mut CacheManager,
        (plan, budget): (&mut StepPlan, &mut Budget<'_>),
    ) {
        let num_running = self.running.len();
        let Some(sequence) = self.running.get_mut(&id) else { return };
        let drafts = is_decode(sequence) && (budget.turn)(id) == Turn::Free;
        let wanted = if drafts { sequence.max_drafts(self.config.max_drafts) } else { 0 };
        let Some(held) = &mut sequence.cache else { return };
        if cache.grow(held, tokens.end).is_err() {
            return;
        }
        let drafts = grow_for_drafts(held, (tokens.end, wanted), (cache, num_running));
        let scored = sequence.to_score(tokens.end);
        budget.scored -= scored.len().min(budget.scored);
        if !is_decode(sequence) {
            budget.prefill -= tokens.len();
        }
        let last = tokens.end == sequence.tokens().len() && sequence.generates();
        let draws = if last { Draws::Token } else { Draws::Nothing };
        let snapshots = plan_snapshots(sequence, &(tokens.start..tokens.end + drafts), cache);
        plan.runs.push(PlannedRun { seq: id, tokens, scored, draws, drafts, snapshots });
    }

    fn preempt(&mut self, id: SeqId, cache: &mut CacheManager, plan: &mut StepPlan) {
        if let Some(mut sequence) = self.running.remove(&id) {
            donate(&mut sequence, cache);
            plan.preempted.push(id);
            self.enqueue(sequence);
        }
    }

    /// Lets waiting sequences run, in order, while there is room for all tokens they have and one more, beside those that
    /// the running ones have: whoever starts should not have to give way at once.
    fn admit(&mut self, cache: &mut CacheManager, (plan, budget): (&mut StepPlan, &mut Budget<'_>)) {
        while self.running.len() < self.config.max_running && budget.prefill > 0 {
            let Some(next) = self.waiting.front() else { return };
            let lookup = cache.lookup(next.key(), next.tokens(), next.reusable());
            let found = lookup.found;
            let promised: usize = self.running.values().map(|sequence| missing_blocks(sequence, cache)).sum();
            let wanted = next.tokens().len() + usize::from(next.generates());
            if !self.running.is_empty() && !cache.has_room(found, (wanted, promised)) {
                return;
            }
            if self.waits_for_another(found) {
                return;
            }
            let Ok(opened) = cache.open(lookup) else { return };
            let Some(mut sequence) = self.waiting.pop_front() else { return };
            let known = Known {
                hints: sequence.hints(),
                cached: opened.cached,
                fork: found.agreeing,
                prompt_len: sequence.prompt_len(),
            };
            sequence.planned = self.config.checkpoints.places(known);
            sequence.start(opened.cache, opened.cached);
            let id = sequence.id();
            self.running.insert(id, sequence);
            let waiting = std::mem::take(&mut self.waiting);
            waiting.iter().take(MAX_COMPARED).for_each(|later| self.plan_parting(id, later));
            self.waiting = waiting;
            self.serve(id, cache, (plan, budget));
            if !plan.preempted.is_empty() {
                return;
            }
        }
    }

    /// Whether the next sequence had better wait until a running one has computed what both begin with; then the state
    /// at that place will be saved.
    fn waits_for_another(&self, found: Match) -> bool {
        let Some(next) = self.waiting.front() else { return false };
        let least = found.cached + self.config.checkpoints.least_gap.max(1);
        self.running.values().any(|sequence| {
            parting(sequence, next).is_some_and(|place| place >= least && sequence.planned.contains(place))
        })
    }

    /// Plans to save a running sequence's state where one that came later parts from it.
    fn plan_parting(&mut self, id: SeqId, later: &Sequence) {
        let least_gap = self.config.checkpoints.least_gap.max(1);
        let Some(sequence) = self.running.get_mut(&id) else { return };
        if let Some(place) = parting(sequence, later).filter(|place| *place >= sequence.computed + least_gap) {
            sequence.planned.add(place);
        }
    }

    fn enqueue(&mut self, sequence: Box<Sequence>) {
        let place = self.waiting.partition_point(|other| other.id() < sequence.id());
        self.waiting.insert(place, sequence);
    }
}

/// Gives a sequence of `tokens` tokens memory for up to `wanted` more; how many there is memory for. Nobody is to give way
/// for what may be refused: a block is taken for drafts only while everybody who runs can have one.
fn grow_for_drafts(
    held: &mut SequenceCache,
    (tokens, wanted): (usize, usize),
    (cache, num_running): (&mut CacheManager, usize),
) -> usize {
    let room = held.blocks().len() * cache.block_size() - tokens;
    if wanted > room && cache.available_blocks() > num_running && cache.grow(held, tokens + wanted).is_ok() {
        return wanted;
    }
    wanted.min(room)
}

/// Lends slots for the states that are to be saved while `tokens` are computed.
fn plan_snapshots(sequence: &mut Sequence, tokens: &Range<usize>, cache: &mut CacheManager) -> Vec<PlannedSnapshot> {
    let mut snapshots = Vec::new();
    for position in sequence.planned.between(tokens.start, tokens.end) {
        if let Some(slot) = cache.spare_slot(position - sequence.saved) {
            snapshots.push(PlannedSnapshot { position, slot });
            sequence.saved = position;
        }
    }
    snapshots
}

/// Stores the states that a run saved, if they are to be trusted. Those among drafts that were not kept do not exist.
fn store_snapshots(sequence: &mut Sequence, run: &PlannedRun, (cache, corrupt): (&mut CacheManager, bool)) {
    for snapshot in &run.snapshots {
        let key = sequence.key().clone();
        if snapshot.position > sequence.computed {
            sequence.saved = sequence.saved.min(run.tokens.start);
        }
        match sequence.split_for_store(snapshot.position) {
            Some((held, tokens)) if !corrupt => cache.store(held, &key, tokens, snapshot.slot),
            _ => cache.return_slot(snapshot.slot),
        }
    }
}

/// Stores what a sequence has computed, and its state.
fn donate(sequence: &mut Sequence, cache: &mut CacheManager) {
    let key = sequence.key().clone();
    if let Some((held, tokens)) = sequence.stop() {
        cache.donate(held, &key, tokens);
    }
}

/// Gives up what a sequence held, and everything stored that begins like it.
fn discard(sequence: &mut Sequence, cache: &mut CacheManager) {
    let key = sequence.key().clone();
    if let Some((held, tokens)) = sequence.stop() {
        cache.discard(held, &key, tokens);
    }
}

/// Where a waiting sequence parts from a running one that has not computed that place yet.
fn parting(running: &Sequence, waiting: &Sequence) -> Option<usize> {
    if running.computed >= running.prompt_len() || running.key() != waiting.key() {
        return None;
    }
    let prompt = &running.tokens()[..running.prompt_len() - 1];
    let place = common_prefix(prompt, waiting.tokens()).min(waiting.reusable());
    (place > running.computed).then_some(place)
}

/// Blocks that a sequence lacks for all its tokens and one more.
fn missing_blocks(sequence: &Sequence, cache: &CacheManager) -> usize {
    let wanted = cache.blocks_for(sequence.tokens().len() + usize::from(sequence.generates()));
    wanted.saturating_sub(sequence.cache().map_or(0, |held| held.blocks().len()))
}

/// Whether a sequence only needs its newest token computed.
fn is_decode(sequence: &Sequence) -> bool {
    sequence.generated() > 0 && sequence.remaining() == 1
}

/// The positions that a sequence would compute next within the budget. Decoding needs none. The last position draws, and is
/// left for later where that may not be.
fn chunk(sequence: &Sequence, budget: &Budget<'_>) -> Range<usize> {
    let start = sequence.computed;
    let waits = sequence.generates() && (budget.turn)(sequence.id()) == Turn::Later;
    let remaining = sequence.remaining().saturating_sub(usize::from(waits));
    if is_decode(sequence) {
        return start..start + remaining;
    }
    let mut end = start + remaining.min(budget.prefill);
    let scored = sequence.to_score(end);
    if scored.len() > budget.scored {
        end = scored.start + budget.scored;
    }
    start..end.max(start)
}

/// Adds the events of one run.
fn settle(sequence: &mut Sequence, (run, outcome): (&PlannedRun, RunOutcome), events: &mut Vec<Event>) {
    sequence.computed = run.tokens.end;
    let mut rows = outcome.rows.into_iter();
    for row in rows.by_ref().take(run.scored.len()) {
        match finite(row) {
            Some(row) => sequence.score(row),
            None => return events.push(sequence.event(EventKind::Corrupt)),
        }
    }
    events.extend(sequence.take_prompt_logprobs());
    if run.draws == Draws::Token {
        sequence.note_drafted(outcome.drafted);
        push_all(sequence, rows, events);
    } else if sequence.remaining() == 0 && !sequence.generates() {
        events.push(sequence.finish(FinishReason::Length));
    }
}

/// Takes in drawn tokens up to the one that ends the sequence: nothing after it exists. All but the last one were drafts
/// that were kept, so they have been computed.
fn push_all(sequence: &mut Sequence, rows: impl Iterator<Item = RowOutcome>, events: &mut Vec<Event>) {
    for (i, row) in rows.enumerate() {
        match finite(row) {
            Some(row) => {
                if i > 0 {
                    sequence.note_accepted();
                }
                sequence.push(row, events);
            }
            None => events.push(sequence.event(EventKind::Corrupt)),
        }
        if events.last().is_some_and(|event| matches!(event.kind, EventKind::Corrupt | EventKind::Finished { .. })) {
            break;
        }
    }
}
