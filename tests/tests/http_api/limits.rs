//! Limits under load: what does not fit is refused with a sentence and `Retry-After`, and nothing stays behind.

use std::time::Duration;

use perilune_server::Settings;
use perilune_tests::gated;
use serde_json::{Value, json};

use crate::client::{Connection, Reply, get, post, raw_request, with};
use crate::script::Script;
use crate::server::{TestServer, demo_settings, eventually};

const TEXT: &str = "/v1/completions";
const MESSAGES: &str = "/v1/messages";
const ANSWER: &str = "one two three four five six seven eight nine ten";

fn text() -> Value {
    json!({"prompt": "x", "max_tokens": 50})
}

fn message() -> Value {
    json!({"messages": [{"role": "user", "content": "x"}], "max_tokens": 50})
}

/// A refusal for want of room that names the flag.
fn overloaded(reply: Reply, flag: &str) {
    assert_eq!(reply.header("retry-after"), Some("1"));
    let error = reply.refused(503);
    assert_eq!(error["type"], "overloaded_error", "{error}");
    assert!(error["message"].as_str().unwrap().contains(flag), "{error}");
}

#[test]
fn a_request_that_waits_too_long_for_its_turn_is_refused() {
    let (runner, gate) = gated(Script::markup(ANSWER));
    let settings = Settings { max_queue_time: Some(Duration::from_millis(50)), ..demo_settings() };
    let server = TestServer::over(runner, settings, |config| config.max_running_requests = 1);
    let mut first = Connection::post(server.addr, TEXT, &with(&text(), "stream", true));
    gate.arrival();
    // Its step has begun, so that it waits no more, however long the step takes.
    assert_eq!(first.head().0, 200);
    for body in [text(), with(&text(), "stream", true), with(&text(), "n", 3)] {
        let refused = post(server.addr, TEXT, &body);
        assert_eq!(refused.json()["error"]["code"], "queue_timeout");
        overloaded(refused, "--max-queue-time");
    }
    let anthropic = post(server.addr, MESSAGES, &message());
    assert_eq!((anthropic.status, anthropic.json()["error"]["type"].as_str()), (503, Some("overloaded_error")));
    drop(gate);
    let mut last = String::new();
    while let Some(line) = first.line_with("data: ") {
        last = line;
    }
    assert_eq!(last, "data: [DONE]");
    server.wait_until_idle();
    post(server.addr, TEXT, &text()).ok();
    let page = String::from_utf8(get(server.addr, "/metrics").body).unwrap();
    assert!(page.contains("perilune_queue_timeouts_total 4"), "{page}");
    assert!(page.contains("perilune_request_queue_time_seconds_count 2"), "{page}");
}

#[test]
fn so_many_requests_at_once_and_no_more() {
    let (runner, gate) = gated(Script::markup(ANSWER));
    let settings = Settings { max_concurrent_requests: Some(2), ..demo_settings() };
    let server = TestServer::over(runner, settings, |_| {});
    let open = || Connection::post(server.addr, TEXT, &with(&text(), "stream", true));
    let (mut leaves, mut stays) = (open(), open());
    assert_eq!((leaves.head().0, stays.head().0), (200, 200));
    for path in [TEXT, "/tokenize", "/generate"] {
        overloaded(post(server.addr, path, &text()), "--max-concurrent-requests");
    }
    assert_eq!(post(server.addr, MESSAGES, &message()).json()["type"], "error");
    // What operators need is answered.
    for path in ["/health", "/ready", "/metrics", "/server_info"] {
        assert_eq!(get(server.addr, path).status, 200, "{path}");
    }
    post(server.addr, "/abort_request", &json!({"rid": "nobody"})).ok();
    drop((leaves, gate));
    eventually("its place is free", || post(server.addr, "/tokenize", &text()).status == 200);
    while stays.line_with("data: ").is_some() {}
    server.wait_until_idle();
    assert_eq!(server.num_in_flight(), 0);
}

