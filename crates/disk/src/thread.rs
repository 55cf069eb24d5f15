//! Reads and writes on a thread of its own, so that no step waits for a disk.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;

use perilune_cache::{Record, RecordId, WriteFault};

use crate::{DiskError, DiskStore};

/// The bytes of a unit, fetched on the disk's thread; `None` where the device could not give them.
pub type Unit = Box<dyn FnOnce() -> Option<Vec<u8>> + Send>;

/// Something to do, in the order of arrival.
pub enum DiskJob {
    /// Writes a unit.
    Write {
        /// What it is.
        record: Record,
        /// Its bytes.
        unit: Unit,
    },
    /// Reads units until one is not whole.
    Read {
        /// Comes back with the result.
        ticket: u64,
        /// Which.
        records: Vec<RecordId>,
    },
    /// Removes records.
    Remove(Vec<RecordId>),
}

/// What came of a job.
#[derive(Debug)]
pub enum DiskEvent {
    /// A record is on disk.
    Written(RecordId),
    /// A record could not be written.
    NotWritten(RecordId, WriteFault),
    /// All units of a read.
    Read {
        /// Of which job.
        ticket: u64,
        /// Their bytes.
        units: Vec<(RecordId, Vec<u8>)>,
    },
    /// A read found a record that is gone or not whole.
    Lost {
        /// Of which job.
        ticket: u64,
        /// The record.
        record: RecordId,
    },
}

/// The thread. Dropping it waits for the job at hand and for removals, not for reads and writes that have not begun.
#[derive(Debug)]
pub struct DiskThread {
    ending: Arc<AtomicBool>,
    jobs: Option<Sender<DiskJob>>,
    thread: Option<JoinHandle<()>>,
}

impl DiskThread {
    /// Starts it; `report` is called on it.
    ///
    /// # Errors
    /// `Thread`.
    pub fn start(store: DiskStore, report: impl FnMut(DiskEvent) + Send + 'static) -> Result<DiskThread, DiskError> {
        let (jobs, inbox) = channel();
        let thread = std::thread::Builder::new().name("perilune-disk".into());
        let ending = Arc::new(AtomicBool::new(false));
        let seen = ending.clone();
        let thread = thread.spawn(move || work(store, (inbox, &seen), report)).map_err(DiskError::Thread)?;
        Ok(DiskThread { ending, jobs: Some(jobs), thread: Some(thread) })
    }

    /// Queues a job. Never waits.
    pub fn send(&self, job: DiskJob) {
        if let Some(jobs) = &self.jobs {
            // A thread that is gone does nothing any more; reads then run into their deadline.
            let _ = jobs.send(job);
        }
    }
}

impl Drop for DiskThread {
    fn drop(&mut self) {
        self.ending.store(true, Ordering::Release);
        self.jobs.take();
        if let Some(thread) = self.thread.take() {
            // It has nothing to say at its end.
            let _ = thread.join();
        }
    }
}

fn work(mut store: DiskStore, (inbox, ending): (Receiver<DiskJob>, &AtomicBool), mut report: impl FnMut(DiskEvent)) {
    let mut failing = false;
    while let Ok(job) = inbox.recv() {
        match job {
            DiskJob::Write { .. } | DiskJob::Read { .. } if ending.load(Ordering::Acquire) => {}
            DiskJob::Write { record, unit } => report(write(&mut store, (&record, unit), &mut failing)),
            DiskJob::Read { ticket, records } => report(read(&mut store, ticket, records)),
            DiskJob::Remove(records) => records.into_iter().for_each(|id| store.remove(id)),
        }
    }
}

/// Of failures in a row only the first is said.
fn write(store: &mut DiskStore, (record, unit): (&Record, Unit), failing: &mut bool) -> DiskEvent {
    let Some(bytes) = unit() else { return DiskEvent::NotWritten(record.id, WriteFault::Other) };
    match store.write(record, &bytes) {
        Ok(()) => {
            *failing = false;
            DiskEvent::Written(record.id)
        }
        Err(error) => {
            if !std::mem::replace(failing, true) {
                tracing::warn!(%error, "a stored prefix was not written to disk");
            }
            DiskEvent::NotWritten(record.id, error.fault())
        }
    }
}

fn read(store: &mut DiskStore, ticket: u64, wanted: Vec<RecordId>) -> DiskEvent {
    let mut units = Vec::with_capacity(wanted.len());
    for record in wanted {
        match store.read(record) {
            Ok(bytes) => units.push((record, bytes)),
            Err(error) => {
                tracing::warn!(%error, "a stored prefix cannot be read from disk and is computed again");
                return DiskEvent::Lost { ticket, record };
            }
        }
    }
    DiskEvent::Read { ticket, units }
}
