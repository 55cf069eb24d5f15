//! The scheduler: who runs, who waits, and what each step computes.
//!
//! First come, first served. Running sequences are served in order of arrival; where memory runs out, the latest arrival
//! gives its memory up and is computed again later. So the earliest sequence always makes progress, and as every accepted
//! sequence fits when it is alone, every one ends.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;

use perilune_cache::CacheManager;
use perilune_tensor::TokenId;

use crate::sequence::finite;
use crate::{Draws, Event, EventKind, FinishReason, PlannedRun, RowOutcome, RunOutcome, SeqId, Sequence};
use crate::{SequenceRequest, StepPlan};

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
}

/// What is left of a step's limits while it is planned.
struct Budget {
    prefill: usize,
    scored: usize,
}

/// Sequences that run and wait.
#[derive(Debug)]
pub struct Scheduler {
    config: SchedulerConfig,
    /// In order of arrival.
    running: BTreeMap<SeqId, Sequence>,
    /// In order of arrival; preempted ones are older than those that never ran.
    waiting: VecDeque<Sequence>,
}

impl Scheduler {
    /// Without sequences.
    pub fn new(config: SchedulerConfig) -> Self {
        Scheduler { config, running: BTreeMap::new(), waiting: VecDeque::new() }
    }

    /// Queues a request.
    pub fn add(&mut self, request: SequenceRequest) {
        let sequence = Sequence::new(request, &self.config.eos_ids, self.config.context_length);
        self.enqueue(sequence);
    }

    /// Ends a sequence and frees what it holds; `None` where there is none of that number.
    pub fn abort(&mut self, id: SeqId) -> Option<Event> {
        let waiting = self.waiting.iter().position(|s| s.id() == id);
        let found = self.running.remove(&id).or_else(|| self.waiting.remove(waiting?));
        found.map(|sequence| sequence.finish(FinishReason::Abort))
    }

    /// Numbers of all sequences, running ones first.
    pub fn ids(&self) -> Vec<SeqId> {
        self.running.keys().copied().chain(self.waiting.iter().map(Sequence::id)).collect()
    }

    /// A running sequence.
    pub fn running(&self, id: SeqId) -> Option<&Sequence> {
        self.running.get(&id)
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

    /// The next step; empty only when idle.
    pub fn plan(&mut self, cache: &mut CacheManager) -> StepPlan {
        let mut plan = StepPlan::default();
        let mut budget =
            Budget { prefill: self.config.chunked_prefill_size, scored: self.config.max_prompt_logit_rows };
        let in_order: Vec<SeqId> = self.running.keys().copied().collect();
        for id in in_order {
            self.serve(id, cache, (&mut plan, &mut budget));
        }
        // Memory that somebody just gave up belongs to those who run.
        if plan.preempted.is_empty() {
            self.admit(cache, (&mut plan, &mut budget));
        }
        plan
    }

    /// Takes in what a step computed; events in the order of its runs. Ended sequences free what they hold.
    pub fn commit(&mut self, plan: &StepPlan, outcomes: Vec<RunOutcome>) -> Vec<Event> {
        let mut events = Vec::new();
        for (run, outcome) in plan.runs.iter().zip(outcomes) {
            let Some(sequence) = self.running.get_mut(&run.seq) else { continue };
            let new = settle(sequence, run, outcome.rows);
            let ended = new.last().is_some_and(|e| matches!(e.kind, EventKind::Finished { .. } | EventKind::Corrupt));
            events.extend(new);
            if ended {
                self.running.remove(&run.seq);
            }
        }
        events
    }

    /// Adds the next tokens of a running sequence to the plan, if budget and memory allow.
    fn serve(&mut self, id: SeqId, cache: &mut CacheManager, (plan, budget): (&mut StepPlan, &mut Budget)) {
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
            // No block for even one token: the latest arrival gives way, perhaps this one.
            let Some(latest) = self.running.keys().next_back().copied() else { return };
            self.preempt(latest, plan);
        }
    }

    fn take(
        &mut self,
        id: SeqId,
        tokens: Range<usize>,
        cache: &mut CacheManager,
        (plan, budget): (&mut StepPlan, &mut Budget),
    ) {
        let Some(sequence) = self.running.get_mut(&id) else { return };
        let Some(held) = &mut sequence.cache else { return };
        if cache.grow(held, tokens.end).is_err() {
            return;
        }
        let scored = sequence.to_score(tokens.end);
        budget.scored -= scored.len().min(budget.scored);
        if !is_decode(sequence) {
            budget.prefill -= tokens.len();
        }
        let last = tokens.end == sequence.tokens().len() && sequence.generates();
        let draws = if last { Draws::Token } else { Draws::Nothing };
        plan.runs.push(PlannedRun { seq: id, tokens, scored, draws });
    }

    fn preempt(&mut self, id: SeqId, plan: &mut StepPlan) {
        if let Some(mut sequence) = self.running.remove(&id) {
            sequence.release();
            plan.preempted.push(id);
            self.enqueue(sequence);
        }
    }

    /// Lets waiting sequences run, in order, while there is room for all tokens they have and one more, beside those that
    /// the running ones have: whoever starts should not have to give way at once.
    fn admit(&mut self, cache: &mut CacheManager, (plan, budget): (&mut StepPlan, &mut Budget)) {
        while self.running.len() < self.config.max_running && budget.prefill > 0 {
            let Some(next) = self.waiting.front() else { return };
            let promised: usize = self.running.values().map(|sequence| missing_blocks(sequence, cache)).sum();
            let alone = self.running.is_empty();
            if promised + missing_blocks(next, cache) > cache.free_blocks() && !alone {
                return;
            }
            let Ok(held) = cache.open() else { return };
            let Some(mut sequence) = self.waiting.pop_front() else { return };
            let id = sequence.id();
            plan.fresh_slots.push(held.slot());
            sequence.cache = Some(held);
            self.running.insert(id, sequence);
            self.serve(id, cache, (plan, budget));
        }
    }

    fn enqueue(&mut self, sequence: Sequence) {
        let place = self.waiting.partition_point(|other| other.id() < sequence.id());
        self.waiting.insert(place, sequence);
    }
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

/// The positions that a sequence would compute next within the budget. Decoding needs none.
fn chunk(sequence: &Sequence, budget: &Budget) -> Range<usize> {
    let start = sequence.computed;
    if is_decode(sequence) {
        return start..start + 1;
    }
    let mut end = start + sequence.remaining().min(budget.prefill);
    let scored = sequence.to_score(end);
    if scored.len() > budget.scored {
        end = scored.start + budget.scored;
    }
    start..end.max(start)
}

/// The events of one run.
fn settle(sequence: &mut Sequence, run: &PlannedRun, rows: Vec<RowOutcome>) -> Vec<Event> {
    sequence.computed = run.tokens.end;
    let mut rows = rows.into_iter();
    for row in rows.by_ref().take(run.scored.len()) {
        match finite(row) {
            Some(row) => sequence.score(row),
            None => return vec![sequence.event(EventKind::Corrupt)],
        }
    }
    let mut events: Vec<Event> = sequence.take_prompt_logprobs().into_iter().collect();
    match (run.draws, rows.next()) {
        (Draws::Token, Some(row)) => match finite(row) {
            Some(row) => events.extend(sequence.push(row)),
            None => events.push(sequence.event(EventKind::Corrupt)),
        },
        _ if sequence.remaining() == 0 && !sequence.generates() => events.push(sequence.finish(FinishReason::Length)),
        _ => {}
    }
    events
}
