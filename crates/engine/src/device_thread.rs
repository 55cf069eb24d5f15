//! The loop of the device thread: inbox → plan → run → commit → events.

use std::cell::Cell;
use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use perilune_cache::{CacheKey, CacheManager};
use perilune_sampling::{ConstraintError, SeedSource};
use perilune_scheduler::{
    Committed, Draws, Event, EventKind, FinishReason, RunOutcome, Scheduler, SchedulerConfig, SeqId, SequenceRequest,
    StepPlan, TokenRole, Turn,
};
use tokio::sync::mpsc::UnboundedReceiver;
use tokio::sync::mpsc::error::TryRecvError;
use tokio::sync::oneshot;

use crate::constraints::Constraints;
use crate::courier::Courier;
use crate::disk_desk::{DiskDesk, OpenDesk};
use crate::handle::{Command, Shared, Submission};
use crate::stats::{EngineStats, MAX_PLACES, Work};
use crate::step::{Spare, outcomes, step_input};
use crate::{EngineState, Fault, GenerateRequest, StepRunner};

/// How long to sleep where all wait for masks; commands are looked for in between.
const NAP: Duration = Duration::from_micros(500);

/// Runs until told to stop, until nobody can reach the engine any more, or until a step fails.
pub(crate) fn run<R: StepRunner>(
    (runner, disk, courier): (R, Option<OpenDesk>, Courier),
    shared: Arc<Shared>,
    inbox: UnboundedReceiver<Command>,
) {
    let mut device = DeviceThread::new((runner, disk, courier), shared.clone(), inbox);
    let end = catch_unwind(AssertUnwindSafe(|| {
        device.serve()?;
        device.save_everything()
    }));
    let state = match end {
        Ok(Ok(())) => EngineState::Stopped,
        Ok(Err(reason)) => EngineState::Dead { reason },
        Err(panic) => EngineState::Dead { reason: format!("a fault in the engine: {}", text_of(panic.as_ref())) },
    };
    if let EngineState::Dead { reason } = &state {
        tracing::error!(reason, "the engine has died");
    }
    // The state first: whoever sees a stream end can see why.
    shared.state.send_replace(state.clone());
    device.end_everything(&state);
}

pub(crate) struct DeviceThread<R> {
    pub(crate) runner: R,
    shared: Arc<Shared>,
    pub(crate) inbox: UnboundedReceiver<Command>,
    pub(crate) scheduler: Scheduler,
    pub(crate) cache: CacheManager,
    pub(crate) disk: Option<DiskDesk>,
    courier: Courier,
    /// Requests that had no step yet, and who is told when they have.
    queued: HashMap<SeqId, oneshot::Sender<Instant>>,
    seeds: SeedSource,
    constraints: Constraints,
    ending: Ending,
    /// For each run of the last step, how many of its tokens were kept.
    pub(crate) kept: Vec<usize>,
    spare: Spare,
}

/// Whether the thread is to end.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Ending {
    No,
    WhenIdle,
    Now,
}

/// Whether a step brought something forward.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Stepped {
    Yes,
    /// All wait for their masks.
    Waited,
}

impl<R: StepRunner> DeviceThread<R> {
    fn new(
        (runner, disk, courier): (R, Option<OpenDesk>, Courier),
        shared: Arc<Shared>,
        inbox: UnboundedReceiver<Command>,
    ) -> Self {
        let config = &shared.config;
        let scheduler = Scheduler::new(SchedulerConfig {
            max_running: config.max_running_requests,
            chunked_prefill_size: config.chunked_prefill_size,
            max_prompt_logit_rows: config.max_prompt_logit_rows,
            context_length: config.effective_context(),
            eos_ids: config.eos_ids.clone(),
            max_drafts: config.max_drafts,
            checkpoints: config.checkpoints,
        });
        let mut cache = CacheManager::new(config.cache);
        cache.set_kept_slot_len(runner.kept_slot_len(config.cache.arena.slot_len));
        let disk = disk.map(|open| {
            cache.attach_disk(open.config, open.found);
            open.desk
        });
        let seeds = config.random_seed.map_or_else(SeedSource::from_entropy, SeedSource::from_seed);
        DeviceThread {
            runner,
            scheduler,
            cache,
            disk,
            shared,
            inbox,
            courier,
            queued: HashMap::new(),
            seeds,
            constraints: Constraints::default(),
            ending: Ending::No,
            kept: Vec::new(),
            spare: Spare::default(),
        }
    }

