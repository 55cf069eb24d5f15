//! Sixty-four streaming clients with random lengths and random disconnects against the real binary, with the demo's draft and
//! the prefix cache.
//!
//! At the end nothing may be left: no running or waiting request, no block, no slot; memory must not have grown, and
//! SIGTERM must end the process with exit code 0. Runs a few seconds by default; the full form is
//! `PERILUNE_SOAK_SECONDS=600 cargo test --release --package perilune-server --test soak -- --nocapture`.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // all of it is test code

mod running;

use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpStream};
use std::process::Child;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use running::{Running, post_head};

const CLIENTS: u64 = 64;
const DRAFT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../models/demo-dspark");
const PROMPTS: [&str; 4] = [
    "What is 7 + 5?",
    "Tom has 12 pens and gives 5 to Ann. How many pens are left?",
    "There are 3 boxes with 12 pens in each box. How many pens are there in total? Explain each step with care.",
    "A train runs 60 miles an hour for 3 hours, rests, and runs 40 miles an hour for 2 hours. How far does it get in all?",
];

#[derive(Default)]
struct Tally {
    finished: AtomicU64,
    hung_up: AtomicU64,
    refused: AtomicU64,
    tokens: AtomicU64,
}

#[test]
fn sixty_four_clients_leave_nothing_behind() {
    let seconds = std::env::var("PERILUNE_SOAK_SECONDS").ok().and_then(|s| s.parse().ok()).unwrap_or(12);
    let limits = ["--max-queued-requests", "48", "--max-running-requests", "16"];
    let drafts = ["--draft-model", DRAFT, "--draft-lengths", "fixed"];
    let mut server = Running::start(&[limits, drafts].concat());
    let address = server.address;
    let tally = Tally::default();
    let begin = Instant::now();
    let end = begin + Duration::from_secs(seconds);
    let warm = begin + Duration::from_secs(seconds / 3);
    // Stored prefixes fill the arena, whose pages count once they are touched; what is beside it must stay flat.
    let beside_arena =
        |server: &Running| anonymous_kib(&server.child).map(|kib| kib.saturating_sub(server.arena_kib()));
    let mut warm_kib = None;
    std::thread::scope(|scope| {
        for client in 0..CLIENTS {
            let tally = &tally;
            scope.spawn(move || run_client(address, client, end, tally));
        }
        while Instant::now() < end {
            assert!(server.child.try_wait().unwrap().is_none(), "the server died");
            if warm_kib.is_none() && Instant::now() >= warm {
                warm_kib = beside_arena(&server);
            }
            std::thread::park_timeout(Duration::from_millis(200));
        }
    });
    let count = |n: &AtomicU64| n.load(Ordering::Relaxed);
    let (finished, hung_up) = (count(&tally.finished), count(&tally.hung_up));
    println!(
        "{seconds} s: {finished} finished, {hung_up} hung up, {} refused, {} events; memory beside the arena {warm_kib:?} KiB after a third, {:?} KiB at the end",
        count(&tally.refused),
        count(&tally.tokens),
        beside_arena(&server)
    );
    assert!(finished > CLIENTS && hung_up > 0, "the load was not a load");
    server.wait_until_idle();
    if let (Some(before), Some(after)) = (warm_kib, beside_arena(&server)) {
        assert!(after < before + before / 20 + 8 * 1024, "memory grew from {before} to {after} KiB");
    }
    server.terminate();
    assert_eq!(server.exit_status().code(), Some(0));
}

fn run_client(address: SocketAddr, client: u64, end: Instant, tally: &Tally) {
    let mut random = Random(client + 1);
    while Instant::now() < end {
        one_request(address, &mut random, tally);
    }
}

/// One stream, read to its end or left in the middle; every status and every line is checked.
fn one_request(address: SocketAddr, random: &mut Random, tally: &Tally) {
    let prompt = PROMPTS[random.below(4) as usize];
    let max_tokens = 1 + random.below(120);
    let leave_after = (random.below(4) == 0).then(|| random.below(40));
    let body = format!(
        r#"{{"model":"demo","stream":true,"temperature":1.0,"seed":{},"max_tokens":{max_tokens},"messages":[{{"role":"user","content":"{prompt}"}}]}}"#,
        random.below(1000)
    );
    let Some(mut reader) = post(address, "/v1/chat/completions", &body) else { return };
    let mut line = String::new();
    assert!(reader.read_line(&mut line).is_ok(), "no status line");
    if line.starts_with("HTTP/1.1 503") {
        tally.refused.fetch_add(1, Ordering::Relaxed);
        std::thread::park_timeout(Duration::from_millis(20));
        return;
    }
    assert!(line.starts_with("HTTP/1.1 200"), "{line}");
    let (mut events, mut finishes, mut done) = (0, 0, false);
    loop {
        line.clear();
        if reader.read_line(&mut line).unwrap_or(0) == 0 {
            break;
        }
        assert!(!line.contains("\"error\""), "{line}");
        events += u64::from(line.starts_with("data: {"));
        finishes +=
            u64::from(line.contains("\"finish_reason\":\"stop\"") || line.contains("\"finish_reason\":\"length\""));
        done |= line.starts_with("data: [DONE]");
        if leave_after.is_some_and(|limit| events > limit) {
            tally.hung_up.fetch_add(1, Ordering::Relaxed);
            return;
        }
        if done {
            break;
        }
    }
    assert!(done && finishes == 1, "a stream ended with {finishes} finish reasons, [DONE]: {done}");
    tally.finished.fetch_add(1, Ordering::Relaxed);
    tally.tokens.fetch_add(events, Ordering::Relaxed);
}

fn post(address: SocketAddr, path: &str, body: &str) -> Option<BufReader<TcpStream>> {
    let mut stream = TcpStream::connect(address).ok()?;
    stream.set_read_timeout(Some(Duration::from_secs(120))).ok()?;
    stream.write_all(post_head(path, body.len()).as_bytes()).ok()?;
    stream.write_all(body.as_bytes()).ok()?;
    Some(BufReader::new(stream))
}

/// Memory of the process that no file backs, where the system tells.
fn anonymous_kib(child: &Child) -> Option<u64> {
    let status = std::fs::read_to_string(format!("/proc/{}/status", child.id())).ok()?;
    status.lines().find_map(|l| l.strip_prefix("RssAnon:")?.trim().strip_suffix("kB")?.trim().parse().ok())
}

/// A small generator with a fixed seed.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 33) % bound.max(1)
    }
}
