//! A request as spans of OpenTelemetry, in OTLP's JSON encoding: the request, and for each choice `queue`, `prefill` and
//! `decode` below it.
//!
//! Encoded here rather than by the `opentelemetry` crates: their HTTP exporter brings protobuf code (prost, tonic) into the
//! build, and the JSON encoding is a dozen fields.

use std::time::{Instant, SystemTime};

use serde_json::{Value, json};

use super::trace_parent::Sampled;
use super::{Entry, Turn};

/// `SPAN_KIND_SERVER` and `SPAN_KIND_INTERNAL`.
const SERVER: u8 = 2;
const INTERNAL: u8 = 1;
/// `STATUS_CODE_ERROR`.
const FAILED: u8 = 2;

/// Times of a request, as the wall clock has them.
struct Clock<'a>(&'a Entry);

impl Clock<'_> {
    fn nanos(&self, at: Instant) -> String {
        let Entry { began, clock, .. } = self.0;
        // Instants before the request's own are its own.
        let time = *began + at.saturating_duration_since(*clock);
        time.duration_since(SystemTime::UNIX_EPOCH).map_or(0, |since| since.as_nanos()).to_string()
    }
}

/// The spans of a request that ended at `end`; none where its caller does not record its trace.
pub(super) fn spans(entry: &Entry, turns: &[Turn], end: Instant) -> Vec<Value> {
    if entry.parent.as_ref().is_some_and(|parent| parent.sampled == Sampled::No) {
        return Vec::new();
    }
    let trace_id = entry.parent.as_ref().map_or_else(|| random_hex(16), |parent| parent.trace_id.clone());
    let (root_id, clock) = (random_hex(8), Clock(entry));
    let mut root = json!({
        "traceId": trace_id, "spanId": root_id, "name": format!("{} {}", entry.method, entry.route), "kind": SERVER,
        "startTimeUnixNano": clock.nanos(entry.clock), "endTimeUnixNano": clock.nanos(end),
        "attributes": attributes(entry, turns),
    });
    if let Some(parent) = &entry.parent {
        root["parentSpanId"] = json!(parent.span_id);
    }
    if entry.status >= 500 || turns.iter().any(|turn| turn.end == "error") {
        root["status"] = json!({"code": FAILED});
    }
    let mut all = vec![root];
    for (choice, turn) in turns.iter().enumerate() {
        for (name, from, to) in stages(turn) {
            all.push(json!({
                "traceId": trace_id, "spanId": random_hex(8), "parentSpanId": root_id, "name": name, "kind": INTERNAL,
                "startTimeUnixNano": clock.nanos(from), "endTimeUnixNano": clock.nanos(to),
                "attributes": [attribute("perilune.choice", choice.into())],
            }));
        }
    }
    all
}

/// What a choice went through, and when.
fn stages(turn: &Turn) -> Vec<(&'static str, Instant, Instant)> {
    let mut stages = vec![("queue", turn.submitted, turn.started.unwrap_or(turn.ended))];
    if let Some(started) = turn.started {
        stages.push(("prefill", started, turn.first_token.unwrap_or(turn.ended)));
    }
    if let Some(first) = turn.first_token {
        stages.push(("decode", first, turn.ended));
    }
    stages
}

/// Names are those of OpenTelemetry's conventions for HTTP and for generative models, where they have one.
fn attributes(entry: &Entry, turns: &[Turn]) -> Vec<Value> {
    let mut all = vec![
        attribute("http.request.method", entry.method.as_str().into()),
        attribute("http.route", entry.route.as_str().into()),
        attribute("url.path", entry.path.as_str().into()),
        attribute("http.response.status_code", entry.status.into()),
        attribute("perilune.request_id", entry.id.as_str().into()),
    ];
    if let Some(peer) = entry.peer {
        all.push(attribute("client.address", peer.ip().to_string().into()));
    }
    if let Some(turn) = turns.iter().max_by_key(|turn| turn.prompt_tokens) {
        let completion: usize = turns.iter().map(|turn| turn.completion_tokens).sum();
        let reasons: Vec<Value> = turns.iter().map(|turn| json!({"stringValue": turn.end})).collect();
        all.extend([
            attribute("gen_ai.usage.input_tokens", turn.prompt_tokens.into()),
            attribute("gen_ai.usage.output_tokens", completion.into()),
            attribute("perilune.cached_tokens", turn.cached_tokens.into()),
            json!({"key": "gen_ai.response.finish_reasons", "value": {"arrayValue": {"values": reasons}}}),
        ]);
    }
    all
}