    /// # Errors
    /// Why the engine died.
    fn serve(&mut self) -> Result<(), String> {
        loop {
            self.drain_inbox();
            self.attend_disk();
            match self.ending {
                Ending::Now => return Ok(()),
                Ending::WhenIdle if self.is_idle() => return Ok(()),
                _ => {}
            }
            let stepped = if self.scheduler.is_idle() { Stepped::Yes } else { self.step()? };
            self.publish();
            if stepped == Stepped::Yes {
                self.note_progress();
            }
        }
    }

    /// Takes in all commands; sleeps until there is one when there is nothing else to do.
    fn drain_inbox(&mut self) {
        loop {
            let command = if self.is_idle() && self.ending == Ending::No {
                self.inbox.blocking_recv()
            } else {
                match self.inbox.try_recv() {
                    Ok(command) => Some(command),
                    Err(TryRecvError::Empty) => return,
                    Err(TryRecvError::Disconnected) => None,
                }
            };
            match command {
                Some(command) => self.obey(command),
                // Nobody can submit or read any more.
                None => {
                    self.ending = Ending::Now;
                    return;
                }
            }
            if self.is_idle() {
                self.attend_disk();
                self.publish();
                self.note_progress();
            }
        }
    }

    /// Whether nobody waits for anything.
    fn is_idle(&self) -> bool {
        self.scheduler.is_idle() && self.num_held() == 0
    }

    fn obey(&mut self, command: Command) {
        match command {
            Command::Submit(submission) => self.accept(*submission),
            Command::Abort(id) => self.abort(id),
            Command::Stop(id) => self.stop(id),
            Command::AbortAll => {
                self.release_held(|_| true);
                self.scheduler.ids().into_iter().for_each(|id| self.abort(id));
            }
            Command::FlushCache => self.cache.flush(),
            Command::ReportCache(reply) => {
                // Whoever asked may be gone.
                let _ = reply.send(self.cache.report());
            }
            Command::Drain => self.ending = Ending::WhenIdle,
            Command::Shutdown => self.ending = Ending::Now,
        }
    }

    pub(crate) fn accept(&mut self, submission: Submission) {
        let Submission { id, request, events, started } = submission;
        let seed = request.params.seed.unwrap_or_else(|| self.seeds.draw());
        self.shared.lock_monitor().stats.prompt_tokens += request.prompt.len() as u64;
        self.courier.meet(id, events);
        self.queued.insert(id, started);
        let GenerateRequest { prompt, params, cache_salt, checkpoint_hints, grammar } = request;
        if let Some(grammar) = grammar {
            self.constraints.add(id, grammar);
        }
        let key = CacheKey { salt: cache_salt.map(Into::into), ..CacheKey::default() };
        self.admit(SequenceRequest { id, prompt, params, seed, key, checkpoint_hints });
    }

    fn abort(&mut self, id: SeqId) {
        if let Some(event) = self.cancel(id) {
            self.deliver(event);
        }
    }

    /// As [`Self::abort`], counted as a stop.
    fn stop(&mut self, id: SeqId) {
        if let Some(event) = self.cancel(id) {
            self.shared.lock_monitor().stats.finished.stop += 1;
            self.send(vec![event]);
        }
    }

    /// The end of a request, if it has not come yet.
    fn cancel(&mut self, id: SeqId) -> Option<Event> {
        self.release_held(|held| held == id);
        self.scheduler.abort(id, &mut self.cache)
    }

