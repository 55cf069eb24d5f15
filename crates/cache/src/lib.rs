//! Accounts for latent blocks and KDA state slots, and finds prefixes that need not be computed again.
//!
//! Numbers only; the memory they stand for belongs to the model's caches, and copies are queued as [`CacheOp`]s for
//! whoever owns it. A stored prefix is usable only where its blocks *and* a saved state exist at exactly the same number
//! of tokens; [`CacheManager::lookup`] finds the deepest such place, so that no caller can get it wrong. All memory of
//! running and stored sequences comes from one arena ([`Arena`]), which is the only allocator.

mod archive;
mod arena;
mod children;
mod disk;
mod error;
mod evict;
mod holes;
mod host;
mod key;
mod manager;
mod op;
mod record;
mod report;
mod restore;
mod sequence;
mod stats;
mod store;
mod tree;
mod value;
mod walk;

pub use archive::DiskRead;
pub use arena::{Arena, ArenaShape, BlockId, Move, Place, SlotId, UnitKind};
pub use disk::{DiskConfig, DiskMatch};
pub use error::CacheError;
pub use host::HostId;
pub use key::CacheKey;
pub use manager::{CacheConfig, CacheManager, Lookup, Match, Opened, Prefixes};
pub use op::CacheOp;
pub use record::{Record, RecordId, RecordKind, WriteFault};
pub use report::{CacheReport, PrefixReport, StateReport, Tier};
pub use sequence::SequenceCache;
pub use stats::{CacheStats, CacheUsage};
pub use walk::common_prefix;
