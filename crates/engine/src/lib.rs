//! Owns a device thread; turns requests into token events.
//!
//! [`Engine::start`] takes a [`StepRunner`] (usually a model on a backend), spawns the thread and returns an
//! [`EngineHandle`]. [`EngineHandle::submit`] gives a [`TokenStream`]; dropping it ends the generation. Text, chat formats
//! and stop strings are not here: a caller that has seen enough drops the stream.

mod arrears;
mod config;
mod constraints;
mod courier;
mod device_thread;
mod disk_desk;
mod disk_tier;
mod error;
mod event;
mod handle;
mod model_runner;
mod runner;
mod saved;
mod sizing;
mod speculation;
mod state_format;
mod stats;
mod step;
mod stream;

pub use config::EngineConfig;
pub use constraints::PendingMasks;
pub use disk_tier::{DiskPatience, DiskTier};
pub use error::{EngineError, SubmitError};
pub use event::{Fault, TokenEvent};
pub use handle::{Engine, EngineHandle, EngineState, GenerateRequest};
pub use model_runner::ModelRunner;
pub use perilune_cache::{
    ArenaShape, CacheConfig, CacheKey, CacheManager, CacheOp, CacheReport, CacheStats, CacheUsage, DiskConfig, HostId,
    Place, PrefixReport, Prefixes, RecordId, SequenceCache, StateReport, Tier, UnitKind,
};
pub use perilune_disk::{DiskError, DiskStore, Found, Identity, IdentityHasher, Unit};
pub use perilune_sampling::{
    ConstraintError, Grammar, SamplingParams, SharedGrammar, TokenConstraint, TokenLogprob, TokenLogprobs,
};
pub use perilune_scheduler::{CheckpointRules, FinishReason, Known as KnownPlaces, TokenRole, Usage};
pub use runner::{DrawnDrafts, HostUnits, StateCopy, StepInput, StepOutput, StepRun, StepRunner};
pub use sizing::{PoolRequest, PoolSizes, size_pools};
pub use speculation::Speculation;
pub use state_format::StateFormat;
pub use stats::{DraftStats, EngineStats, FinishCounts, MAX_PLACES};
pub use stream::TokenStream;
