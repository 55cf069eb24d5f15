//! Requests that somebody else ends: every surface says so in its own words, and the server goes on.

use std::net::SocketAddr;

use serde_json::{Value, json};

use crate::client::{Connection, exchange, post, raw_request, with};
use crate::server::TestServer;

/// A path, a request that would go on for long, and the way to the reason in its answer, with the word there.
fn surfaces() -> Vec<(&'static str, Value, &'static str, &'static str)> {
    let messages = json!([{"role": "user", "content": "hello"}]);
    let long = |key: &str, value: Value| json!({"model": "demo", "max_tokens": 16_000, "ignore_eos": true, key: value});
    let responses = json!({"model": "demo", "input": "hello", "max_output_tokens": 16_000, "ignore_eos": true});
    let native = json!({"text": "hello", "sampling_params": {"max_new_tokens": 16_000, "ignore_eos": true}});
    vec![
        ("/v1/chat/completions", long("messages", messages.clone()), "/choices/0/finish_reason", "abort"),
        ("/v1/completions", long("prompt", json!("hello")), "/choices/0/finish_reason", "abort"),
        ("/v1/messages", long("messages", messages), "/stop_reason", "abort"),
        ("/v1/responses", responses, "/status", "cancelled"),
        ("/generate", native, "/meta_info/finish_reason/type", "abort"),
    ]
}

fn request(path: &str, body: &Value, id: &str) -> Vec<u8> {
    let headers = format!("Content-Type: application/json\r\nX-Request-Id: {id}\r\n");
    raw_request("POST", path, &headers, body.to_string().as_bytes())
}

/// Ends the request of this id, once it is there.
fn abort(addr: SocketAddr, id: &str) {
    let begun = std::time::Instant::now();
    while post(addr, "/abort_request", &json!({"rid": id})).ok() == json!({"aborted": false}) {
        assert!(begun.elapsed().as_secs() < 60, "{id} never began");
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
}

#[test]
fn a_whole_answer_that_was_ended_says_so() {
    let server = TestServer::demo(|_| {});
    for (index, (path, body, place, word)) in surfaces().into_iter().enumerate() {
        let (addr, id) = (server.addr, format!("whole-{index}"));
        let bytes = request(path, &body, &id);
        let answer = std::thread::spawn(move || exchange(addr, &bytes));
        abort(addr, &id);
        let answer = answer.join().unwrap().ok();
        assert_eq!(answer.pointer(place), Some(&json!(word)), "{path}: {answer}");
        server.wait_until_idle();
    }
    assert_eq!(server.stats().finished.abort, 5);
}

#[test]
fn a_stream_that_was_ended_says_so_last() {
    let server = TestServer::demo(|_| {});
    for (index, (path, body, _, word)) in surfaces().into_iter().enumerate() {
        let id = format!("stream-{index}");
        let mut connection = Connection::open(server.addr, &request(path, &with(&body, "stream", true), &id));
        assert_eq!(connection.head().0, 200, "{path}");
        assert!(connection.line_with("data: {").is_some(), "{path}");
        abort(server.addr, &id);
        let lines: Vec<String> = std::iter::from_fn(|| connection.line_with("data: {")).collect();
        let said = lines.iter().position(|line| line.contains(&format!("\"{word}\"")));
        let said = said.unwrap_or_else(|| panic!("{path}: {:?}", lines.last()));
        assert!(said + 2 >= lines.len(), "{path}: more after the end: {:?}", &lines[said..]);
        assert!(!lines[said].contains("\"error\":{"), "{path}: {}", lines[said]);
        server.wait_until_idle();
    }
    assert_eq!(server.stats().finished.abort, 5);
}
