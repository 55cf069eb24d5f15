//! K3 and Kimi-Linear as a sequence of backend calls: one code path, features chosen by the configuration.
//!
//! [`Kimi`] holds the weights, [`Caches`] what sequences leave behind, [`Workspace`] the activations of a step,
//! [`ForwardBatch`] which rows of a step belong to which sequence. A step is [`ForwardBatch::fill`], then
//! [`Kimi::forward`], then sampling from [`Workspace::logits`]. Nothing is allocated on the device during a step, so
//! [`StepGraphs`] can record one and replay it where the device can.

mod batch;
mod caches;
mod columns;
mod error;
mod feed_forward;
mod fold;
mod forward;
mod graphs;
mod kda;
mod kimi;
mod late;
mod load;
mod mla;
mod residual;
mod tap;
mod workspace;

pub use batch::{BatchPlan, Effect, ForwardBatch, LogitRows, MAX_DECODE_ROWS, Run, SlotCopy};
pub use caches::{CacheShape, Caches};
pub use error::ModelError;
pub use fold::{FoldBatch, FoldRun};
pub use graphs::{StepGraphs, StepShape};
pub use kimi::Kimi;
pub use late::LateTaps;
pub use tap::{TapSpec, TapStream, TappedRows};
pub use workspace::{StepLimits, Workspace};