    fn step(&mut self) -> Result<Stepped, String> {
        let late = Cell::new(None);
        let turn = |id| {
            let turn = self.constraints.turn(id);
            late.set(if turn == Turn::Later { Some(id) } else { late.get() });
            turn
        };
        let plan = self.scheduler.plan(&mut self.cache, &turn);
        self.shared.lock_monitor().stats.preemptions += plan.preempted.len() as u64;
        if !self.queued.is_empty() {
            plan.runs.iter().for_each(|run| self.leave_queue(run.seq));
        }
        if plan.runs.is_empty() {
            return match late.get() {
                // Memory was taken back from everybody; the next plan begins with the earliest sequence.
                _ if !plan.preempted.is_empty() => Ok(Stepped::Yes),
                Some(id) => {
                    self.constraints.wait_a_moment(id, NAP);
                    Ok(Stepped::Waited)
                }
                None => Err("no sequence can make progress".into()),
            };
        }
        // Before the step too: a long one is not to look as if nothing ran.
        self.publish();
        let kept = std::mem::take(&mut self.kept);
        let owners = (&self.scheduler, &self.cache, &self.constraints);
        let input = step_input(owners, (&plan, kept), &mut self.spare)?;
        let output = self.runner.run(&input).map_err(|error| error.to_string())?;
        self.spare.take_back(input);
        self.send_archived();
        let drafting = output.drafting;
        let outcomes = outcomes(&plan, output)?;
        self.count(&plan, drafting);
        self.count_drafts(&outcomes);
        let Committed { mut events, kept } = self.scheduler.commit(&mut self.cache, &plan, outcomes);
        self.kept = kept;
        self.end_unconstrainable(&plan, &mut events);
        // The numbers first: whoever sees a stream end also sees that its memory is free.
        self.publish();
        self.note_progress();
        events.iter().for_each(|event| self.follow(event));
        let mut monitor = self.shared.lock_monitor();
        events.iter().for_each(|event| count_event(&mut monitor.stats, &event.kind));
        drop(monitor);
        self.send(events);
        Ok(Stepped::Yes)
    }

    /// The next mask is computed from now on.
    fn follow(&mut self, event: &Event) {
        if let EventKind::Token { id, role: TokenRole::Content, .. } = &event.kind {
            self.constraints.advance(event.seq, &[*id]);
        }
    }

    /// Ends the sequences whose masks could not be had; what was drawn for them is dropped. Only now, as a sequence that is
    /// aborted in the middle of a step has another state than it says.
    fn end_unconstrainable(&mut self, plan: &StepPlan, events: &mut Vec<Event>) {
        for run in plan.runs.iter().filter(|run| run.draws == Draws::Token) {
            let masks = self.constraints.pending(run.seq).map(|pending| pending.wait());
            if let Some(Err(error)) = masks {
                events.retain(|event| event.seq != run.seq);
                self.scheduler.abort(run.seq, &mut self.cache);
                self.shared.lock_monitor().stats.finished.failed += 1;
                let fault = match error {
                    ConstraintError::Impossible(_) => Fault::Request,
                    ConstraintError::Limit(_) => Fault::Limit,
                    ConstraintError::Broken(_) => Fault::Engine,
                };
                self.fail(run.seq, (fault, error.to_string()));
            }
        }
    }

    /// Counts and sends an event.
    fn deliver(&mut self, event: Event) {
        count_event(&mut self.shared.lock_monitor().stats, &event.kind);
        self.send(vec![event]);
    }

    /// Sends events; requests that end with them are forgotten.
    fn send(&mut self, events: Vec<Event>) {
        for event in &events {
            if matches!(event.kind, EventKind::Finished { .. } | EventKind::Corrupt) {
                self.forget(event.seq);
            }
        }
        self.courier.deliver(events);
    }

    /// Ends a request because of a fault.
    fn fail(&mut self, id: SeqId, why: (Fault, String)) {
        self.forget(id);
        self.courier.fail(id, why);
    }

