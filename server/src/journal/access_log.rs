//! The access log: one line per request on the standard output, as text or as JSON.
//!
//! What clients chose (paths, ids) is escaped, so that one request is one line.

use std::fmt::Write as _;
use std::io::Write;
use std::time::Duration;

use clap::ValueEnum;
use serde_json::{Map, Value, json};
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::time::FormatTime;

use super::sink::{Consumer, Sink};
use super::{Entry, Turn};

/// The form of the access log.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum LogForm {
    /// For people.
    Text,
    /// For programs: an object a line.
    Json,
}

/// Writes lines.
#[derive(Debug)]
pub(super) struct AccessLog {
    form: LogForm,
    lines: Sink<String>,
}

struct Stdout;

impl Consumer<String> for Stdout {
    const PATIENCE: Duration = Duration::ZERO;

    fn take(&mut self, batch: Vec<String>) {
        // Nobody reads the log any more, or the disk is full: the server goes on without.
        let _ = std::io::stdout().write_all(batch.concat().as_bytes());
    }

    fn dropped(&mut self, num_items: u64) {
        tracing::warn!(lines = num_items, "the access log is written too slowly; some lines were dropped");
    }
}

impl AccessLog {
    pub(super) fn to_stdout(form: LogForm) -> std::io::Result<Self> {
        Ok(AccessLog { form, lines: Sink::start("perilune-access-log", Stdout)? })
    }

    pub(super) fn flush(&self, limit: Duration) {
        self.lines.flush(limit);
    }

    pub(super) fn write(&self, entry: &Entry, turns: &[Turn]) {
        let stamp = Stamp { time: utc(), took: entry.clock.elapsed() };
        self.lines.send(match self.form {
            LogForm::Text => as_text(entry, turns, &stamp),
            LogForm::Json => as_json(entry, turns, &stamp),
        });
    }
}

/// When a line is written, and how long its request took.
struct Stamp {
    time: String,
    took: Duration,
}

/// Now, as RFC 3339 has it.
fn utc() -> String {
    let mut text = String::new();
    // Writing to a string cannot fail.
    let _ = tracing_subscriber::fmt::time::SystemTime.format_time(&mut Writer::new(&mut text));
    text
}

/// Tokens of a request: of its longest prompt, of those the reused ones, and generated over all choices.
fn tokens(turns: &[Turn]) -> (usize, usize, usize) {
    let longest = turns.iter().max_by_key(|turn| turn.prompt_tokens);
    let (prompt, cached) = longest.map_or((0, 0), |turn| (turn.prompt_tokens, turn.cached_tokens));
    (prompt, cached, turns.iter().map(|turn| turn.completion_tokens).sum())
}

/// Seconds from the submission to the first token of any choice.
fn first_token_s(turns: &[Turn]) -> Option<f64> {
    let times = turns.iter().filter_map(|turn| Some(turn.first_token?.duration_since(turn.submitted).as_secs_f64()));
    times.min_by(f64::total_cmp)
}

fn as_text(entry: &Entry, turns: &[Turn], stamp: &Stamp) -> String {
    let peer = entry.peer.map_or_else(|| "-".to_owned(), |peer| peer.to_string());
    let Entry { method, path, version, status, num_bytes, id, .. } = entry;
    let mut line = format!(
        "{} {peer} \"{method} {} {version:?}\" {status} {num_bytes}B {:.3}s id={}",
        stamp.time,
        path.escape_default(),
        stamp.took.as_secs_f64(),
        id.escape_default(),
    );
    if let Some(turn) = turns.last() {
        let (prompt, cached, completion) = tokens(turns);
        // As above.
        let _ = write!(line, " prompt={prompt} cached={cached} completion={completion} end={}", turn.end);
    }
    if let Some(seconds) = first_token_s(turns) {
        let _ = write!(line, " ttft={seconds:.3}s");
    }
    line.push('\n');
    line
}

fn as_json(entry: &Entry, turns: &[Turn], stamp: &Stamp) -> String {
    let mut line: Map<String, Value> = Map::new();
    let mut put = |key: &str, value: Value| line.insert(key.to_owned(), value);
    put("time", json!(stamp.time));
    put("client", json!(entry.peer.map(|peer| peer.to_string())));
    put("request_id", json!(entry.id));
    put("method", json!(entry.method));
    put("path", json!(entry.path));
    put("status", json!(entry.status));
    put("bytes", json!(entry.num_bytes));
    put("duration_s", json!(stamp.took.as_secs_f64()));
    if let Some(turn) = turns.last() {
        let (prompt, cached, completion) = tokens(turns);
        put("prompt_tokens", json!(prompt));
        put("cached_tokens", json!(cached));
        put("completion_tokens", json!(completion));
        put("end", json!(turn.end));
        put("first_token_s", json!(first_token_s(turns)));
    }
    format!("{}\n", Value::Object(line))
}

#[cfg(test)]
mod tests {
    use std::time::{Instant, SystemTime};

    use axum::http::Version;

    use super::*;

    fn entry() -> Entry {
        Entry {
            began: SystemTime::UNIX_EPOCH,
            clock: Instant::now(),
            peer: Some("127.0.0.1:5".parse().unwrap()),
            method: "POST".to_owned(),
            path: "/v1/é\"\n".to_owned(),
            route: "unknown".to_owned(),
            version: Version::HTTP_11,
            id: "a\"b".to_owned(),
            parent: None,
            status: 200,
            num_bytes: 7,
        }
    }

    fn turns() -> Vec<Turn> {
        let submitted = Instant::now();
        let first_token = Some(submitted + Duration::from_millis(20));
        let turn = Turn {
            submitted,
            started: Some(submitted),
            first_token,
            ended: submitted,
            prompt_tokens: 9,
            cached_tokens: 4,
            completion_tokens: 3,
            end: "stop",
        };
        vec![turn, Turn { first_token: None, ..turn }]
    }

    fn stamp() -> Stamp {
        Stamp { time: utc(), took: Duration::from_millis(1500) }
    }

    #[test]
    fn a_request_is_one_line_whatever_it_holds() {
        let line = as_text(&entry(), &turns(), &stamp());
        let (time, rest) = line.split_once(' ').unwrap();
        assert!(time.ends_with('Z') && time.contains('T'), "{time}");
        let expected = "127.0.0.1:5 \"POST /v1/\\u{e9}\\\"\\n HTTP/1.1\" 200 7B 1.500s id=a\\\"b prompt=9 cached=4 \
                        completion=6 end=stop ttft=0.020s\n";
        assert_eq!(rest, expected);
    }

    #[test]
    fn json_has_the_same_and_no_tokens_where_there_are_none() {
        let whole: Value = serde_json::from_str(&as_json(&entry(), &turns(), &stamp())).unwrap();
        assert_eq!((&whole["path"], &whole["completion_tokens"]), (&json!("/v1/é\"\n"), &json!(6)));
        assert_eq!((&whole["duration_s"], &whole["first_token_s"]), (&json!(1.5), &json!(0.02)));
        let line = as_json(&Entry { peer: None, ..entry() }, &[], &stamp());
        assert_eq!(line.matches('\n').count(), 1);
        let bare: Value = serde_json::from_str(&line).unwrap();
        assert_eq!((bare.get("prompt_tokens"), &bare["client"]), (None, &Value::Null));
    }
}
