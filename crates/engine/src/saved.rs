//! Units that are in host memory, or on their way there.

use std::sync::{Arc, Mutex, PoisonError};

use perilune_backend::{BackendError, Download};

/// Bytes of a unit, shared with whoever writes them to disk.
#[derive(Clone)]
pub(crate) struct Saved(Arc<Mutex<Bytes>>);

/// Where they are.
pub(crate) enum Bytes {
    /// On their way.
    Coming(Download<Vec<u8>>),
    /// In host memory.
    Here(Vec<u8>),
    /// They did not arrive.
    Lost,
}

impl Saved {
    pub(crate) fn new(bytes: Bytes) -> Self {
        Saved(Arc::new(Mutex::new(bytes)))
    }

    /// Does something with the bytes, once they are here.
    pub(crate) fn with<T>(&self, use_bytes: impl FnOnce(&[u8]) -> T) -> Result<T, BackendError> {
        let mut bytes = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        *bytes = match std::mem::replace(&mut *bytes, Bytes::Lost) {
            Bytes::Coming(coming) => Bytes::Here(coming.wait()?),
            other => other,
        };
        match &*bytes {
            Bytes::Here(bytes) => Ok(use_bytes(bytes)),
            _ => Err(BackendError::Device("a unit did not arrive in host memory".into())),
        }
    }
}

impl std::fmt::Debug for Saved {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Saved")
    }
}
