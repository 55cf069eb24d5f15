//! The device thread's dealings with the disk: requests that wait for a stored prefix to be read, units on their way out.
//!
//! A request whose prompt goes on from something on disk is held until that has been read or the patience with reads is over;
//! then it is scheduled like any other, and finds in memory what there is. Steps never wait.

use std::sync::mpsc::Receiver;
use std::time::{Duration, Instant};

use perilune_cache::{DiskConfig, DiskRead, Record, RecordId};
use perilune_disk::{DiskEvent, DiskJob, DiskThread};
use perilune_scheduler::{SeqId, SequenceRequest};

use crate::device_thread::DeviceThread;
use crate::disk_tier::DiskPatience;
use crate::handle::Command;
use crate::{StepInput, StepRunner};

/// How long to sleep where there is nothing to do but wait for the disk.
const NAP: Duration = Duration::from_micros(500);

/// See the module.
#[derive(Debug)]
pub(crate) struct DiskDesk {
    thread: DiskThread,
    events: Receiver<DiskEvent>,
    held: Vec<Held>,
    next_ticket: u64,
    /// Writes asked for and not reported yet.
    writing: usize,
    patience: DiskPatience,
}

/// A desk with what the cache is to know of it.
pub(crate) struct OpenDesk {
    pub(crate) desk: DiskDesk,
    pub(crate) config: DiskConfig,
    pub(crate) found: Vec<Record>,
}

/// A request that waits for a read.
#[derive(Debug)]
struct Held {
    request: SequenceRequest,
    read: DiskRead,
    ticket: u64,
    until: Instant,
}

impl DiskDesk {
    pub(crate) fn new(thread: DiskThread, events: Receiver<DiskEvent>, patience: DiskPatience) -> Self {
        DiskDesk { thread, events, held: Vec::new(), next_ticket: 0, writing: 0, patience }
    }

    /// Holds a request until what it wants has been read; one that wants the same as another waits for the same read.
    fn hold(&mut self, (request, read): (SequenceRequest, DiskRead), until: Instant) {
        let state = read.records.last();
        let same = self.held.iter().find(|held| held.read.records.last() == state).map(|held| held.ticket);
        let ticket = same.unwrap_or_else(|| {
            self.next_ticket += 1;
            self.thread.send(DiskJob::Read { ticket: self.next_ticket, records: read.records.clone() });
            self.next_ticket
        });
        self.held.push(Held { request, read, ticket, until });
    }
}

impl<R: StepRunner> DeviceThread<R> {
    /// Lets a request wait for the disk where that helps, or schedules it.
    pub(crate) fn admit(&mut self, request: SequenceRequest) {
        let patience = self.disk.as_ref().map_or(Duration::ZERO, |desk| desk.patience.read);
        self.admit_until(request, Instant::now() + patience);
    }

    fn admit_until(&mut self, request: SequenceRequest, until: Instant) {
        // Scores of a prompt are computed whatever is stored; so is its last token.
        let reusable = if request.params.prompt_logprobs.is_some() { 0 } else { request.prompt.len() - 1 };
        let wanted = match &self.disk {
            Some(_) if Instant::now() < until => self.cache.wanted_from_disk(&request.key, &request.prompt, reusable),
            _ => None,
        };
        match (wanted, &mut self.disk) {
            (Some(read), Some(desk)) => desk.hold((request, read), until),
            _ => self.scheduler.add(request),
        }
    }

    /// Requests that wait for the disk.
    pub(crate) fn num_held(&self) -> usize {
        self.disk.as_ref().map_or(0, |desk| desk.held.len())
    }

    /// Schedules held requests of which `wanted` says so, in their order, with what is in memory.
    pub(crate) fn release_held(&mut self, wanted: impl Fn(SeqId) -> bool) {
        let Some(desk) = &mut self.disk else { return };
        let released: Vec<Held> = desk.held.extract_if(.., |held| wanted(held.request.id)).collect();
        released.into_iter().for_each(|held| self.scheduler.add(held.request));
    }