#[test]
fn a_crowd_is_served_or_refused_and_nothing_stays_behind() {
    let settings = Settings {
        max_concurrent_requests: Some(24),
        max_queue_time: Some(Duration::from_millis(200)),
        ..demo_settings()
    };
    let server = TestServer::over(Script::markup(ANSWER), settings, |config| {
        config.max_running_requests = 2;
        config.max_queued_requests = 8;
    });
    let addr = server.addr;
    let client = move |i: usize| {
        let body = with(&with(&text(), "stream", i.is_multiple_of(2)), "n", 1 + i % 3);
        let reply = post(addr, TEXT, &body);
        match reply.status {
            200 => assert!(i % 2 == 1 || reply.body.ends_with(b"data: [DONE]\n\n")),
            // Of one limit or the other.
            503 => overloaded(reply, " "),
            other => panic!("{other}: {}", String::from_utf8_lossy(&reply.body)),
        }
    };
    let clients: Vec<_> = (0..64).map(|i| std::thread::spawn(move || (0..4).for_each(|_| client(i)))).collect();
    clients.into_iter().for_each(|client| client.join().unwrap());
    server.wait_until_idle();
    post(addr, TEXT, &text()).ok();
}

/// A request whose body never comes as a whole.
fn half(server: &TestServer, path: &str) -> Connection {
    let whole = raw_request("POST", path, "Content-Type: application/json\r\n", text().to_string().as_bytes());
    Connection::open(server.addr, &whole[..whole.len() - 5])
}

#[test]
fn a_body_that_does_not_come_is_given_up_and_keeps_nobody_out() {
    let limit = Duration::from_millis(300);
    let settings = Settings { body_timeout: Some(limit), max_concurrent_requests: Some(2), ..demo_settings() };
    let server = TestServer::over(Script::markup(ANSWER), settings, |_| {});
    let paths = [TEXT, "/v1/chat/completions", "/tokenize", MESSAGES, "/abort_request"];
    let mut slow: Vec<Connection> = paths.iter().map(|path| half(&server, path)).collect();
    // More than there are places.
    post(server.addr, TEXT, &text()).ok();
    for (path, slow) in paths.iter().zip(&mut slow) {
        let (status, _) = slow.head();
        assert_eq!(status, 408, "{path}");
        let body: Value = serde_json::from_str(&slow.line_with("{").unwrap()).unwrap();
        assert_eq!(body["type"] == "error", *path == MESSAGES, "{body}");
        assert!(body["error"]["message"].as_str().unwrap().contains("--body-timeout"), "{body}");
    }
    server.wait_until_idle();
}

#[test]
fn a_head_that_does_not_come_closes_its_connection() {
    let settings = Settings { body_timeout: Some(Duration::from_millis(300)), ..demo_settings() };
    let server = TestServer::over(Script::markup(ANSWER), settings, |_| {});
    for part in ["POST /v1/completions HTTP/1.1\r\nHost: te", ""] {
        // The client would panic if the connection stayed open.
        assert_eq!(Connection::open(server.addr, part.as_bytes()).line_with("HTTP/1.1 2"), None);
    }
    post(server.addr, TEXT, &text()).ok();
}

#[test]
fn bodies_that_come_slowly_hold_so_much_together_and_no_more() {
    let settings = Settings { max_body_bytes: 1000, ..demo_settings() };
    let server = TestServer::over(Script::markup(ANSWER), settings, |_| {});
    let whole = raw_request("POST", TEXT, "", &[b' '; 1000]);
    let half = || Connection::open(server.addr, &whole[..whole.len() - 10]);
    let slow: Vec<Connection> = (0..16).map(|_| half()).collect();
    let large = with(&text(), "user", "x".repeat(500));
    eventually("there is no room", || post(server.addr, TEXT, &large).status == 503);
    let refused = post(server.addr, TEXT, &large);
    assert_eq!(refused.json()["error"]["code"], "no_body_room");
    overloaded(refused, "--max-body-bytes");
    // A small one fits still.
    post(server.addr, TEXT, &text()).ok();
    drop(slow);
    eventually("there is room again", || post(server.addr, TEXT, &large).status == 200);
}