/// Text or a whole number; OTLP writes numbers of 64 bits as text.
fn attribute(key: &str, value: Value) -> Value {
    let value = match value {
        Value::Number(number) => json!({"intValue": number.to_string()}),
        other => json!({"stringValue": other}),
    };
    json!({"key": key, "value": value})
}

/// So many random bytes, as hexadecimal digits.
fn random_hex(num_bytes: usize) -> String {
    let mut bytes = [0_u8; 16];
    let bytes = &mut bytes[..num_bytes];
    if getrandom::fill(bytes).is_err() {
        // Ids of zeros are invalid: whoever collects spans drops this one.
        bytes.fill(0);
    }
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// A request to a collector.
pub(super) fn export(spans: Vec<Value>) -> Value {
    json!({"resourceSpans": [{
        "resource": {"attributes": [
            attribute("service.name", "perilune".into()),
            attribute("service.version", env!("CARGO_PKG_VERSION").into()),
        ]},
        "scopeSpans": [{"scope": {"name": "perilune", "version": env!("CARGO_PKG_VERSION")}, "spans": spans}],
    }]})
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use axum::http::Version;

    use super::*;
    use crate::journal::trace_parent::TraceParent;

    const PARENT: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

    fn entry(parent: Option<&str>, status: u16) -> Entry {
        Entry {
            began: SystemTime::UNIX_EPOCH + Duration::from_secs(1000),
            clock: Instant::now(),
            peer: None,
            method: "POST".to_owned(),
            path: "/v1/completions".to_owned(),
            route: "/v1/completions".to_owned(),
            version: Version::HTTP_11,
            id: "a".to_owned(),
            parent: parent.and_then(TraceParent::parse),
            status,
            num_bytes: 7,
        }
    }

    #[test]
    fn the_stages_of_a_choice_follow_each_other_below_the_request() {
        let entry = entry(Some(PARENT), 200);
        let at = |ms: u64| entry.clock + Duration::from_millis(ms);
        let turn = Turn {
            submitted: at(1),
            started: Some(at(3)),
            first_token: Some(at(10)),
            ended: at(20),
            prompt_tokens: 9,
            cached_tokens: 4,
            completion_tokens: 3,
            end: "stop",
        };
        let waited = Turn { started: None, first_token: None, ..turn };
        let all = spans(&entry, &[turn, waited], at(25));
        let names: Vec<&str> = all.iter().map(|span| span["name"].as_str().unwrap()).collect();
        assert_eq!(names, ["POST /v1/completions", "queue", "prefill", "decode", "queue"]);
        let ms = |span: &Value, key: &str| span[key].as_str().unwrap().parse::<u128>().unwrap() / 1_000_000 - 1_000_000;
        let times: Vec<_> = all.iter().map(|s| (ms(s, "startTimeUnixNano"), ms(s, "endTimeUnixNano"))).collect();
        assert_eq!(times, [(0, 25), (1, 3), (3, 10), (10, 20), (1, 20)]);
        assert_eq!(all[0]["parentSpanId"], "00f067aa0ba902b7");
        assert!(all.iter().all(|span| span["traceId"] == "4bf92f3577b34da6a3ce929d0e0e4736"));
        assert!(all[1..].iter().all(|span| span["parentSpanId"] == all[0]["spanId"]));
        let attributes = all[0]["attributes"].to_string();
        assert!(
            attributes.contains(r#"{"key":"gen_ai.usage.output_tokens","value":{"intValue":"6"}}"#),
            "{attributes}"
        );
        assert_eq!(all[0].get("status"), None);
    }

    #[test]
    fn callers_decide_and_failures_are_marked() {
        let end = Instant::now();
        let off = PARENT.replace("-01", "-00");
        assert!(spans(&entry(Some(&off), 200), &[], end).is_empty());
        let root = spans(&entry(None, 503), &[], end).remove(0);
        assert_eq!((root.get("parentSpanId"), &root["status"]["code"]), (None, &json!(FAILED)));
        assert_eq!((root["traceId"].as_str().unwrap().len(), root["spanId"].as_str().unwrap().len()), (32, 16));
    }
}
