//! Two servers on the same weights, ours and llama.cpp's: clients that arrive together, in turns, medians.
//!
//! Both stand ready all the time, answer the same `POST /v1/completions` on token ids, and are idle while the other one
//! works. Every prompt is new, so nothing is remembered but what the requests of one turn share.

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::net::{Ipv4Addr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use serde_json::{Value, json};

use crate::bench_peer::{convert, median, perilune};
use crate::process::root;

/// Tokens of a sequence, prompt and answer: more than either kind of work needs.
const CONTEXT: usize = 1024;
/// Requests that either server runs at once.
const RUNNING: usize = 16;
/// Longest time until a server is ready, and between two pieces of an answer.
const PATIENCE: Duration = Duration::from_secs(180);

/// Clients that arrive together.
struct Work {
    name: &'static str,
    clients: usize,
    /// Tokens that all prompts begin with, and that each has for itself.
    prompt: (usize, usize),
    /// Tokens of each answer.
    answer: usize,
}

const CHATS: Work = Work { name: "4 chats, 768 tokens in common", clients: 4, prompt: (768, 32), answer: 8 };
const LOAD: Work = Work { name: "16 clients, 128 in, 128 out", clients: RUNNING, prompt: (0, 128), answer: 128 };

/// How a comparison is run.
pub(crate) struct ServerPeer {
    /// Where `llama-server` is.
    pub(crate) programs: PathBuf,
    /// How many times each server takes its turn at each work.
    pub(crate) rounds: usize,
    /// Threads of both.
    pub(crate) threads: usize,
}

/// What one turn came to.
struct Turn {
    /// Until the last client had its first token.
    last_first: Duration,
    /// Until the last client had its last token.
    all: Duration,
    /// Tokens that went in and came out.
    tokens: (u64, u64),
}

impl ServerPeer {
    /// Measures a checkpoint and prints a table.
    pub(crate) fn compare(&self, name: &str, folder: &Path) -> Result<Value> {
        let gguf = folder.with_extension("f16.numbered.gguf");
        convert(folder, &gguf, &["--matrices", "f16", "--vocabulary", "numbered"])?;
        let servers = [self.ours(folder)?, self.theirs(&gguf)?];
        let mut rows = Vec::new();
        eprintln!("\n{name}, as stored against f16, {} threads: medians of {}", self.threads, self.rounds);
        eprintln!("{:<32}{:<20}{:>10}{:>14}{:>8}", "work", "", "perilune", "llama-server", "ratio");
        for work in [CHATS, LOAD] {
            let mut turns: [Vec<Turn>; 2] = Default::default();
            for round in 0..self.rounds {
                for (server, turns) in servers.iter().zip(&mut turns) {
                    turns.push(server.turn(&work, round)?);
                }
            }
            rows.extend(report(&work, &turns));
        }
        Ok(json!({"model": name, "rows": rows}))
    }

    fn ours(&self, folder: &Path) -> Result<Server> {
        let mut command = perilune();
        command.args(["serve", "--skip-tokenizer-init", "--threads", &self.threads.to_string(), "--model"]).arg(folder);
        command.args(["--max-running-requests", &RUNNING.to_string(), "--context-length", &CONTEXT.to_string()]);
        Server::start("perilune", command, "/ready")
    }

    /// Its caches of whole prompts are off: no prompt comes twice here, so they would only cost time.
    fn theirs(&self, gguf: &Path) -> Result<Server> {
        let (threads, running) = (self.threads.to_string(), RUNNING.to_string());
        let mut command = Command::new(self.programs.join("llama-server"));
        command.arg("-m").arg(gguf).args(["-t", &threads, "-tb", &threads, "-np", &running]);
        command.args(["-c", &(RUNNING * CONTEXT).to_string(), "--cache-ram", "0", "--ctx-checkpoints", "0"]);
        Server::start("llama-server", command, "/health")
    }
}

/// A running server; it ends with this.
struct Server {
    child: Child,
    base: String,
}

impl Drop for Server {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Server {
    /// Starts it on a free port; what it says goes to a file.
    fn start(name: &str, mut command: Command, ready: &str) -> Result<Server> {
        let port = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?.port();
        let log = root().join("target/bench-models").join(format!("{name}.log"));
        let file = File::create(&log).with_context(|| format!("cannot write {}", log.display()))?;
        command.args(["--host", "127.0.0.1", "--port", &port.to_string()]);
        command.stdin(Stdio::null()).stdout(file.try_clone()?).stderr(file);
        let child = command.spawn().with_context(|| format!("cannot start {name}"))?;
        let mut server = Server { child, base: format!("http://127.0.0.1:{port}") };
        let begin = Instant::now();
        while ureq::get(format!("{}{ready}", server.base)).call().is_err() {
            if server.child.try_wait()?.is_some() || begin.elapsed() > PATIENCE {
                bail!("{name} is not ready: see {}", log.display());
            }
            std::thread::sleep(Duration::from_millis(100));
        }
        Ok(server)
    }

    /// All clients of a work at once.
    fn turn(&self, work: &Work, round: usize) -> Result<Turn> {
        let begin = Instant::now();
        let answers: Vec<Result<Answer>> = std::thread::scope(|scope| {
            let client = |i| move || self.ask(&prompt(work, (round, i)), work.answer, begin);
            let clients: Vec<_> = (0..work.clients).map(|i| scope.spawn(client(i))).collect();
            let joined = clients.into_iter().map(|client| client.join());
            joined.map(|answer| answer.unwrap_or_else(|_| bail!("a client failed"))).collect()
        });
        let mut turn = Turn { last_first: Duration::ZERO, all: Duration::ZERO, tokens: (0, 0) };
        for answer in answers {
            let Answer { first, last, tokens } = answer?;
            if tokens.1 != work.answer as u64 {
                bail!("{}: {} tokens came instead of {}", work.name, tokens.1, work.answer);
            }
            turn.last_first = turn.last_first.max(first);
            turn.all = turn.all.max(last);
            turn.tokens = (turn.tokens.0 + tokens.0, turn.tokens.1 + tokens.1);
        }
        Ok(turn)
    }

    fn ask(&self, prompt: &[u32], max_tokens: usize, begin: Instant) -> Result<Answer> {
        let body = json!({
            "prompt": prompt, "max_tokens": max_tokens, "temperature": 0, "ignore_eos": true,
            "stream": true, "stream_options": {"include_usage": true},
        });
        let config = ureq::Agent::config_builder().timeout_recv_body(Some(PATIENCE)).build();
        let mut response = ureq::Agent::from(config).post(format!("{}/v1/completions", self.base)).send_json(body)?;
        read(BufReader::new(response.body_mut().as_reader()), begin)
    }
}

/// What one client saw.
struct Answer {
    first: Duration,
    last: Duration,
    tokens: (u64, u64),
}

/// Reads a stream: when its first and its last piece came, and what the server counted.
fn read(lines: impl BufRead, begin: Instant) -> Result<Answer> {
    let (mut first, mut last, mut tokens) = (None, Duration::ZERO, None);
    for line in lines.lines() {
        let line = line?;
        let Some(data) = line.strip_prefix("data: ").filter(|data| *data != "[DONE]") else { continue };
        let chunk: Value = serde_json::from_str(data)?;
        if chunk["choices"].as_array().is_some_and(|choices| !choices.is_empty()) {
            last = begin.elapsed();
            first.get_or_insert(last);
        }
        if let (Some(prompt), Some(answer)) =
            (chunk["usage"]["prompt_tokens"].as_u64(), chunk["usage"]["completion_tokens"].as_u64())
        {
            tokens = Some((prompt, answer));
        }
    }
    let first = first.context("no token came")?;
    Ok(Answer { first, last, tokens: tokens.context("the answer has no usage")? })
}

/// Tokens that no other round has, the first of them the same for all clients of one.
fn prompt(work: &Work, (round, client): (usize, usize)) -> Vec<u32> {
    let (shared, own) = work.prompt;
    let text = |seed: usize, len: usize| (0..len).map(move |i| 3 + (hash((seed, i)) % 20_000) as u32);
    text(2 * round, shared).chain(text(1000 * (client + 1) + 2 * round + 1, own)).collect()
}

/// Mixes two numbers (splitmix64).
fn hash((a, b): (usize, usize)) -> u64 {
    let mut z = (((a as u64) << 32) + b as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

/// One row per figure.
fn report(work: &Work, turns: &[Vec<Turn>; 2]) -> Vec<Value> {
    type Figure = fn(&Turn) -> f64;
    let figures: [(&str, Figure); 3] = [
        ("last first token, s", |turn| turn.last_first.as_secs_f64()),
        ("tokens out, per s", |turn| turn.tokens.1 as f64 / turn.all.as_secs_f64()),
        ("tokens in all, per s", |turn| (turn.tokens.0 + turn.tokens.1) as f64 / turn.all.as_secs_f64()),
    ];
    let mut rows = Vec::new();
    for (figure, of) in figures {
        let [ours, theirs] = turns.each_ref().map(|turns| turns.iter().map(of).collect::<Vec<f64>>());
        let (here, there) = (median(&ours), median(&theirs));
        let ratio = if figure.ends_with(", s") { there / here } else { here / there };
        eprintln!("{:<32}{figure:<20}{here:>10.2}{there:>14.2}{ratio:>8.2}", work.name);
        rows.push(json!({
            "work": work.name, "figure": figure, "perilune": ours, "llama-server": theirs, "ratio": ratio,
        }));
    }
    rows
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prompts_share_what_they_should_and_no_round_repeats_another() {
        let all: Vec<Vec<u32>> =
            (0..3).flat_map(|round| (0..4).map(move |client| prompt(&CHATS, (round, client)))).collect();
        assert!(all.iter().all(|prompt| prompt.len() == 800));
        assert_eq!(all[0][..768], all[3][..768]);
        assert_ne!(all[0][768..], all[3][768..]);
        assert_ne!(all[0][..8], all[4][..8]);
        assert_ne!(prompt(&LOAD, (0, 0))[..4], prompt(&LOAD, (0, 1))[..4]);
    }

    #[test]
    fn a_stream_is_timed_and_counted() {
        let text = "data: {\"choices\":[{\"text\":\"\"}]}\n\ndata: {\"choices\":[],\"usage\":{\"prompt_tokens\":3,\
                    \"completion_tokens\":2}}\n\ndata: [DONE]\n\n";
        assert_eq!(read(text.as_bytes(), Instant::now()).unwrap().tokens, (3, 2));
        assert!(read("data: {\"choices\":[{\"text\":\"a\"}]}\n\n".as_bytes(), Instant::now()).is_err());
        assert!(read("data: [DONE]\n\n".as_bytes(), Instant::now()).is_err());
    }
}