    fn forget(&mut self, id: SeqId) {
        self.leave_queue(id);
        self.constraints.remove(id);
    }

    /// The request has had its first step, or ended without one.
    fn leave_queue(&mut self, id: SeqId) {
        if let Some(started) = self.queued.remove(&id) {
            self.shared.queued.fetch_sub(1, Ordering::AcqRel);
            // Whoever asked may be gone, or never ask.
            let _ = started.send(Instant::now());
        }
    }

    /// Drafts that were accepted by place; what a stop made superfluous counts as well.
    fn count_drafts(&self, outcomes: &[RunOutcome]) {
        let mut monitor = self.shared.lock_monitor();
        let drafts = &mut monitor.stats.drafts;
        for outcome in outcomes.iter().filter(|outcome| outcome.drafted > 0) {
            drafts.verifications += 1;
            let accepted = outcome.rows.len().saturating_sub(1);
            for place in 0..outcome.drafted.min(MAX_PLACES) {
                drafts.drafted[place] += 1;
                drafts.accepted[place] += u64::from(place < accepted);
            }
        }
    }

    fn count(&self, plan: &StepPlan, drafting: Duration) {
        let mut monitor = self.shared.lock_monitor();
        monitor.stats.steps += 1;
        monitor.stats.drafts.drafting += drafting;
        let prefilled = plan.runs.iter().filter(|run| {
            self.scheduler.running(run.seq).is_some_and(|s| run.tokens.len() > 1 || run.tokens.start < s.prompt_len())
        });
        monitor.stats.prefilled_tokens += prefilled.map(|run| run.tokens.len() as u64).sum::<u64>();
    }

    /// The numbers before and after a step, or while idle.
    fn publish(&mut self) {
        let usage = self.cache.usage();
        let never_ran = self.queued.len().saturating_sub(self.num_held());
        let mut monitor = self.shared.lock_monitor();
        monitor.stats.running = self.scheduler.num_running();
        monitor.stats.waiting = self.scheduler.num_waiting().saturating_sub(never_ran);
        monitor.stats.usage = usage;
        monitor.stats.prefixes = self.cache.stats();
    }

    /// A step has finished, or none is owed.
    fn note_progress(&self) {
        self.shared.lock_monitor().note_progress(if self.is_idle() { Work::None } else { Work::Left });
    }

    /// Nobody may wait for an engine that is gone: ends all streams, those still in the inbox included.
    fn end_everything(&mut self, state: &EngineState) {
        self.inbox.close();
        while let Ok(command) = self.inbox.try_recv() {
            if let Command::Submit(submission) = command {
                self.accept(*submission);
            }
        }
        self.release_held(|_| true);
        let dead = if let EngineState::Dead { reason } = state { Some(reason.clone()) } else { None };
        for id in self.scheduler.ids() {
            match (&dead, self.scheduler.abort(id, &mut self.cache)) {
                (None, Some(event)) => self.deliver(event),
                (Some(reason), _) => {
                    self.shared.lock_monitor().stats.finished.failed += 1;
                    self.fail(id, (Fault::Engine, format!("the engine has died: {reason}")));
                }
                (None, None) => {}
            }
        }
        self.publish();
        self.note_progress();
    }
}

fn count_event(stats: &mut EngineStats, kind: &EventKind) {
    match kind {
        EventKind::Token { .. } => stats.generated_tokens += 1,
        EventKind::Finished { reason: FinishReason::Stop { .. }, .. } => stats.finished.stop += 1,
        EventKind::Finished { reason: FinishReason::Length, .. } => stats.finished.length += 1,
        EventKind::Finished { reason: FinishReason::Abort, .. } => stats.finished.abort += 1,
        EventKind::Corrupt => {
            stats.corrupted_requests += 1;
            stats.finished.failed += 1;
        }
        EventKind::PromptLogprobs(_) => {}
    }
}

fn text_of(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|s| (*s).to_owned());
    text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_else(|| "no message".to_owned())
}
