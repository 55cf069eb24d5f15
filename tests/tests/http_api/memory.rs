//! Memory does not grow with the number of large requests.

use std::process::Command;

use serde_json::json;

use crate::client::post;
use crate::script::Script;
use crate::server::{TestServer, demo_settings};

/// Requests that count; `PERILUNE_MEMORY_REQUESTS=5000` for the long form.
const DEFAULT_REQUESTS: usize = 150;
const PROMPT_BYTES: usize = 200_000;

/// Runs [`alone`] in a process of its own: other tests' memory must not count.
#[test]
fn memory_stays_flat_over_large_requests() {
    let this = std::env::current_exe().unwrap();
    let run = Command::new(this).args(["memory::alone", "--exact", "--ignored", "--nocapture"]).output().unwrap();
    let text = format!("{}{}", String::from_utf8_lossy(&run.stdout), String::from_utf8_lossy(&run.stderr));
    assert!(run.status.success() && text.contains("1 passed"), "{text}");
}

#[test]
#[ignore = "needs a process of its own: memory_stays_flat_over_large_requests starts it"]
fn alone() {
    let num_requests = std::env::var("PERILUNE_MEMORY_REQUESTS").ok().and_then(|n| n.parse().ok());
    let num_requests = num_requests.unwrap_or(DEFAULT_REQUESTS);
    let server = TestServer::over(Script::markup("done"), demo_settings(), |config| {
        config.context_length = 250_000;
    });
    let prompt = "twelve pens ".repeat(PROMPT_BYTES / 12);
    let send = |count: usize| {
        for i in 0..count {
            let body = json!({"prompt": format!("{i} {prompt}"), "max_tokens": 2, "stream": i % 2 == 0});
            assert_eq!(post(server.addr, "/v1/completions", &body).status, 200);
        }
    };
    send(num_requests / 3);
    let before = anonymous_kib();
    send(num_requests);
    let after = anonymous_kib();
    println!("{before:?} KiB, after {num_requests} more requests {after:?} KiB");
    if let (Some(before), Some(after)) = (before, after) {
        assert!(after < before + before / 20 + 2048, "memory grew from {before} to {after} KiB");
    }
}

/// `RssAnon + VmSwap` of this process, where the system tells.
fn anonymous_kib() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let field = |name: &str| -> Option<u64> {
        status.lines().find_map(|line| line.strip_prefix(name)?.trim().strip_suffix("kB")?.trim().parse().ok())
    };
    Some(field("RssAnon:")? + field("VmSwap:").unwrap_or(0))
}
