//! What is written down of each HTTP request once its answer was sent: a line of the access log, spans of a trace.
//!
//! Nothing is written while a request runs; its choices note when they waited, began and ended ([`Turn`]), and the end of
//! the response's body writes all of it. Where neither log nor traces are wanted, nothing is noted.

mod access_log;
mod otlp;
mod record;
mod sink;
mod spans;
mod trace_parent;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use axum::extract::{ConnectInfo, MatchedPath, Request, State};
use axum::http::{HeaderMap, Version};
use axum::middleware::Next;
use axum::response::Response;

pub use access_log::LogForm;
pub(crate) use record::{OpenTurn, RequestRecord, Turn};

use crate::app::SharedApp;
use crate::error::ServerError;
use crate::held_body::{Held, holding};
use crate::request_id::RequestId;
use access_log::AccessLog;
use otlp::Traces;
use trace_parent::TraceParent;

/// Longest path that is written.
const MAX_PATH_CHARS: usize = 256;

/// Where a client connects from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Peer(pub SocketAddr);

/// What is written, and where to.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct JournalSettings {
    /// The form of the access log on the standard output; `None` for no such log.
    pub access_log: Option<LogForm>,
    /// Where traces go, the path included; `None` for no traces.
    pub traces_endpoint: Option<String>,
}

/// Writes down requests.
#[derive(Debug, Default)]
pub struct Journal {
    log: Option<AccessLog>,
    traces: Option<Traces>,
}

/// A request as the journal knows it.
#[derive(Debug)]
pub(crate) struct Entry {
    pub began: SystemTime,
    pub clock: Instant,
    pub peer: Option<SocketAddr>,
    pub method: String,
    /// As sent, without the query, shortened.
    pub path: String,
    /// As the router has it.
    pub route: String,
    pub version: Version,
    pub id: String,
    pub parent: Option<TraceParent>,
    pub status: u16,
    /// Bytes of the answer's body.
    pub num_bytes: usize,
}

impl Journal {
    /// A journal.
    ///
    /// # Errors
    /// `Io` where a thread that writes cannot be started.
    pub fn open(settings: &JournalSettings) -> Result<Self, ServerError> {
        let io = |source| ServerError::Io { what: "cannot start a thread that writes".to_owned(), source };
        Ok(Journal {
            log: settings.access_log.map(AccessLog::to_stdout).transpose().map_err(io)?,
            traces: settings.traces_endpoint.clone().map(Traces::to).transpose().map_err(io)?,
        })
    }

    /// Waits until all of it is written, at most for `limit` each.
    pub fn flush(&self, limit: Duration) {
        self.log.iter().for_each(|log| log.flush(limit));
        self.traces.iter().for_each(|traces| traces.flush(limit));
    }

    fn is_open(&self) -> bool {
        self.log.is_some() || self.traces.is_some()
    }

    fn write(&self, entry: &Entry, turns: &[Turn]) {
        if let Some(log) = &self.log {
            log.write(entry, turns);
        }
        if let Some(traces) = &self.traces {
            traces.write(entry, turns);
        }
    }
}

impl Entry {
    fn of(request: &Request) -> Self {
        let extensions = request.extensions();
        Entry {
            began: SystemTime::now(),
            clock: Instant::now(),
            peer: extensions.get::<ConnectInfo<Peer>>().map(|info| info.0.0),
            method: request.method().to_string(),
            path: request.uri().path().chars().take(MAX_PATH_CHARS).collect(),
            route: extensions.get::<MatchedPath>().map_or("unknown", MatchedPath::as_str).to_owned(),
            version: request.version(),
            id: extensions.get::<RequestId>().map(|id| id.0.clone()).unwrap_or_default(),
            parent: parent(request.headers()),
            status: 0,
            num_bytes: 0,
        }
    }
}

fn parent(headers: &HeaderMap) -> Option<TraceParent> {
    headers.get("traceparent").and_then(|value| value.to_str().ok()).and_then(TraceParent::parse)
}

/// An entry that is written when its response's body ends.
struct Pending {
    app: SharedApp,
    entry: Entry,
    record: Arc<RequestRecord>,
}

impl Held for Pending {
    fn sent(&mut self, num_bytes: usize) {
        self.entry.num_bytes += num_bytes;
    }
}

impl Drop for Pending {
    fn drop(&mut self) {
        self.app.journal.write(&self.entry, &self.record.take());
    }
}

/// Notes a request and writes it down once its answer was sent, or its client has left.
pub(crate) async fn note(State(app): State<SharedApp>, mut request: Request, next: Next) -> Response {
    if !app.journal.is_open() {
        return next.run(request).await;
    }
    let record = Arc::new(RequestRecord::default());
    let mut pending = Pending { entry: Entry::of(&request), app: app.clone(), record: record.clone() };
    request.extensions_mut().insert(record);
    let response = next.run(request).await;
    pending.entry.status = response.status().as_u16();
    holding(response, pending)
}
