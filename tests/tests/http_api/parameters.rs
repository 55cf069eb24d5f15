//! Parameters that kill servers elsewhere: each wrong value is a 400 that names it, streamed or not, and the next request
//! is served. Values that look dangerous but are fine are served.

use std::net::SocketAddr;

use perilune_server::Settings;
use serde_json::{Value, json};

use crate::client::{exchange, get, post, raw_request, with};
use crate::script::Script;
use crate::server::{TestServer, demo_settings, shared_demo};

const CHAT: &str = "/v1/chat/completions";
const TEXT: &str = "/v1/completions";

fn chat() -> Value {
    json!({"messages": [{"role": "user", "content": "What is 7 + 5?"}], "max_tokens": 2})
}

fn text() -> Value {
    json!({"prompt": "What is", "max_tokens": 2})
}

/// The request is refused for this field, streamed or not, and the server lives.
fn refused(addr: SocketAddr, path: &str, body: &Value, param: &str) -> String {
    let mut message = String::new();
    for stream in [false, true] {
        let error = post(addr, path, &with(body, "stream", stream)).refused(400);
        assert_eq!(error["param"], param, "{body}: {error}");
        assert_eq!(error["type"], "invalid_request_error");
        message = error["message"].as_str().unwrap().to_owned();
    }
    post(addr, TEXT, &text()).ok();
    message
}

#[test]
fn log_probabilities_out_of_range() {
    let addr = shared_demo();
    for bad in [json!(1_000_000), json!(-1), json!(21), json!(true), json!("5")] {
        let body = with(&with(&chat(), "logprobs", true), "top_logprobs", bad.clone());
        assert!(refused(addr, CHAT, &body, "top_logprobs").contains("0 to 20"));
        refused(addr, TEXT, &with(&text(), "logprobs", bad.clone()), "logprobs");
        refused(addr, TEXT, &with(&text(), "prompt_logprobs", bad), "prompt_logprobs");
    }
}

#[test]
fn logit_bias_of_tokens_that_are_none() {
    let addr = shared_demo();
    for key in ["163840", "2272", "-1", "AI", "1.5", "99999999999999999999"] {
        for (path, body) in [(CHAT, chat()), (TEXT, text())] {
            let message = refused(addr, path, &with(&body, "logit_bias", json!({key: 1})), "logit_bias");
            assert!(message.contains(key), "{message}");
        }
    }
}

