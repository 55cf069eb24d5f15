//! The binary as its users run it: signals, exit codes, piped chat, inspect, bench.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // all of it is test code

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::process::{Child, ChildStderr, Command, Output, Stdio};
use std::time::{Duration, Instant};

use tempfile::TempDir;

const PATIENCE: Duration = Duration::from_secs(60);

fn perilune(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_perilune"));
    // Another directory than the repository's: the demo must be found all the same.
    command.args(args).current_dir(std::env::temp_dir()).stdin(Stdio::null());
    command
}

fn output(args: &[&str]) -> Output {
    perilune(args).output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// A serving process; killed when the test is over.
struct Serving {
    child: Child,
    addr: SocketAddr,
    log: BufReader<ChildStderr>,
}

impl Drop for Serving {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Serving {
    /// Plain `perilune` with some flags, on a free port, ready.
    fn start(flags: &[&str]) -> Self {
        let mut args = vec!["--port", "0"];
        args.extend(flags);
        let mut child = perilune(&args).stderr(Stdio::piped()).spawn().unwrap();
        let mut log = BufReader::new(child.stderr.take().unwrap());
        let mut line = String::new();
        while !line.contains("listening on http://") {
            line.clear();
            assert!(log.read_line(&mut line).unwrap() > 0, "it ended before it listened");
        }
        let addr = line.split("http://").nth(1).unwrap().split_whitespace().next().unwrap().parse().unwrap();
        let serving = Serving { child, addr, log };
        serving.until("ready", || serving.get("/ready").starts_with("HTTP/1.1 200"));
        serving
    }

    fn until(&self, what: &str, mut condition: impl FnMut() -> bool) {
        let deadline = Instant::now() + PATIENCE;
        while !condition() {
            assert!(Instant::now() < deadline, "never {what}");
            std::thread::park_timeout(Duration::from_millis(5));
        }
    }

    fn open(&self, request: &str) -> BufReader<TcpStream> {
        let mut socket = TcpStream::connect(self.addr).unwrap();
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        socket.write_all(request.as_bytes()).unwrap();
        BufReader::new(socket)
    }

    fn get(&self, path: &str) -> String {
        let mut reply = String::new();
        let mut reader = self.open(&format!("GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"));
        reader.read_to_string(&mut reply).unwrap();
        reply
    }

    /// The answer to a completion: its text, and how many prompt tokens were not computed.
    fn complete(&self, prompt: &str) -> (String, u64) {
        let body = serde_json::json!({"prompt": prompt, "max_tokens": 12, "temperature": 0}).to_string();
        let head = "POST /v1/completions HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length:";
        let reply = rest(self.open(&format!("{head} {}\r\n\r\n{body}", body.len())));
        let body = reply.split_once("\r\n\r\n").unwrap().1;
        let answer: serde_json::Value =
            serde_json::from_str(body.trim()).unwrap_or_else(|error| panic!("{error}: {reply}"));
        let cached = answer["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap();
        (answer["choices"][0]["text"].as_str().unwrap().to_owned(), cached)
    }

    /// SIGTERM, and waits for the end.
    fn end(mut self) {
        self.signal("-TERM");
        assert_eq!(self.exit_code(), Some(0));
    }

    /// A stream that has begun.
    fn stream(&self, max_tokens: usize) -> BufReader<TcpStream> {
        let body = format!(r#"{{"prompt":"x","stream":true,"ignore_eos":true,"max_tokens":{max_tokens}}}"#);
        let head = "POST /v1/completions HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length:";
        let mut reader = self.open(&format!("{head} {}\r\n\r\n{body}", body.len()));
        let mut line = String::new();
        while !line.starts_with("data: ") {
            line.clear();
            assert!(reader.read_line(&mut line).unwrap() > 0, "no event came");
        }
        reader
    }

    fn signal(&self, name: &str) {
        let pid = self.child.id().to_string();
        assert!(Command::new("kill").args([name, &pid]).status().unwrap().success());
    }

    fn exit_code(&mut self) -> Option<i32> {
        let deadline = Instant::now() + PATIENCE;
        while Instant::now() < deadline {
            if let Some(status) = self.child.try_wait().unwrap() {
                return status.code();
            }
            std::thread::park_timeout(Duration::from_millis(5));
        }
        panic!("it does not end");
    }
}

fn rest(mut reader: BufReader<TcpStream>) -> String {
    let mut rest = String::new();
    reader.read_to_string(&mut rest).unwrap();
    rest
}

#[test]
fn sigterm_lets_streams_finish_and_exits_with_0() {
    let mut serving = Serving::start(&[]);
    let streams: Vec<_> = (0..4).map(|_| serving.stream(300)).collect();
    serving.signal("-TERM");
    serving.until("draining", || serving.get("/ready").contains("draining"));
    for stream in streams {
        let rest = rest(stream);
        assert!(rest.contains("\"finish_reason\":\"length\"") && rest.contains("data: [DONE]"), "{rest}");
    }
    assert_eq!(serving.exit_code(), Some(0));
}

#[test]
fn past_the_drain_timeout_streams_end_with_an_error_and_it_exits_with_0() {
    let mut serving = Serving::start(&["--drain-timeout", "0"]);
    let stream = serving.stream(30_000);
    serving.signal("-TERM");
    let rest = rest(stream);
    assert!(rest.contains("\"code\":\"shutdown\"") && rest.contains("data: [DONE]"), "{rest}");
    assert_eq!(serving.exit_code(), Some(0));
}

#[test]
fn a_second_sigterm_ends_at_once() {
    let mut serving = Serving::start(&["--drain-timeout", "3600"]);
    let _stream = serving.stream(30_000);
    serving.signal("-TERM");
    serving.until("draining", || serving.get("/ready").contains("draining"));
    serving.signal("-TERM");
    assert_eq!(serving.exit_code(), Some(0));
}

#[test]
fn a_piped_chat_answers_each_line() {
    let args = ["chat", "--temperature", "0", "--max-tokens", "100", "--system", "Be brief."];
    let mut child =
        perilune(&args).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let question = "There are 3 boxes with 12 pens in each box. How many pens are there in total?";
    let lines = format!("{question}\n\n/reset\n{question}\n/quit\nnot asked\n");
    child.stdin.take().unwrap().write_all(lines.as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "{}", text(&output.stderr));
    let answers = text(&output.stdout);
    let answers: Vec<&str> = answers.lines().collect();
    assert_eq!(answers.len(), 2, "{answers:?}");
    assert!(!answers[0].is_empty() && answers[0] == answers[1], "a reset conversation begins anew: {answers:?}");
    assert!(!answers[0].contains('\u{1b}'), "no escape codes in a pipe");
}

#[test]
fn a_chat_with_nobody_says_so() {
    let output = output(&["chat", "--url", "http://127.0.0.1:9"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output.stderr).contains("http://127.0.0.1:9 cannot be reached"), "{}", text(&output.stderr));
}

#[test]
fn a_chat_ends_when_nobody_reads_it() {
    let args = ["chat", "--temperature", "0", "--effort", "none", "--max-tokens", "200"];
    let mut child = perilune(&args).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    stdin.write_all(b"What is 7 + 5?\n").unwrap();
    let mut first = [0];
    child.stdout.take().unwrap().read_exact(&mut first).unwrap();
    // Input stays open: only the closed output can end it.
    let asked_again = stdin.write_all(b"What is 7 + 5?\n");
    let deadline = Instant::now() + PATIENCE;
    while child.try_wait().unwrap().is_none() {
        assert!(Instant::now() < deadline, "it goes on without a reader");
        std::thread::park_timeout(Duration::from_millis(5));
    }
    drop((stdin, asked_again));
    assert_eq!(child.wait().unwrap().code(), Some(0));
}

#[test]
fn a_piped_chat_fails_when_a_question_has_no_answer() {
    let args = ["chat", "--max-tokens", "100000"];
    let mut child =
        perilune(&args).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(b"hi\nhi\n").unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(text(&output.stderr).matches("error: ").count(), 1, "{}", text(&output.stderr));
    assert!(text(&output.stderr).contains("100000"), "{}", text(&output.stderr));
}

#[test]
fn flags_are_refused_in_a_line_with_exit_code_2() {
    let cases: [(&[&str], &str); 6] = [
        (&["serve", "--threads", "20000"], "error: invalid value '20000' for '--threads <N>': it must be"),
        (&["serve", "--served-model-name", ""], "a name needs at least one character"),
        (&["chat", "--effort", "foo"], "'foo' for '--effort <LEVEL>'"),
        (&["chat", "--temperature", "9"], "from 0 to 2"),
        (&["chat", "--url", "127.0.0.1:8000"], "http://127.0.0.1:8000"),
        (&["bench", "--chunked-prefill-size", "9999999"], "--chunked-prefill-size"),
    ];
    for (args, sentence) in cases {
        let output = output(args);
        let said = text(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{args:?}: {said}");
        assert!(said.lines().next().unwrap().contains(sentence), "{args:?}: {said}");
    }
}

#[test]
fn a_cause_is_said_once() {
    let output = output(&["inspect", "/no/such/file.json"]);
    let said = text(&output.stderr);
    assert_eq!(said.matches("No such file").count(), 1, "{said}");
}

/// A copy of the demo with one file changed.
fn changed(file: &str, text: &str) -> TempDir {
    let dir = tempfile::tempdir().unwrap();
    let demo = concat!(env!("CARGO_MANIFEST_DIR"), "/../models/demo");
    for entry in std::fs::read_dir(demo).unwrap() {
        let entry = entry.unwrap();
        std::fs::copy(entry.path(), dir.path().join(entry.file_name())).unwrap();
    }
    std::fs::write(dir.path().join(file), text).unwrap();
    dir
}

#[test]
fn files_that_cannot_be_meant_are_refused_at_load() {
    let cases = [
        (r#"{"temperature": 9.5}"#, "generation_config.json: `temperature` is 9.5: must be between 0 and 2"),
        (r#"{"eos_token_id": 99999}"#, "generation_config.json: `eos_token_id` is 99999: must be below"),
        (r#"{"max_new_tokens": 0}"#, "generation_config.json: `max_new_tokens` is 0; a whole number from 1"),
    ];
    for (written, sentence) in cases {
        let model = changed("generation_config.json", written);
        let output = output(&["serve", "--port", "0", "--model", model.path().to_str().unwrap()]);
        let said = text(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{said}");
        assert!(said.contains(sentence), "{said}");
    }
    let output = output(&["inspect", "/dev/zero"]);
    assert!(text(&output.stderr).contains("/dev/zero is not valid: it is not a regular file"));
}

#[test]
fn a_checkpoint_without_special_tokens_is_served_with_a_warning() {
    let model = changed("tokenizer_config.json", "{}");
    let mut serving = Serving::start(&["--model", model.path().to_str().unwrap()]);
    serving.signal("-TERM");
    assert_eq!(serving.exit_code(), Some(0));
    let mut said = String::new();
    serving.log.read_to_string(&mut said).unwrap();
    assert!(said.contains("WARN") && said.contains("chat completions will be refused"), "{said}");
}

#[test]
fn what_was_computed_is_there_after_a_restart_and_spoilt_files_are_not() {
    let dir = tempfile::tempdir().unwrap();
    let flags = ["--disk-cache", dir.path().to_str().unwrap(), "--threads", "2"];
    let prompt = "There are 3 boxes with 12 pens in each box. ".repeat(20);
    let serving = Serving::start(&flags);
    let (text, cached) = serving.complete(&prompt);
    assert_eq!(cached, 0);
    serving.end();
    let serving = Serving::start(&flags);
    let (again, cached) = serving.complete(&prompt);
    assert_eq!(again, text);
    assert!(cached > 100, "{cached} tokens came back");
    assert!(serving.get("/metrics").contains("perilune_prefix_cache_disk_restores_total 1"));
    assert!(serving.get("/cache").contains("\"disk_restores\":1"));
    serving.end();
    let mut spoilt = 0;
    for entry in std::fs::read_dir(dir.path()).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_some_and(|extension| extension == "record") {
            let mut bytes = std::fs::read(&path).unwrap();
            *bytes.last_mut().unwrap() ^= 1;
            std::fs::write(path, bytes).unwrap();
            spoilt += 1;
        }
    }
    assert!(spoilt > 2);
    let serving = Serving::start(&flags);
    assert_eq!(serving.complete(&prompt), (text.clone(), 0));
    serving.end();
    // What other threads computed may differ in its last bits: it is another's.
    let serving = Serving::start(&["--disk-cache", dir.path().to_str().unwrap(), "--threads", "1"]);
    assert_eq!(serving.complete(&prompt), (text, 0));
}

#[test]
fn a_disk_cache_that_cannot_be_had_is_refused_at_start() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("file");
    std::fs::write(&file, "").unwrap();
    let (file, fine) = (file.to_str().unwrap(), dir.path().to_str().unwrap());
    let cases: [(&[&str], &str); 4] = [
        (&["--disk-cache", file], "--disk-cache is"),
        (&["--disk-cache", "/proc/none"], "--disk-cache is /proc/none"),
        (&["--disk-cache", fine, "--disable-prefix-cache"], "leaves nothing to keep"),
        (&["--disk-cache", fine, "--disk-cache-mib", "0"], "--disk-cache-mib"),
    ];
    for (flags, sentence) in cases {
        let mut args = vec!["--port", "0"];
        args.extend(flags);
        let output = output(&args);
        let said = text(&output.stderr);
        assert!(!output.status.success() && said.contains(sentence), "{args:?}: {said}");
    }
    let _serving = Serving::start(&["--disk-cache", fine]);
    let output = output(&["--port", "0", "--disk-cache", fine]);
    let said = text(&output.stderr);
    assert!(!output.status.success() && said.contains("in use by another process"), "{said}");
}

/// With a limit of no time at all, whatever takes a look finds a step that is too long.
#[test]
fn a_stall_and_its_end_are_in_the_log() {
    let mut serving = Serving::start(&["--stall-timeout", "0"]);
    let stream = serving.stream(20_000);
    let mut line = |wanted: &str| {
        let mut line = String::new();
        while !line.contains(wanted) {
            line.clear();
            assert!(serving.log.read_line(&mut line).unwrap() > 0, "never said: {wanted}");
        }
        line
    };
    let stalled = line("no step has finished for");
    assert!(stalled.contains("ERROR") && stalled.contains("/ready answers 503"), "{stalled}");
    assert!(stalled.contains("running=") && stalled.contains("waiting="), "{stalled}");
    drop(stream);
    assert!(line("steps finish again").contains("INFO"));
}

#[test]
fn localhost_is_a_host() {
    let serving = Serving::start(&["--host", "localhost"]);
    assert!(serving.addr.ip().is_loopback());
}

#[test]
fn a_report_may_be_cut_off_by_its_reader() {
    let mut child = perilune(&["inspect", "--tensors"]).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    drop(child.stdout.take());
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success() && output.stderr.is_empty(), "{}", text(&output.stderr));
}

#[test]
fn inspect_reads_the_demo() {
    let report = output(&["inspect", "--tensors"]);
    let lines = text(&report.stdout);
    assert!(report.status.success() && lines.contains("fits, with room for"), "{lines}");
    assert!(lines.contains("model.layers.7.self_attn.kv_b_proj.weight"), "{lines}");
}

#[test]
fn bench_measures_both_phases() {
    let args = ["bench", "--json", "--batch", "1,2", "--prompt", "16", "--decode", "4", "--repeat", "1"];
    let report = output(&args);
    assert!(report.status.success(), "{}", text(&report.stderr));
    let rows: serde_json::Value = serde_json::from_str(&text(&report.stdout)).unwrap();
    let text = rows.to_string();
    assert_eq!((text.matches("\"prefill\"").count(), text.matches("\"decode\"").count()), (1, 2), "{text}");
}

#[test]
fn mistakes_get_a_sentence_and_a_failure() {
    let cases: [(&[&str], &str); 9] = [
        (&["--model", "/no/such/model"], "/no/such/model"),
        (&["--num-drafts", "3"], "--num-drafts is 3; nothing drafts"),
        (&["--draft-lengths", "fixed"], "--draft-lengths is fixed; nothing drafts"),
        (&["--disk-cache-mib", "64"], "--disk-cache-mib is 64; nothing is kept on disk"),
        (
            &["--context-length", "-5"],
            "invalid value '-5' for '--context-length <TOKENS>': it must be an integer from 1",
        ),
        (&["--mem-fraction", "2"], "above 0 and at most 1"),
        (&["inspect", "/no/such/file.json"], "/no/such/file.json"),
        (&["--host", "1.2.3.4"], "cannot listen on 1.2.3.4"),
        (&["--mem-fraction", "0.0000001"], "not even one request fits"),
    ];
    for (args, sentence) in cases {
        let mut args = args.to_vec();
        if args[0].starts_with("--") {
            args.extend(["--port", "0"]);
        }
        let output = output(&args);
        assert!(!output.status.success());
        let said = text(&output.stderr);
        assert!(said.contains(sentence) && !said.contains("panicked"), "{args:?}: {said}");
    }
}
