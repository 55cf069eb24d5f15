//! Loading, readiness, overload, draining, and the death of the engine.

use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use axum::http::StatusCode;
use perilune_server::lifecycle::Phase;
use perilune_server::load::load;
use perilune_server::progress::Show;
use perilune_server::{Overload, ServerError, Settings};
use perilune_tests::gated;
use serde_json::{Value, json};

use crate::client::{Connection, get, post, with};
use crate::grammar::assemble;
use crate::script::Script;
use crate::server::{TestServer, demo_options, demo_settings, eventually};

const CHAT: &str = "/v1/chat/completions";
const TEXT: &str = "/v1/completions";
const ANSWER: &str = "one two three four five six seven eight nine ten";

fn text() -> Value {
    json!({"prompt": "x", "max_tokens": 50})
}

/// The rest of a stream that has sent its head and perhaps some events, and what it adds up to.
fn rest_of(connection: &mut Connection, mut events: Vec<String>) -> crate::grammar::Assembled {
    while let Some(line) = connection.line_with("data: ") {
        events.push(line.trim_start_matches("data: ").to_owned());
    }
    assemble(&events, 1)
}

#[test]
fn only_liveness_answers_while_the_model_is_loading() {
    let (release, released) = channel::<()>();
    let server = TestServer::start(demo_settings(), move || {
        released.recv().unwrap();
        load(&demo_options(), Show::Nothing)
    });
    assert_eq!(get(server.addr, "/health").ok()["status"], "ok");
    let ready = get(server.addr, "/ready");
    assert_eq!((ready.status, ready.json()["status"].as_str()), (503, Some("loading")));
    let generates = get(server.addr, "/health_generate");
    assert_eq!((generates.status, generates.json()["status"].as_str()), (503, Some("failed")));
    get(server.addr, "/version").ok();
    assert_eq!(get(server.addr, "/metrics").status, 200);
    for stream in [false, true] {
        let refused = post(server.addr, TEXT, &with(&text(), "stream", stream));
        assert_eq!(refused.header("retry-after"), Some("1"));
        assert!(refused.refused(503)["message"].as_str().unwrap().contains("being loaded"));
    }
    get(server.addr, "/v1/models").refused(503);
    release.send(()).unwrap();
    server.wait_for(|phase| *phase == Phase::Ready);
    get(server.addr, "/ready").ok();
    post(server.addr, TEXT, &text()).ok();
}

#[test]
fn a_model_that_cannot_be_loaded_ends_the_server_with_the_reason() {
    let mut options = demo_options();
    options.dir = "/no/such/model".into();
    let server = TestServer::start(demo_settings(), move || load(&options, Show::Nothing));
    assert!(server.outcome().unwrap_err().to_string().contains("/no/such/model"));
}

#[test]
fn a_context_that_does_not_fit_is_refused_with_numbers() {
    let mut options = demo_options();
    options.context_length = Some(usize::MAX / 2);
    let server = TestServer::start(demo_settings(), move || load(&options, Show::Nothing));
    assert!(server.outcome().unwrap_err().to_string().contains("not even one request fits"));
}

#[test]
fn a_full_queue_refuses_with_the_configured_status() {
    let (runner, gate) = gated(Script::markup(ANSWER));
    let overload = Overload { status: StatusCode::TOO_MANY_REQUESTS, retry_after_s: 7 };
    let server = TestServer::over(runner, Settings { overload, ..demo_settings() }, |config| {
        config.max_running_requests = 1;
        config.max_queued_requests = 1;
    });
    let body = with(&text(), "stream", true);
    let mut running = Connection::post(server.addr, TEXT, &body);
    assert_eq!(running.head().0, 200);
    gate.arrival();
    let mut waiting = Connection::post(server.addr, TEXT, &body);
    assert_eq!(waiting.head().0, 200);
    for stream in [false, true] {
        let refused = post(server.addr, TEXT, &with(&text(), "stream", stream));
        assert_eq!(refused.header("retry-after"), Some("7"));
        refused.refused(429);
    }
    drop(gate);
    assert_eq!(rest_of(&mut running, Vec::new()).choices[0].content, ANSWER);
    assert_eq!(rest_of(&mut waiting, Vec::new()).choices[0].content, ANSWER);
    server.wait_until_idle();
}

