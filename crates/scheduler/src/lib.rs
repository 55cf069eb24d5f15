//! Decides what the next step computes: continuous batching, chunked prefill mixed with decode, preemption, and where
//! states are saved for later requests.
//!
//! Plain data and plain functions: no tensors, no threads, no clock. A step goes
//! [`Scheduler::plan`] → (somebody computes) → [`Scheduler::commit`].

mod checkpoints;
mod event;
mod plan;
mod scheduler;
mod sequence;

pub use checkpoints::{CheckpointRules, Known, PlannedPositions};
pub use event::{Event, EventKind, FinishReason, SeqId, TokenRole, Usage};
pub use plan::{Committed, Draws, PlannedRun, PlannedSnapshot, RowOutcome, RunOutcome, StepPlan, Turn};
pub use scheduler::{Scheduler, SchedulerConfig};
pub use sequence::{Occurrences, Sequence, SequenceRequest};
