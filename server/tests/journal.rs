//! The access log and the traces of the binary.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // all of it is test code

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use serde_json::Value;

const PATIENCE: Duration = Duration::from_secs(60);

/// Ends with the test, whatever becomes of it.
struct Serving(Child);

impl Drop for Serving {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A serving process with these flags, and where it listens.
fn serve(flags: &[&str]) -> (Serving, SocketAddr) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_perilune"));
    command.args(["--port", "0"]).args(flags).current_dir(std::env::temp_dir()).stdin(Stdio::null());
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut log = BufReader::new(child.stderr.take().unwrap());
    let serving = Serving(child);
    let addr = loop {
        let mut line = String::new();
        assert!(log.read_line(&mut line).unwrap() > 0, "it ended before it listened");
        if let Some((_, rest)) = line.split_once("http://") {
            break rest.split_whitespace().next().unwrap().parse().unwrap();
        }
    };
    // Whatever else it says must not fill the pipe.
    std::thread::spawn(move || std::io::copy(&mut log, &mut std::io::sink()));
    while !ask(addr, "GET /ready", "", "").starts_with("HTTP/1.1 200") {
        std::thread::park_timeout(Duration::from_millis(5));
    }
    (serving, addr)
}

fn ask(addr: SocketAddr, line: &str, headers: &str, body: &str) -> String {
    let mut socket = TcpStream::connect(addr).unwrap();
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    let length = body.len();
    write!(
        socket,
        "{line} HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: {length}\r\n{headers}\r\n{body}"
    )
    .unwrap();
    let mut reply = String::new();
    socket.read_to_string(&mut reply).unwrap();
    reply
}

fn terminate(serving: &mut Serving) -> String {
    assert!(Command::new("kill").args(["-TERM", &serving.0.id().to_string()]).status().unwrap().success());
    let mut output = String::new();
    serving.0.stdout.take().unwrap().read_to_string(&mut output).unwrap();
    assert!(serving.0.wait().unwrap().success());
    output
}

const COMPLETION: &str = r#"{"prompt": "x", "max_tokens": 3, "ignore_eos": true, "stream": true}"#;

#[test]
fn every_request_is_one_line_of_the_access_log() {
    let (mut serving, addr) = serve(&["--access-log", "json"]);
    assert!(
        ask(addr, "POST /v1/completions", "X-Request-Id: mine\r\n", COMPLETION)
            .ends_with("data: [DONE]\n\n\r\n0\r\n\r\n")
    );
    assert!(ask(addr, "POST /v1/completions", "X-Request-Id: bad\r\n", "{}").starts_with("HTTP/1.1 400"));
    assert!(ask(addr, "GET /no%22where?key=secret", "X-Request-Id: lost\r\n", "").starts_with("HTTP/1.1 404"));
    let output = terminate(&mut serving);
    let lines: Vec<Value> = output.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let of = |id: &str| lines.iter().find(|line| line["request_id"] == id).unwrap_or_else(|| panic!("{id}: {output}"));
    let mine = of("mine");
    assert_eq!(
        (&mine["method"], &mine["path"], &mine["status"]),
        (&"POST".into(), &"/v1/completions".into(), &200.into())
    );
    assert_eq!((&mine["completion_tokens"], &mine["end"]), (&3.into(), &"length".into()));
    assert!(mine["client"].as_str().unwrap().starts_with("127.0.0.1:"));
    let (first, whole) = (mine["first_token_s"].as_f64().unwrap(), mine["duration_s"].as_f64().unwrap());
    assert!(0.0 < first && first <= whole && mine["bytes"].as_u64().unwrap() > 100, "{mine}");
    assert_eq!((&of("bad")["status"], of("bad").get("end")), (&400.into(), None));
    assert_eq!(of("lost")["path"], "/no%22where");
    assert!(!output.contains("secret"));
}