#[test]
fn what_no_queue_could_ever_take_is_wrong_not_early() {
    let server = TestServer::over(Script::markup(ANSWER), demo_settings(), |config| config.max_queued_requests = 3);
    let chat = json!({"messages": [{"role": "user", "content": "x"}], "n": 4});
    let cases = [
        (CHAT, chat, "n"),
        (TEXT, json!({"prompt": ["x", "y"], "n": 2}), "n"),
        (TEXT, json!({"prompt": ["x", "y", "z", "x"]}), "prompt"),
    ];
    for (path, body, param) in cases {
        for stream in [false, true] {
            let error = post(server.addr, path, &with(&body, "stream", stream)).refused(400);
            assert_eq!(error["param"], param, "{error}");
            let message = error["message"].as_str().unwrap();
            assert!(message.contains("at most 3") && message.contains("--max-queued-requests"), "{message}");
        }
    }
    assert_eq!(server.stats().prompt_tokens, 0, "nothing was submitted");
    assert_eq!(post(server.addr, TEXT, &json!({"prompt": ["x", "y", "z"]})).status, 200);
}

#[test]
fn draining_refuses_at_once_and_lets_streams_finish() {
    let (runner, gate) = gated(Script::markup(ANSWER));
    let server = TestServer::over(runner, demo_settings(), |_| {});
    let open = || Connection::post(server.addr, TEXT, &with(&text(), "stream", true));
    let mut streams: Vec<Connection> = (0..4).map(|_| open()).collect();
    streams.iter_mut().for_each(|stream| assert_eq!(stream.head().0, 200));
    gate.arrival();
    server.shutdown.request();
    server.wait_for(|phase| *phase == Phase::Draining);
    let ready = get(server.addr, "/ready");
    assert_eq!((ready.status, ready.json()["status"].as_str()), (503, Some("draining")));
    get(server.addr, "/health").ok();
    let refused = post(server.addr, TEXT, &text());
    assert!(refused.header("retry-after").is_some());
    refused.refused(503);
    drop(gate);
    for mut stream in streams {
        let assembled = rest_of(&mut stream, Vec::new());
        assert_eq!((assembled.choices[0].content.as_str(), assembled.error), (ANSWER, None));
    }
    server.outcome().unwrap();
}

#[test]
fn past_the_deadline_streams_end_with_an_error() {
    let (runner, gate) = gated(Script::markup(ANSWER));
    let settings = Settings { drain_timeout: Duration::from_millis(50), ..demo_settings() };
    let server = TestServer::over(runner, settings, |_| {});
    let mut streamed = Connection::post(server.addr, TEXT, &with(&text(), "stream", true));
    assert_eq!(streamed.head().0, 200);
    let addr = server.addr;
    let whole = std::thread::spawn(move || post(addr, TEXT, &text()));
    eventually("both are in flight", || server.num_in_flight() == 2);
    gate.arrival();
    server.shutdown.request();
    let assembled = rest_of(&mut streamed, Vec::new());
    assert_eq!(assembled.choices[0].finish_reason, "error");
    assert_eq!(assembled.error.unwrap()["code"], "shutdown");
    assert_eq!(whole.join().unwrap().refused(503)["code"], "shutdown");
    server.outcome().unwrap();
}

#[test]
fn a_second_signal_ends_at_once() {
    let (runner, gate) = gated(Script::markup(ANSWER));
    let server = TestServer::over(runner, demo_settings(), |_| {});
    let mut stream = Connection::post(server.addr, TEXT, &with(&text(), "stream", true));
    assert_eq!(stream.head().0, 200);
    gate.arrival();
    server.shutdown.request();
    server.wait_for(|phase| *phase == Phase::Draining);
    let begin = Instant::now();
    server.shutdown.request();
    server.outcome().unwrap();
    assert!(begin.elapsed() < Duration::from_secs(5), "30 s were left to drain");
}

#[test]
fn an_engine_that_dies_ends_every_stream_and_the_server() {
    let (runner, gate) = gated(Script { fault_at: Some(2), ..Script::markup(ANSWER) });
    let server = TestServer::over(runner, demo_settings(), |_| {});
    let mut streams: Vec<Connection> =
        (0..3).map(|_| Connection::post(server.addr, TEXT, &with(&text(), "stream", true))).collect();
    streams.iter_mut().for_each(|stream| assert_eq!(stream.head().0, 200));
    let addr = server.addr;
    let whole = std::thread::spawn(move || post(addr, TEXT, &text()));
    eventually("all are in flight", || server.num_in_flight() == 4);
    drop(gate);
    for mut stream in streams {
        let assembled = rest_of(&mut stream, Vec::new());
        assert_eq!(assembled.choices[0].finish_reason, "error");
        assert!(assembled.error.is_some());
    }
    assert!(whole.join().unwrap().status >= 500);
    assert!(matches!(server.outcome(), Err(ServerError::EngineStopped { .. })));
}

