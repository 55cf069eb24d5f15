//! SGLang's `/generate`, and the routes that its clients and operators ask beside it.

use serde_json::{Value, json};

use crate::client::{Connection, get, post, stream, with};
use crate::script::Script;
use crate::server::{TestServer, demo_settings, shared_demo, tokenizer};

const PATH: &str = "/generate";

/// The answer, the same whole and as the last chunk of a stream.
pub fn generate(server: &TestServer, body: &Value) -> Value {
    let whole = post(server.addr, PATH, body).ok();
    let events = stream(server.addr, PATH, body);
    let (done, chunks) = events.split_last().unwrap();
    assert_eq!(done, "[DONE]");
    let mut last: Value = serde_json::from_str(chunks.last().unwrap()).unwrap();
    let mut before = String::new();
    for chunk in chunks {
        let text = serde_json::from_str::<Value>(chunk).unwrap()["text"].as_str().unwrap().to_owned();
        assert!(text.starts_with(&before), "text only grows");
        before = text;
    }
    for key in ["id", "cached_tokens"] {
        last["meta_info"][key] = whole["meta_info"][key].clone();
    }
    assert_eq!(last, whole);
    whole
}

#[test]
fn text_and_what_is_known_of_it() {
    let server = TestServer::over(Script::markup("one two three"), demo_settings(), |_| {});
    let ids: Vec<u32> = tokenizer().encode_text("one two three").iter().map(|id| id.0).collect();
    let plain = generate(&server, &json!({"text": "x", "rid": "mine"}));
    assert_eq!((&plain["text"], &plain["meta_info"]["id"]), (&json!("one two three"), &json!("mine")));
    assert_eq!(
        plain["output_ids"].as_array().unwrap()[..ids.len()],
        ids.iter().map(|id| json!(id)).collect::<Vec<_>>()
    );
    assert_eq!(plain["meta_info"]["finish_reason"]["type"], "stop");
    let cut = generate(&server, &json!({"text": "x", "sampling_params": {"max_new_tokens": 2}}));
    assert_eq!(cut["meta_info"]["finish_reason"], json!({"type": "length", "length": 2}));
    let stopped = generate(&server, &json!({"input_ids": [5, 6], "sampling_params": {"stop": [" two"]}}));
    assert_eq!((&stopped["text"], &stopped["meta_info"]["finish_reason"]["matched"]), (&json!("one"), &json!(" two")));
    assert_eq!(stopped["meta_info"]["prompt_tokens"], 2);
    let list =
        post(server.addr, PATH, &json!({"text": ["x", "y"], "sampling_params": {"n": 2, "max_new_tokens": 1}})).ok();
    assert_eq!(list.as_array().unwrap().len(), 4);
}

#[test]
fn log_probabilities_of_prompt_and_output() {
    let body = json!({"text": "What is 7", "return_logprob": true, "logprob_start_len": 0, "top_logprobs_num": 2,
        "return_text_in_logprobs": true, "sampling_params": {"max_new_tokens": 3, "temperature": 0, "ignore_eos": true}});
    let meta = post(shared_demo(), PATH, &body).ok()["meta_info"].clone();
    let input = meta["input_token_logprobs"].as_array().unwrap();
    assert_eq!(input.len(), tokenizer().encode_text("What is 7").len());
    assert!(input[0][0].is_null() && input[1][0].as_f64().unwrap() <= 0.0 && input[1][2].is_string());
    assert_eq!(meta["output_token_logprobs"].as_array().unwrap().len(), 3);
    assert_eq!(meta["output_top_logprobs"][0].as_array().unwrap().len(), 2);
    assert_eq!(meta["input_top_logprobs"][0], Value::Null);
}

#[test]
fn forms_are_enforced_and_wrong_ones_refused() {
    let body = |params: Value| json!({"text": "x", "sampling_params": params});
    let found = post(shared_demo(), PATH, &body(json!({"regex": "[ab]{3}"}))).ok();
    assert_eq!(found["text"].as_str().unwrap().len(), 3);
    for (params, param) in [
        (json!({"ebnf": "root ::= root"}), "sampling_params.ebnf"),
        (json!({"json_schema": "{\"type\": \"objekt\"}"}), "sampling_params.json_schema.type"),
        (json!({"temperature": -1}), "temperature"),
    ] {
        for stream in [false, true] {
            let error = post(shared_demo(), PATH, &with(&body(params.clone()), "stream", stream)).refused(400);
            assert_eq!(error["param"], param);
        }
    }
}

#[test]
fn what_operators_ask() {
    let addr = shared_demo();
    let info = get(addr, "/server_info").ok();
    assert_eq!(
        (&info["name"], &info["served_model_names"], &info["max_model_len"]),
        (&json!("perilune"), &json!(["demo"]), &json!(16_384))
    );
    let tokenizer_info = get(addr, "/tokenizer_info").ok();
    assert_eq!(tokenizer_info["vocab_size"].as_u64(), Some(tokenizer().vocab_size() as u64));
    assert!(
        tokenizer_info["added_tokens_decoder"]
            .as_object()
            .unwrap()
            .values()
            .any(|token| token["content"] == "<|open|>")
    );
    assert_eq!(post(addr, "/v1/embeddings", &json!({"input": "x"})).refused(501)["type"], "invalid_request_error");
}

#[test]
fn a_request_is_ended_by_its_id() {
    let server = TestServer::demo(|_| {});
    let long = json!({"text": "x", "rid": "to-end", "stream": true, "sampling_params": {"max_new_tokens": 16_000, "ignore_eos": true}});
    let mut connection = Connection::post(server.addr, PATH, &long);
    assert_eq!(connection.head().0, 200);
    assert!(connection.line_with("data: {").is_some());
    assert_eq!(post(server.addr, "/abort_request", &json!({"rid": "another"})).ok(), json!({"aborted": false}));
    assert_eq!(post(server.addr, "/abort_request", &json!({"rid": "to-end"})).ok(), json!({"aborted": true}));
    let mut last = String::new();
    while let Some(line) = connection.line_with("data: {") {
        last = line;
    }
    assert!(last.contains("\"type\":\"abort\""), "{last}");
    server.wait_until_idle();
    let mut connection = Connection::post(server.addr, PATH, &long);
    assert!(connection.head().0 == 200 && connection.line_with("data: {").is_some());
    post(server.addr, "/abort_request", &json!({"abort_all": true})).ok();
    while connection.line_with("data: {").is_some() {}
    server.wait_until_idle();
    assert_eq!(post(server.addr, "/abort_request", &json!({})).refused(400)["param"], "rid");
}
