//! Keeps states and blocks of stored prefixes in files that survive a restart.
//!
//! [`DiskStore`] is a directory of records, one file each, every byte under a checksum and every record bound to the model
//! that computed it; whatever is torn, changed or somebody else's is removed and never read as if it were whole.
//! [`DiskThread`] does the reading and writing on a thread of its own. What is kept, and what gives way, is decided by
//! `perilune-cache`.

mod error;
mod identity;
mod layout;
mod store;
mod thread;

pub use error::DiskError;
pub use identity::{Identity, IdentityHasher};
pub use store::{DiskStore, Found};
pub use thread::{DiskEvent, DiskJob, DiskThread, Unit};