#[test]
fn silence_is_filled_with_pings() {
    let (runner, gate) = gated(Script::markup(ANSWER));
    let settings = Settings { ping_interval: Some(Duration::from_millis(5)), ..demo_settings() };
    let server = TestServer::over(runner, settings, |_| {});
    let mut stream = Connection::post(server.addr, TEXT, &with(&text(), "stream", true));
    assert_eq!(stream.head().0, 200);
    gate.arrival();
    for _ in 0..3 {
        assert_eq!(stream.line_with(":").as_deref(), Some(": ping"));
    }
    drop(gate);
    assert_eq!(rest_of(&mut stream, Vec::new()).choices[0].content, ANSWER);
}

#[test]
fn a_stalled_engine_is_not_ready() {
    let (runner, gate) = gated(Script::markup(ANSWER));
    let settings = Settings { stall_timeout: Duration::from_millis(20), ..demo_settings() };
    let server = TestServer::over(runner, settings, |_| {});
    get(server.addr, "/ready").ok();
    let stream = Connection::post(server.addr, TEXT, &with(&text(), "stream", true));
    gate.arrival();
    eventually("the server notices", || get(server.addr, "/ready").status == 503);
    assert_eq!(get(server.addr, "/ready").json()["status"], "stalled");
    get(server.addr, "/health").ok();
    let stalled_s = || {
        let page = String::from_utf8(get(server.addr, "/metrics").body).unwrap();
        let value = page.lines().find_map(|line| line.strip_prefix("perilune_stalled_seconds "));
        value.unwrap().parse::<f64>().unwrap()
    };
    assert!(stalled_s() > 0.02);
    drop((gate, stream));
    eventually("the server recovers", || get(server.addr, "/ready").status == 200);
    server.wait_until_idle();
    assert_eq!(stalled_s(), 0.0);
}

#[test]
fn metrics_count_what_happened() {
    let server = TestServer::over(Script::markup(ANSWER), demo_settings(), |_| {});
    let chat = json!({"messages": [{"role": "user", "content": "x"}], "max_tokens": 5});
    for _ in 0..3 {
        post(server.addr, CHAT, &chat).ok();
    }
    post(server.addr, CHAT, &json!({})).refused(400);
    server.wait_until_idle();
    let page = String::from_utf8(get(server.addr, "/metrics").body).unwrap();
    for line in [
        "perilune_http_responses_total{route=\"/v1/chat/completions\",status=\"200\"} 3",
        "perilune_http_responses_total{route=\"/v1/chat/completions\",status=\"400\"} 1",
        "perilune_generation_tokens_total 15",
        "perilune_requests_finished_total{reason=\"length\"} 3",
        "perilune_time_to_first_token_seconds_count 3",
        "perilune_inter_token_latency_seconds_count 12",
        "perilune_e2e_request_latency_seconds_count 3",
        "perilune_requests_running 0",
        "perilune_kv_blocks_used 0",
        "perilune_state_slots_used 0",
        "perilune_corrupted_requests_total 0",
    ] {
        assert!(page.lines().any(|found| found == line), "{line} is missing from\n{page}");
    }
}

#[test]
fn a_token_is_generated_to_say_that_one_can_be() {
    let server = TestServer::over(Script::markup("one two"), demo_settings(), |_| {});
    let before = server.stats().generated_tokens;
    assert_eq!(get(server.addr, "/health_generate").ok()["status"], "ok");
    assert_eq!(server.stats().generated_tokens, before + 1);
    let corrupt = Script { tokens: vec![None], ..Script::default() };
    let server = TestServer::over(corrupt, demo_settings(), |_| {});
    let reply = get(server.addr, "/health_generate");
    assert_eq!(reply.status, 503);
    assert!(reply.json()["reason"].as_str().unwrap().contains("not finite"), "{:?}", reply.json());
}
