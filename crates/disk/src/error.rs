//! What can go wrong with files.

use std::io;
use std::path::PathBuf;

use perilune_cache::WriteFault;

/// A directory or record that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum DiskError {
    /// The operating system refused.
    #[error("{path}: {cause}", path = path.display())]
    Io {
        /// The file or directory.
        path: PathBuf,
        /// Why.
        cause: io::Error,
    },
    /// Another process uses the directory.
    #[error("{path} is in use by another process", path = path.display())]
    InUse {
        /// The directory.
        path: PathBuf,
    },
    /// A file is not the record that it should be.
    #[error("{path} is not whole: {what}", path = path.display())]
    NotWhole {
        /// The file.
        path: PathBuf,
        /// What does not fit.
        what: &'static str,
    },
    /// The operating system gave no thread.
    #[error("cannot start a thread for the disk cache: {0}")]
    Thread(io::Error),
}

impl DiskError {
    /// What it means for what is to be written next.
    pub(crate) fn fault(&self) -> WriteFault {
        use io::ErrorKind::{FileTooLarge, QuotaExceeded, StorageFull};
        match self {
            DiskError::Io { cause, .. } if matches!(cause.kind(), StorageFull | QuotaExceeded | FileTooLarge) => {
                WriteFault::Full
            }
            _ => WriteFault::Other,
        }
    }

    pub(crate) fn io(path: impl Into<PathBuf>) -> impl FnOnce(io::Error) -> DiskError {
        let path = path.into();
        move |cause| DiskError::Io { path, cause }
    }
}