    /// Takes in what the disk's thread reports, lets go of requests that have waited long enough, and has files removed.
    pub(crate) fn attend_disk(&mut self) {
        if self.disk.is_none() {
            return;
        }
        while let Some(event) = self.disk.as_ref().and_then(|desk| desk.events.try_recv().ok()) {
            self.note_event(event);
        }
        let now = Instant::now();
        let late = |held: &Held| (held.until <= now).then_some(held.request.id);
        let late: Vec<SeqId> = self.disk.iter().flat_map(|desk| desk.held.iter().filter_map(late)).collect();
        if !late.is_empty() {
            tracing::warn!(requests = late.len(), "the disk is slow: prefixes on it are computed again");
            self.release_held(|id| late.contains(&id));
        }
        self.send_removals();
        if self.scheduler.is_idle() && self.num_held() > 0 {
            std::thread::sleep(NAP);
        }
    }

    fn note_event(&mut self, event: DiskEvent) {
        let Some(desk) = &mut self.disk else { return };
        match event {
            DiskEvent::Written(record) => {
                desk.writing -= 1;
                self.cache.record_written(record);
            }
            DiskEvent::NotWritten(record, fault) => {
                desk.writing -= 1;
                self.cache.record_not_written(record, fault);
            }
            DiskEvent::Read { ticket, units } => self.take_read(ticket, units),
            DiskEvent::Lost { ticket, record } => {
                self.cache.record_lost(record);
                let held: Vec<Held> = desk.held.extract_if(.., |held| held.ticket == ticket).collect();
                // There may be something else on disk that helps.
                held.into_iter().for_each(|held| self.admit_until(held.request, held.until));
            }
        }
    }

    /// Units that were read go to memory, and who waited for them is scheduled.
    fn take_read(&mut self, ticket: u64, mut units: Vec<(RecordId, Vec<u8>)>) {
        let Some(desk) = &mut self.disk else { return };
        let held: Vec<Held> = desk.held.extract_if(.., |held| held.ticket == ticket).collect();
        // Those who waited too long are gone; what they wanted is not brought to memory for nobody.
        let Some(Held { request, read, .. }) = held.first() else { return };
        let staged = self.cache.adopt(&request.key, &request.prompt[..read.position], read);
        if let Some(host) = self.runner.host_units() {
            for (record, id) in staged {
                let Some(at) = units.iter().position(|(unit, _)| *unit == record) else { continue };
                host.put(id, units.swap_remove(at).1);
            }
        }
        held.into_iter().for_each(|held| self.scheduler.add(held.request));
    }

    fn send_removals(&mut self) {
        let removed = self.cache.take_removed_records();
        if let (Some(desk), false) = (&self.disk, removed.is_empty()) {
            desk.thread.send(DiskJob::Remove(removed));
        }
    }

    /// Sends what the last step's operations set aside to the disk, after the removal of what gave way to it.
    pub(crate) fn send_archived(&mut self) {
        self.send_removals();
        let (Some(desk), Some(host)) = (&mut self.disk, self.runner.host_units()) else { return };
        for (id, unit) in host.take_archived() {
            // One that was removed meanwhile is not wanted any more.
            let Some(record) = self.cache.record(id).cloned() else { continue };
            desk.writing += 1;
            desk.thread.send(DiskJob::Write { record, unit });
        }
    }

    /// At the end of an engine in good order: writes stored prefixes that are in memory only, most valuable first, for a
    /// while.
    ///
    /// # Errors
    /// Why the runner failed.
    pub(crate) fn save_everything(&mut self) -> Result<(), String> {
        let Some(patience) = self.disk.as_ref().map(|desk| desk.patience) else { return Ok(()) };
        let until = Instant::now() + patience.save;
        let failed = self.cache.stats().disk_skips;
        while Instant::now() < until {
            let more = self.cache.archive_stored();
            let kept = std::mem::take(&mut self.kept);
            let input = StepInput { kept, ops: self.cache.take_ops(), runs: Vec::new() };
            self.runner.run(&input).map_err(|error| error.to_string())?;
            self.send_archived();
            while self.disk.as_ref().is_some_and(|desk| desk.writing > 0) && Instant::now() < until {
                self.attend_disk();
                // Whoever still comes gets an answer: the engine has stopped.
                while let Ok(command) = self.inbox.try_recv() {
                    if let Command::Submit(submission) = command {
                        self.accept(*submission);
                    }
                }
                std::thread::sleep(NAP);
            }
            // A disk that does not take one does not take the next.
            if !more || self.cache.stats().disk_skips > failed {
                break;
            }
        }
        Ok(())
    }
}
