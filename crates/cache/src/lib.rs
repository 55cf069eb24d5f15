//! Accounts for latent blocks and KDA state slots: who holds which, and whether more can be had.
//!
//! Numbers only; the memory they stand for belongs to the model's caches. Everything is lent as a lease that returns
//! itself when dropped, so that an aborted sequence cannot leak. A cache of reusable prefixes will hold leases as any
//! sequence does.

mod blocks;
mod error;
mod manager;
mod slots;

pub use blocks::{BlockId, BlockLease, BlockPool};
pub use error::CacheError;
pub use manager::{CacheManager, CacheSizes, CacheUsage, SequenceCache};
pub use slots::{SlotId, SlotLease, StateSlots};
