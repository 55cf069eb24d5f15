//! Sends spans to a collector: OTLP over HTTP, in its JSON encoding.

use std::time::{Duration, Instant};

use serde_json::Value;

use super::sink::{Consumer, Sink};
use super::spans::{export, spans};
use super::{Entry, Turn};

/// The longest that a collector may take.
const LIMIT: Duration = Duration::from_secs(5);

/// Sends spans, batch by batch.
#[derive(Debug)]
pub(super) struct Traces(Sink<Vec<Value>>);

impl Traces {
    /// To the collector at `endpoint`, its path included.
    pub(super) fn to(endpoint: String) -> std::io::Result<Self> {
        let agent = ureq::Agent::config_builder().timeout_global(Some(LIMIT)).build().into();
        Ok(Traces(Sink::start("perilune-traces", Exporter { endpoint, agent, is_failing: None })?))
    }

    pub(super) fn write(&self, entry: &Entry, turns: &[Turn]) {
        let spans = spans(entry, turns, Instant::now());
        if !spans.is_empty() {
            self.0.send(spans);
        }
    }

    pub(super) fn flush(&self, limit: Duration) {
        self.0.flush(limit);
    }
}

struct Exporter {
    endpoint: String,
    agent: ureq::Agent,
    /// Why the last batch did not arrive: said once, not for each batch.
    is_failing: Option<String>,
}

impl Consumer<Vec<Value>> for Exporter {
    const PATIENCE: Duration = Duration::from_secs(1);

    fn take(&mut self, batch: Vec<Vec<Value>>) {
        let body = export(batch.concat());
        let sent = self.agent.post(&self.endpoint).send_json(&body);
        match (sent, self.is_failing.take()) {
            (Ok(_), None) => {}
            (Ok(_), Some(_)) => tracing::info!(endpoint = self.endpoint, "traces arrive again"),
            (Err(error), before) => {
                let reason = error.to_string();
                if before.as_ref() != Some(&reason) {
                    tracing::warn!(endpoint = self.endpoint, reason, "traces do not arrive and are dropped");
                }
                self.is_failing = Some(reason);
            }
        }
    }

    fn dropped(&mut self, num_items: u64) {
        tracing::warn!(requests = num_items, "traces are sent too slowly; some were dropped");
    }
}
