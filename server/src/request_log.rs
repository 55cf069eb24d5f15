//! A log of requests as `simulate-cache --trace` reads it: one JSON object a line, tokens in the clear.
//!
//! Lines are written when requests end, in whatever order that is; each has the time of its arrival.

use std::fs::File;
use std::io::Write;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use perilune_tensor::TokenId;
use serde_json::json;
use sha2::{Digest, Sha256};

use crate::error::ServerError;

/// An open log.
#[derive(Debug, Clone)]
pub struct RequestLog(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    file: Mutex<File>,
}

impl PartialEq for RequestLog {
    /// Whether both write to the same open file.
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Eq for RequestLog {}

impl RequestLog {
    /// Opens a file, made where it is absent; what it holds stays.
    ///
    /// # Errors
    /// `Flag` where it cannot be written.
    pub fn open(path: &Path) -> Result<RequestLog, ServerError> {
        let mut options = File::options();
        options.create(true).append(true);
        // Tokens are what people wrote.
        #[cfg(unix)]
        std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
        let file = options.open(path).map_err(|error| ServerError::Flag {
            flag: "--request-log",
            value: path.display().to_string(),
            rule: error.to_string(),
        })?;
        Ok(RequestLog(Arc::new(Inner { file: Mutex::new(file) })))
    }

    /// A request that has just been taken, under its `cache_salt`; it is written when the entry is dropped.
    pub(crate) fn entry(&self, (prompt, save_at): (&[TokenId], &[usize]), salt: Option<&str>) -> LogEntry {
        // Of the world's clock, as the file may hold what several processes wrote.
        let timestamp_ms = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |passed| passed.as_millis() as u64);
        let (prompt, save_at) = (prompt.to_vec(), save_at.to_vec());
        LogEntry { log: self.clone(), timestamp_ms, prompt, save_at, salt: salt.map(fingerprint), output: Vec::new() }
    }
}

/// Stands for a salt, which is a secret of its tenant: the first half of its SHA-256, in hexadecimal digits.
fn fingerprint(salt: &str) -> String {
    Sha256::digest(salt).iter().take(16).map(|byte| format!("{byte:02x}")).collect()
}

/// A request on its way.
#[derive(Debug)]
pub(crate) struct LogEntry {
    log: RequestLog,
    timestamp_ms: u64,
    prompt: Vec<TokenId>,
    save_at: Vec<usize>,
    salt: Option<String>,
    output: Vec<TokenId>,
}

impl LogEntry {
    /// A token was generated.
    pub(crate) fn push(&mut self, token: TokenId) {
        self.output.push(token);
    }
}

impl Drop for LogEntry {
    fn drop(&mut self) {
        let ids = |tokens: &[TokenId]| tokens.iter().map(|token| token.0).collect::<Vec<u32>>();
        let mut line = json!({
            "timestamp": self.timestamp_ms, "tokens": ids(&self.prompt), "output": ids(&self.output),
            "checkpoints": self.save_at,
        });
        if let Some(salt) = self.salt.take() {
            line["salt"] = json!(salt);
        }
        let mut file = self.log.0.file.lock().unwrap_or_else(PoisonError::into_inner);
        // One write, so that a line is whole or missing.
        if let Err(error) = file.write_all(format!("{line}\n").as_bytes()) {
            tracing::warn!(%error, "a request was not logged");
        }
    }
}
