//! Clients that leave: generation stops, everything is given back, nobody panics.

use std::time::Duration;

use perilune_tests::gated;
use serde_json::{Value, json};

use crate::client::{Connection, post, raw_request, with};
use crate::script::Script;
use crate::server::{TestServer, demo_settings, eventually};

const TEXT: &str = "/v1/completions";
const CLIENTS: usize = 8;

fn endless() -> Value {
    json!({"prompt": "x", "max_tokens": 10_000, "ignore_eos": true})
}

/// Four streams and four whole answers.
fn open_all(server: &TestServer) -> Vec<Connection> {
    let body = |i: usize| with(&endless(), "stream", i.is_multiple_of(2));
    (0..CLIENTS).map(|i| Connection::post(server.addr, TEXT, &body(i))).collect()
}

#[test]
fn a_closed_connection_stops_generation_within_two_steps() {
    let (runner, gate) = gated(Script::ids(std::iter::repeat_n(50, 10_000)));
    let server = TestServer::over(runner, demo_settings(), |_| {});
    let clients = open_all(&server);
    // Steps pass until one has all requests in it.
    while gate.arrival().len() < CLIENTS {
        gate.pass();
    }
    let before = server.stats().generated_tokens;
    drop(clients);
    eventually("the server notices that all have left", || server.num_in_flight() == 0);
    // The step that was under way ends; there may be one more.
    gate.pass();
    eventually("nothing runs any more", || {
        if gate.try_arrival().is_some() {
            gate.pass();
        }
        server.stats().running == 0
    });
    let late = server.stats().generated_tokens - before;
    assert!(late <= 2 * CLIENTS as u64, "{late} tokens were generated for nobody");
    assert_eq!(server.stats().finished.abort, CLIENTS as u64);
    server.wait_until_idle();
}

#[test]
fn a_real_model_stops_soon() {
    let server = TestServer::demo(|_| {});
    let clients = open_all(&server);
    eventually("all run", || server.stats().running == CLIENTS);
    drop(clients);
    let took = server.wait_until_idle();
    assert!(took < Duration::from_secs(5), "{took:?}");
    post(server.addr, TEXT, &json!({"prompt": "x", "max_tokens": 2})).ok();
}

#[test]
fn leaving_at_any_stage_harms_nobody() {
    let (runner, gate) = gated(Script::markup("one two three four five"));
    let server = TestServer::over(runner, demo_settings(), |config| {
        config.max_running_requests = 2;
        config.chunked_prefill_size = 16;
    });
    let long = json!({"prompt": "word ".repeat(40), "max_tokens": 20, "stream": true});
    // Leaves before its step, between chunks of the prompt, while decoding, at the end, and while others wait.
    for num_steps in 0..12 {
        let clients: Vec<Connection> = (0..4).map(|_| Connection::post(server.addr, TEXT, &long)).collect();
        eventually("all have been taken in", || server.num_in_flight() == clients.len());
        for _ in 0..num_steps {
            gate.arrival();
            gate.pass();
        }
        drop(clients);
        eventually("all are gone", || {
            if gate.try_arrival().is_some() {
                gate.pass();
            }
            let stats = server.stats();
            server.num_in_flight() + stats.running + stats.waiting == 0
        });
    }
    drop(gate);
    server.wait_until_idle();
    assert_eq!(post(server.addr, TEXT, &json!({"prompt": "x", "max_tokens": 20})).status, 200);
}

#[test]
fn half_a_request_is_no_request() {
    let server = TestServer::over(Script::markup("one"), demo_settings(), |_| {});
    let whole = raw_request("POST", TEXT, "", endless().to_string().as_bytes());
    for cut in [0, 1, 20, whole.len() / 2, whole.len() - 1] {
        drop(Connection::open(server.addr, &whole[..cut]));
    }
    post(server.addr, TEXT, &json!({"prompt": "x", "max_tokens": 1})).ok();
    server.wait_until_idle();
}