#[test]
fn logit_bias_of_any_size_is_clamped_and_minus_hundred_bans() {
    let addr = shared_demo();
    for value in ["1e300", "-1e300", "1e-400", "1e-320", "100", "-100"] {
        let body = format!(r#"{{"prompt": "What is", "max_tokens": 2, "logit_bias": {{"50": {value}}}}}"#);
        exchange(addr, &raw_request("POST", TEXT, "", body.as_bytes())).ok();
    }
    for value in ["NaN", "Infinity", "1e400", "\"1\"", "true", "null"] {
        let body = format!(r#"{{"prompt": "What is", "max_tokens": 2, "logit_bias": {{"50": {value}}}}}"#);
        exchange(addr, &raw_request("POST", TEXT, "", body.as_bytes())).refused(400);
    }
    let sampled = |bias: Value| {
        let body = json!({"prompt": "What is 7 + 5?", "max_tokens": 200, "temperature": 1.0, "seed": 5,
            "ignore_eos": true, "return_token_ids": true, "logit_bias": bias});
        post(addr, TEXT, &body).ok()["choices"][0]["token_ids"].as_array().unwrap().clone()
    };
    let free = sampled(json!({}));
    let mut banned = serde_json::Map::new();
    for id in free.iter().take(5) {
        banned.insert(id.to_string(), json!(-100));
    }
    let without = sampled(Value::Object(banned.clone()));
    assert_eq!(without.len(), 200);
    assert!(without.iter().all(|id| !banned.contains_key(&id.to_string())), "a banned token was sampled");
}

#[test]
fn sampling_out_of_range() {
    let addr = shared_demo();
    let cases = [
        ("temperature", json!(-1)),
        ("temperature", json!(2.5)),
        ("temperature", json!(1e300)),
        ("temperature", json!("hot")),
        ("top_p", json!(0)),
        ("top_p", json!(1.5)),
        ("top_k", json!(-2)),
        ("top_k", json!(1.5)),
        ("min_p", json!(-0.1)),
        ("min_p", json!(1.1)),
        ("presence_penalty", json!(2.5)),
        ("frequency_penalty", json!(-2.5)),
        ("repetition_penalty", json!(0)),
        ("n", json!(0)),
        ("n", json!(129)),
        ("seed", json!("1")),
        ("stop", json!("")),
        ("stop", json!(vec!["x"; 17])),
        ("stop_token_ids", json!([1_000_000])),
        ("stop_token_ids", json!("1")),
        ("min_tokens", json!(-1)),
        ("min_tokens", json!(3)),
        ("max_tokens", json!(-1)),
        ("max_tokens", json!(true)),
        ("ignore_eos", json!("yes")),
        ("stream_options", json!(true)),
    ];
    for (field, value) in cases {
        for (path, body) in [(CHAT, chat()), (TEXT, text())] {
            refused(addr, path, &with(&body, field, value.clone()), field);
        }
    }
}

#[test]
fn values_at_the_edge_are_served() {
    let addr = shared_demo();
    let edges = json!({"temperature": 2, "top_p": 1, "top_k": -1, "min_p": 0, "presence_penalty": -2,
        "frequency_penalty": 2, "repetition_penalty": 0.01, "seed": -1, "stop": [], "stop_token_ids": [],
        "min_tokens": 2, "logit_bias": {}, "n": 2});
    for (path, body) in [(CHAT, chat()), (TEXT, text())] {
        let mut body = body;
        body.as_object_mut().unwrap().extend(edges.as_object().unwrap().clone());
        assert_eq!(post(addr, path, &body).ok()["choices"].as_array().unwrap().len(), 2);
    }
}

#[test]
fn unknown_fields_are_ignored() {
    let addr = shared_demo();
    for (field, value) in [
        ("foo", json!({"bar": [1]})),
        ("store", json!(true)),
        ("metadata", json!({"a": "b"})),
        ("service_tier", json!("auto")),
        ("user", json!("u")),
        ("stream_options", json!({"include_usage": true, "new_option": 1})),
    ] {
        for (path, body) in [(CHAT, chat()), (TEXT, text())] {
            post(addr, path, &with(&body, field, value.clone())).ok();
        }
    }
}

#[test]
fn broken_bodies() {
    let addr = shared_demo();
    let deep = format!(r#"{{"messages": {}{}}}"#, "[".repeat(100_000), "]".repeat(100_000));
    let bodies: [&[u8]; 9] = [
        b"",
        b"{",
        b"[]",
        b"{\"messages\": [{\"role\": \"user\", \"content\": \"\xff\"}]}",
        br#"{"messages": [{"role": "user", "content": "x"}], "temperature": NaN}"#,
        br#"{"messages": [{"role": "user", "content": "x"}], "n": 1, "n": 2}"#,
        br#"{"messages": [{"role": "user", "role": "user", "content": "x"}]}"#,
        deep.as_bytes(),
        br#"{"messages": [{"role": "user", "content": "x"}]} trailing"#,
    ];
    for path in [CHAT, TEXT, "/tokenize", "/detokenize"] {
        for body in bodies {
            exchange(addr, &raw_request("POST", path, "", body)).refused(400);
        }
    }
    post(addr, CHAT, &chat()).ok();
}

#[test]
fn a_body_that_is_not_said_to_be_json_is_refused_with_what_to_add() {
    let addr = shared_demo();
    let sent = |path, kind: &str, body: &Value| {
        let header = format!("Content-Type: {kind}\r\n");
        exchange(addr, &raw_request("POST", path, &header, body.to_string().as_bytes()))
    };
    for (path, body) in
        [(CHAT, chat()), (TEXT, text()), ("/tokenize", text()), ("/detokenize", json!({"tokens": [50]}))]
    {
        sent(path, "application/json; charset=utf-8", &body).ok();
        // What `curl -d` sends, and what a web page may send without asking.
        for kind in ["application/x-www-form-urlencoded", "text/plain"] {
            let message = sent(path, kind, &body).refused(415)["message"].as_str().unwrap().to_owned();
            assert!(message.contains(kind) && message.contains("`Content-Type: application/json`"), "{message}");
        }
        let from_a_page = raw_request("POST", path, "Origin: https://example.org\r\n", body.to_string().as_bytes());
        exchange(addr, &from_a_page).refused(415);
    }
    let asked_first = exchange(addr, &raw_request("OPTIONS", CHAT, "Origin: https://example.org\r\n", b""));
    assert!(asked_first.header("access-control-allow-origin").is_none());
    asked_first.refused(405);
}

#[test]
fn null_is_no_value_and_is_named() {
    let addr = shared_demo();
    let cases = [(CHAT, "messages"), (TEXT, "prompt"), ("/tokenize", "prompt"), ("/detokenize", "tokens")];
    for (path, field) in cases {
        let error = post(addr, path, &json!({field: null})).refused(400);
        assert_eq!(error["param"], field);
        assert!(error["message"].as_str().unwrap().starts_with(&format!("`{field}` is null")), "{error}");
    }
}

#[test]
fn words_of_effort() {
    let addr = shared_demo();
    let prompt = |word: &str| post(addr, "/tokenize", &with(&chat(), "reasoning_effort", word)).ok()["tokens"].clone();
    assert_eq!((prompt("minimal"), prompt("medium"), prompt("xhigh")), (prompt("low"), prompt("high"), prompt("max")));
    assert!(prompt("low") != prompt("high") && prompt("none") != prompt("low"));
    refused(addr, CHAT, &with(&chat(), "reasoning_effort", "enormous"), "reasoning_effort");
}

#[test]
fn a_body_that_claims_too_much_is_refused_unread() {
    let addr = shared_demo();
    for path in [CHAT, TEXT, "/tokenize"] {
        let head = format!("POST {path} HTTP/1.1\r\nHost: test\r\nContent-Length: 1073741824\r\n\r\n{{");
        let reply = exchange(addr, head.as_bytes());
        assert!(reply.refused(413)["message"].as_str().unwrap().contains("67108864"));
    }
}

#[test]
fn a_chunked_body_is_cut_off_at_the_limit() {
    let settings = Settings { max_body_bytes: 1000, ..demo_settings() };
    let server = TestServer::over(Script::default(), settings, |_| {});
    let sized = |size: usize| {
        let body = json!({"prompt": "x".repeat(size), "max_tokens": 1}).to_string();
        let head =
            format!("POST {TEXT} HTTP/1.1\r\nHost: test\r\nConnection: close\r\nTransfer-Encoding: chunked\r\n\r\n");
        exchange(server.addr, format!("{head}{:x}\r\n{body}\r\n0\r\n\r\n", body.len()).as_bytes())
    };
    sized(100).ok();
    assert!(sized(2000).refused(413)["message"].as_str().unwrap().contains("1000"));
    sized(100).ok();
}

#[test]
fn messages_that_break_a_rule() {
    let addr = shared_demo();
    let cases = [
        (json!([]), "messages"),
        (json!("hi"), "messages"),
        (json!([{"role": "user", "content": null}]), "messages[0].content"),
        (json!([{"role": "tool", "content": "x"}]), "messages[0].tool_call_id"),
        (json!([{"role": "user", "content": [{"type": "hologram"}]}]), "messages[0].content[0].type"),
        (json!([{"role": "alien", "content": "x"}]), "messages[0].role"),
    ];
    for (messages, param) in cases {
        refused(addr, CHAT, &with(&chat(), "messages", messages), param);
    }
    refused(addr, CHAT, &json!({"model": "demo"}), "messages");
    refused(addr, TEXT, &json!({"model": "demo"}), "prompt");
    let tools = json!([{"type": "function", "function": {"name": "a<b"}}]);
    refused(addr, CHAT, &with(&chat(), "tools", tools), "tools[0].function.name");
}

#[test]
fn a_prompt_that_is_too_long_names_the_three_numbers() {
    let addr = shared_demo();
    let ids = vec![50; 16_000];
    for (prompt, max_tokens) in [(json!(ids), 1000), (json!(vec![50; 20_000]), 1)] {
        let body = json!({"prompt": prompt, "max_tokens": max_tokens});
        for stream in [false, true] {
            let error = post(addr, TEXT, &with(&body, "stream", stream)).refused(400);
            assert_eq!(error["code"], "context_length_exceeded");
            let message = error["message"].as_str().unwrap();
            let numbers = [prompt.as_array().unwrap().len(), max_tokens, 16_384];
            assert!(numbers.iter().all(|number| message.contains(&number.to_string())), "{message}");
        }
    }
    let default = post(addr, TEXT, &json!({"prompt": vec![50; 16_380]})).refused(400);
    assert!(default["message"].as_str().unwrap().contains("16, the default"), "{default}");
    assert_eq!(default["param"], "prompt");
    let chat = post(addr, CHAT, &with(&chat(), "max_tokens", 100_000)).refused(400);
    assert_eq!((&chat["code"], &chat["param"]), (&json!("context_length_exceeded"), &json!("messages")));
    refused(addr, TEXT, &json!({"prompt": [5000], "max_tokens": 1}), "prompt");
    refused(addr, TEXT, &json!({"prompt": "", "max_tokens": 1}), "prompt");
}

#[test]
fn unknown_models_and_routes() {
    let addr = shared_demo();
    for (path, body) in [(CHAT, chat()), (TEXT, text()), ("/tokenize", text())] {
        for stream in [false, true] {
            let body = with(&with(&body, "model", "gpt-9"), "stream", stream);
            let error = post(addr, path, &body).refused(404);
            assert_eq!((error["param"].as_str(), error["code"].as_str()), (Some("model"), Some("model_not_found")));
        }
    }
    get(addr, "/v1/models/gpt-9").refused(404);
    get(addr, "/v1/nothing").refused(404);
    get(addr, CHAT).refused(405);
    post(addr, "/v1/embeddings", &json!({})).refused(501);
    assert_eq!(get(addr, "/v1/models").ok()["data"][0]["id"], "demo");
    assert_eq!(get(addr, "/v1/models/demo").ok()["max_model_len"], 16_384);
}

#[test]
fn request_ids_are_echoed_or_made() {
    let addr = shared_demo();
    let with_id = raw_request("GET", "/version", "X-Request-Id: abc-1\r\n", b"");
    assert_eq!(exchange(addr, &with_id).header("x-request-id"), Some("abc-1"));
    let (a, b) = (get(addr, "/version"), get(addr, "/nothing"));
    assert!(a.header("x-request-id").is_some() && a.header("x-request-id") != b.header("x-request-id"));
    let broken = raw_request("POST", CHAT, "X-Request-Id: abc-2\r\n", b"{");
    assert_eq!(exchange(addr, &broken).header("x-request-id"), Some("abc-2"));
}
