//! The binary with `--disk-cache` on a file system of a few MiB: really full, while it serves, when it ends, and when it
//! comes back.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // all of it is test code

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

const PATIENCE: Duration = Duration::from_secs(60);
/// Runs what follows its first two arguments, directory and size, with a file system of that size there, and then again:
/// the second process finds what the first one left.
const MOUNTED: &str = r#"mount -t tmpfs -o size="$2" tmpfs "$1" && shift 2 && "$@" && exec "$@""#;

/// A command in a namespace in which it may mount; `None` where the machine gives none.
fn mounting(dir: &Path, size: &str, program: &[&str]) -> Option<Command> {
    let command = |script: &str| {
        let mut command = Command::new("unshare");
        command.args(["--user", "--map-root-user", "--mount", "sh", "-c", script, "sh"]).arg(dir).arg(size);
        command.args(program).stdin(Stdio::null());
        command
    };
    let able = command(r#"mount -t tmpfs -o size="$2" tmpfs "$1""#).stderr(Stdio::null()).status();
    able.is_ok_and(|status| status.success()).then(|| command(MOUNTED))
}

struct Serving {
    child: Child,
    log: BufReader<std::process::ChildStderr>,
    base: String,
}

impl Drop for Serving {
    fn drop(&mut self) {
        if self.child.try_wait().unwrap().is_none() {
            self.signal("-KILL");
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}

impl Serving {
    fn start(mut command: Command) -> Self {
        let mut child = command.stderr(Stdio::piped()).spawn().unwrap();
        let log = BufReader::new(child.stderr.take().unwrap());
        let mut serving = Serving { child, log, base: String::new() };
        serving.wait_until_ready();
        serving
    }

    /// Reads on until a process listens, and waits until it is ready.
    fn wait_until_ready(&mut self) {
        let mut line = String::new();
        while !line.contains("listening on ") {
            line.clear();
            assert!(self.log.read_line(&mut line).unwrap() > 0, "it ended before it listened");
        }
        self.base = line.split("listening on ").nth(1).unwrap().split_whitespace().next().unwrap().to_owned();
        let deadline = Instant::now() + PATIENCE;
        while ureq::get(format!("{}/ready", self.base)).call().is_err() {
            assert!(Instant::now() < deadline, "never ready");
            std::thread::park_timeout(Duration::from_millis(5));
        }
    }

    fn ask(&self, which: usize) -> (String, u64) {
        let prompt = format!("Tom has {which} boxes with {} pens each. ", 7 * which).repeat(12);
        let body = json!({"prompt": prompt, "max_tokens": 12, "temperature": 0});
        let answer = ureq::post(format!("{}/v1/completions", self.base)).send_json(body).unwrap();
        let answer: Value = answer.into_body().read_json().unwrap();
        let cached = answer["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap();
        (answer["choices"][0]["text"].as_str().unwrap().to_owned(), cached)
    }

    fn report(&self) -> Value {
        ureq::get(format!("{}/cache", self.base)).call().unwrap().into_body().read_json().unwrap()
    }

    /// The process that serves: the last of those that each started the next.
    fn leaf(&self) -> String {
        let mut leaf = self.child.id().to_string();
        while let Ok(children) = std::fs::read_to_string(format!("/proc/{leaf}/task/{leaf}/children")) {
            let Some(child) = children.split_whitespace().next() else { break };
            leaf = child.to_owned();
        }
        leaf
    }

    fn signal(&self, name: &str) -> bool {
        Command::new("kill").args([name, &self.leaf()]).status().unwrap().success()
    }
}

#[test]
fn a_server_on_a_full_disk_answers_as_any_other() {
    const PROMPTS: usize = 40;
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().to_str().unwrap();
    let flags = ["--port", "0", "--context-length", "1024", "--max-running-requests", "1"];
    let program = env!("CARGO_BIN_EXE_perilune");
    let plain = {
        let mut command = Command::new(program);
        command.args(flags).arg("--disable-prefix-cache").stdin(Stdio::null());
        Serving::start(command)
    };
    let with_disk = [&[program][..], &flags, &["--disk-cache", path, "--disk-cache-mib", "1000"]].concat();
    let Some(command) = mounting(dir.path(), "6m", &with_disk) else {
        return eprintln!("skipped: this machine lets nobody mount a file system of their own");
    };
    let mut serving = Serving::start(command);
    let expected: Vec<String> = (0..PROMPTS).map(|which| plain.ask(which).0).collect();
    for round in 0..2 {
        for (which, expected) in expected.iter().enumerate() {
            assert_eq!(&serving.ask(which).0, expected, "prompt {which}, round {round}");
        }
    }
    let report = serving.report();
    let number =
        |group: &str, key: &str| report[group][key].as_u64().unwrap_or_else(|| panic!("{group}.{key}: {report}"));
    assert!(number("events", "disk_skips") > 0, "the disk was meant to be full: {report}");
    assert!(number("usage", "disk_bytes") < 1000 << 20, "{report}");

    // It ends in good order, and what is there serves the next process.
    assert!(serving.signal("-TERM"));
    serving.wait_until_ready();
    let mut found = 0;
    // The last ones first: the others have given way to them.
    for (which, expected) in expected.iter().enumerate().rev() {
        let (text, cached) = serving.ask(which);
        assert_eq!(&text, expected, "prompt {which}, after a restart");
        found += u64::from(cached > 0);
    }
    assert!(found > 0, "nothing was found on disk");
    assert!(serving.signal("-TERM"));
    assert_eq!(serving.child.wait().unwrap().code(), Some(0));
}