/// What opens the answer is no token of the prompt: not in usage, not here.
#[test]
fn prompts_are_counted_as_in_usage() {
    let (mut serving, addr) = serve(&["--access-log", "json"]);
    let turns = r#""messages": [{"role": "user", "content": "x"}]"#;
    let chat = |stream: bool| format!(r#"{{{turns}, "max_tokens": 3, "stream": {stream}}}"#);
    let answer = ask(addr, "POST /v1/chat/completions", "", &chat(false));
    let answer: Value = serde_json::from_str(answer.split_once("\r\n\r\n").unwrap().1).unwrap();
    ask(addr, "POST /v1/chat/completions", "", &chat(true));
    let counted = ask(addr, "POST /tokenize", "", &format!("{{{turns}}}"));
    let counted: Value = serde_json::from_str(counted.split_once("\r\n\r\n").unwrap().1).unwrap();
    let prompt = answer["usage"]["prompt_tokens"].as_u64().unwrap();
    assert_eq!(counted["count"], prompt + 4, "the opener has four tokens in the demo's vocabulary");
    let output = terminate(&mut serving);
    let lines = output.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    let logged: Vec<Value> = lines.filter(|line| line["path"] == "/v1/chat/completions").collect();
    assert_eq!(logged.len(), 2);
    for line in logged {
        assert_eq!(line["prompt_tokens"], prompt, "{line}");
        assert!(line["cached_tokens"].as_u64().unwrap() <= prompt, "{line}");
    }
}

#[test]
fn nothing_is_written_unless_asked_for() {
    let (mut serving, addr) = serve(&[]);
    ask(addr, "POST /v1/completions", "", COMPLETION);
    assert_eq!(terminate(&mut serving), "");
}

/// A collector that takes one batch after the other; bodies of what it got.
fn collect(listener: &TcpListener) -> Value {
    let (socket, _) = listener.accept().unwrap();
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut reader = BufReader::new(socket);
    let (mut head, mut length) = (String::new(), 0);
    loop {
        let mut line = String::new();
        reader.read_line(&mut line).unwrap();
        if let Some(value) = line.to_ascii_lowercase().strip_prefix("content-length:") {
            length = value.trim().parse().unwrap();
        }
        if line.trim().is_empty() {
            break;
        }
        head.push_str(&line);
    }
    assert!(head.starts_with("POST /v1/traces HTTP/1.1") && head.contains("application/json"), "{head}");
    let mut body = vec![0; length];
    reader.read_exact(&mut body).unwrap();
    reader.get_mut().write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\n{}").unwrap();
    serde_json::from_slice(&body).unwrap()
}

#[test]
fn a_collector_gets_the_spans_of_a_request_below_its_callers() {
    let collector = TcpListener::bind("127.0.0.1:0").unwrap();
    let endpoint = format!("http://{}/v1/traces", collector.local_addr().unwrap());
    let (mut serving, addr) = serve(&["--otlp-traces-endpoint", &endpoint]);
    let (trace, parent) = ("4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7");
    ask(addr, "POST /v1/completions", &format!("traceparent: 00-{trace}-{parent}-01\r\n"), COMPLETION);
    let spans = loop {
        let batch = collect(&collector);
        let spans = batch["resourceSpans"][0]["scopeSpans"][0]["spans"].as_array().unwrap().clone();
        let ours: Vec<Value> = spans.into_iter().filter(|span| span["traceId"] == trace).collect();
        if !ours.is_empty() {
            break ours;
        }
    };
    let names: Vec<&str> = spans.iter().map(|span| span["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["POST /v1/completions", "queue", "prefill", "decode"]);
    assert_eq!(spans[0]["parentSpanId"], parent);
    let time = |span: &Value, key: &str| span[key].as_str().unwrap().parse::<u128>().unwrap();
    for pair in spans[1..].windows(2) {
        assert_eq!(time(&pair[0], "endTimeUnixNano"), time(&pair[1], "startTimeUnixNano"), "one follows the other");
    }
    assert!(spans.iter().all(|span| time(span, "startTimeUnixNano") <= time(span, "endTimeUnixNano")));
    drop(collector);
    // A collector that is gone holds nothing up.
    ask(addr, "POST /v1/completions", "", COMPLETION);
    assert_eq!(terminate(&mut serving), "");
}
