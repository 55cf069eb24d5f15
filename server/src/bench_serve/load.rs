//! Sends requests at planned times, a thread each, and notes when their tokens come.

use std::io::{BufRead, BufReader};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::cli::BenchServeArgs;
use crate::error::ServerError;

/// Requests under way at once; a planned one beyond them is not sent and counts as failed.
const MAX_OPEN: usize = 2000;
/// Longest wait for the next byte of an answer.
const PATIENCE: Duration = Duration::from_secs(600);
/// Words that prompts are made of.
const WORDS: &[&str] = &[
    "there", "are", "boxes", "with", "pens", "in", "each", "box", "how", "many", "in", "total", "and", "then", "more",
];

/// What is sent, and when.
#[derive(Debug)]
pub(super) struct Plan {
    url: String,
    key: Option<String>,
    /// Time of each request after the start, and its body.
    pub(super) starts: Vec<(Duration, Value)>,
}

/// What came of one request.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Outcome {
    /// When it was to be sent, after the start.
    pub planned: Duration,
    /// Tokens of the prompt and of the answer, as the server counts them.
    pub tokens: (usize, usize),
    /// When each piece of text came, after it was planned to be sent: a client waits from then on.
    pub pieces: Vec<Duration>,
    /// When the answer was whole.
    pub ended: Duration,
    /// What went wrong.
    pub error: Option<String>,
}

impl Plan {
    /// Draws times and prompts; asks the server for its model where none is named.
    pub(super) fn of(args: &BenchServeArgs) -> Result<Self, ServerError> {
        let base = args.url.trim_end_matches('/').trim_end_matches("/v1").to_owned();
        let model = match &args.model_name {
            Some(name) => name.clone(),
            None => first_model(&base, args.api_key.as_deref())?,
        };
        let mut noise = Noise(args.seed);
        let mut at = 0.0;
        let starts = (0..args.requests)
            .map(|i| {
                if i > 0 && args.rate.is_finite() {
                    at += -(1.0 - noise.unit()).ln() / args.rate;
                }
                let prompt: Vec<&str> = (0..args.prompt_words).map(|_| noise.pick(WORDS)).collect();
                (Duration::from_secs_f64(at), body(&model, &prompt.join(" "), args.max_tokens))
            })
            .collect();
        Ok(Plan { url: format!("{base}/v1/completions"), key: args.api_key.clone(), starts })
    }
}

fn body(model: &str, prompt: &str, max_tokens: usize) -> Value {
    json!({
        "model": model, "prompt": prompt, "max_tokens": max_tokens, "ignore_eos": true, "temperature": 1,
        "stream": true, "stream_options": {"include_usage": true},
    })
}

fn agent() -> ureq::Agent {
    let config = ureq::Agent::config_builder().timeout_recv_body(Some(PATIENCE)).http_status_as_error(false);
    config.build().into()
}

fn first_model(base: &str, key: Option<&str>) -> Result<String, ServerError> {
    let failed = |what: String| ServerError::Answer(format!("{base}/v1/models: {what}"));
    let mut request = agent().get(format!("{base}/v1/models"));
    if let Some(key) = key {
        request = request.header("authorization", format!("Bearer {key}"));
    }
    let mut response = request.call().map_err(|error| failed(error.to_string()))?;
    let status = response.status();
    if !status.is_success() {
        let advice = match (status.as_u16(), key) {
            (401 | 403, None) => "; it needs a key (--api-key)",
            (401 | 403, Some(_)) => "; the key (--api-key) is not the server's",
            _ => "",
        };
        return Err(failed(format!("refused, {status}{advice}")));
    }
    let list: Value = response.body_mut().read_json().map_err(|error| failed(error.to_string()))?;
    let name = list["data"][0]["id"].as_str().map(str::to_owned);
    name.ok_or_else(|| failed("it names no model".to_owned()))
}

/// Sends everything; outcomes in the order of the plan.
pub(super) fn run(plan: &Plan, ended: &(dyn Fn() + Sync)) -> Vec<Outcome> {
    let (agent, open) = (agent(), AtomicUsize::new(0));
    let begin = Instant::now();
    std::thread::scope(|scope| {
        let (agent, open) = (&agent, &open);
        let mut handles = Vec::with_capacity(plan.starts.len());
        for (planned, body) in &plan.starts {
            std::thread::sleep((begin + *planned).saturating_duration_since(Instant::now()));
            if open.fetch_add(1, Ordering::Relaxed) >= MAX_OPEN {
                open.fetch_sub(1, Ordering::Relaxed);
                handles.push(Err(failed(*planned, format!("{MAX_OPEN} requests were under way"))));
                continue;
            }
            handles.push(Ok(scope.spawn(move || {
                let outcome = send(agent, plan, (begin + *planned, *planned), body);
                open.fetch_sub(1, Ordering::Relaxed);
                ended();
                outcome
            })));
        }
        let outcome = |handle: Result<std::thread::ScopedJoinHandle<'_, Outcome>, Outcome>| match handle {
            Ok(handle) => {
                handle.join().unwrap_or_else(|_| failed(Duration::ZERO, "a fault of this program".to_owned()))
            }
            Err(outcome) => outcome,
        };
        handles.into_iter().map(outcome).collect()
    })
}

fn failed(planned: Duration, error: String) -> Outcome {
    Outcome { planned, tokens: (0, 0), pieces: Vec::new(), ended: Duration::ZERO, error: Some(error) }
}

fn send(agent: &ureq::Agent, plan: &Plan, (due, planned): (Instant, Duration), body: &Value) -> Outcome {
    let mut request = agent.post(&plan.url);
    if let Some(key) = &plan.key {
        request = request.header("authorization", format!("Bearer {key}"));
    }
    let mut outcome = failed(planned, String::new());
    outcome.error = match request.send_json(body) {
        Ok(mut response) if response.status().is_success() => {
            read(BufReader::new(response.body_mut().as_reader()), due, &mut outcome).err()
        }
        Ok(mut response) => {
            let text = response.body_mut().read_to_string().unwrap_or_default();
            Some(format!("{}: {}", response.status(), text.chars().take(200).collect::<String>()))
        }
        Err(error) => Some(error.to_string()),
    };
    outcome.ended = due.elapsed();
    outcome
}

/// Reads a stream to its end.
pub(super) fn read(lines: impl BufRead, due: Instant, outcome: &mut Outcome) -> Result<(), String> {
    let mut done = false;
    for line in lines.lines() {
        let line = line.map_err(|error| error.to_string())?;
        let Some(data) = line.strip_prefix("data: ") else { continue };
        if data == "[DONE]" {
            done = true;
            continue;
        }
        let chunk: Value = serde_json::from_str(data).map_err(|error| error.to_string())?;
        if let Some(error) = chunk.get("error") {
            return Err(error["message"].as_str().unwrap_or("an error without a message").to_owned());
        }
        let text = chunk["choices"][0]["text"].as_str().unwrap_or_default();
        if !text.is_empty() {
            outcome.pieces.push(due.elapsed());
        }
        if let Some(usage) = chunk.get("usage").filter(|usage| usage.is_object()) {
            let count = |key: &str| usage[key].as_u64().unwrap_or(0) as usize;
            outcome.tokens = (count("prompt_tokens"), count("completion_tokens"));
        }
    }
    if done { Ok(()) } else { Err("the stream was cut off".to_owned()) }
}

/// Numbers from a seed (splitmix64).
struct Noise(u64);

impl Noise {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// In 0…1, below 1.
    fn unit(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1_u64 << 53) as f64
    }

    fn pick<'a>(&mut self, list: &[&'a str]) -> &'a str {
        list.get(self.next() as usize % list.len().max(1)).copied().unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::net::TcpListener;

    use super::*;

    /// The address of a server that refuses one request for want of a key.
    fn locked() -> String {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let addr = listener.local_addr().unwrap();
        std::thread::spawn(move || {
            let (mut socket, _) = listener.accept().unwrap();
            let mut lines = BufReader::new(socket.try_clone().unwrap()).lines();
            while lines.next().is_some_and(|line| !line.unwrap().is_empty()) {}
            socket.write_all(b"HTTP/1.1 401 Unauthorized\r\nconnection: close\r\ncontent-length: 2\r\n\r\n{}").unwrap();
        });
        format!("http://{addr}")
    }

    #[test]
    fn a_server_that_wants_a_key_is_said_to_want_one() {
        let without = first_model(&locked(), None).unwrap_err().to_string();
        assert!(without.contains("refused, 401") && without.contains("it needs a key"), "{without}");
        let with = first_model(&locked(), Some("wrong")).unwrap_err().to_string();
        assert!(with.contains("refused, 401") && with.contains("is not the server's"), "{with}");
    }

    fn outcome(text: &str) -> (Outcome, Result<(), String>) {
        let mut outcome = failed(Duration::ZERO, String::new());
        let result = read(text.as_bytes(), Instant::now(), &mut outcome);
        (outcome, result)
    }

    #[test]
    fn a_stream_is_timed_and_counted() {
        let text = "data: {\"choices\":[{\"text\":\"a\"}]}\n\n: ping\n\ndata: {\"choices\":[{\"text\":\"\"}]}\n\n\
                    data: {\"choices\":[{\"text\":\"b\"}]}\n\ndata: {\"choices\":[],\"usage\":{\"prompt_tokens\":3,\"completion_tokens\":2}}\n\ndata: [DONE]\n\n";
        let (outcome, result) = outcome(text);
        assert_eq!((result, outcome.pieces.len(), outcome.tokens), (Ok(()), 2, (3, 2)));
    }

    #[test]
    fn errors_and_cuts_are_failures() {
        let (_, error) = outcome("data: {\"error\":{\"message\":\"no\"}}\n\ndata: [DONE]\n\n");
        assert_eq!(error, Err("no".to_owned()));
        assert!(outcome("data: {\"choices\":[{\"text\":\"a\"}]}\n\n").1.is_err());
    }

    #[test]
    fn arrivals_have_the_rate_asked_for() {
        let mut noise = Noise(7);
        let mean = (0..20_000).map(|_| -(1.0 - noise.unit()).ln()).sum::<f64>() / 20_000.0;
        assert!((mean - 1.0).abs() < 0.03, "{mean}");
    }
}
