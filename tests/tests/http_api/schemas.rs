//! The schemas of Moonshot's verifier for vendors (`tests/data/tool-schemas.jsonl`): a model without training, drawing at
//! temperature 1, answers what each allows, as a response and as arguments of a tool, streamed and not.
//!
//! Set `PERILUNE_SCHEMA_SEEDS` for more than one seed each.

use std::sync::LazyLock;

use serde_json::{Value, json};

use crate::client::{post, stream, with};
use crate::grammar::{Choice, assemble, whole_choices};
use crate::server::{TestServer, demo_options, demo_settings, tokenizer};
use perilune_server::lifecycle::Phase;
use perilune_server::load::load;
use perilune_server::progress::Show;
use perilune_tests::{is_valid, write_random_model};

const CHAT: &str = "/v1/chat/completions";
const THREADS: usize = 8;

/// A server on random weights.
pub fn random_server() -> &'static TestServer {
    static SERVER: LazyLock<TestServer> = LazyLock::new(|| {
        let dir = tempfile::tempdir().unwrap().keep();
        write_random_model(&dir);
        let mut options = demo_options();
        options.dir = dir.clone();
        let server = TestServer::start(demo_settings(), move || {
            let loaded = load(&options, Show::Nothing);
            std::fs::remove_dir_all(&options.dir).unwrap();
            loaded
        });
        server.wait_for(|phase| *phase == Phase::Ready);
        server
    });
    &SERVER
}

/// What makes a model that draws evenly come to an end: control tokens, quotes and brackets are more likely.
pub fn ending_bias() -> Value {
    let tokenizer = tokenizer();
    let mut bias = serde_json::Map::new();
    for id in 0..tokenizer.vocab_size() as u32 {
        let bytes = tokenizer.token_bytes(perilune_tensor::TokenId(id)).unwrap();
        let ends = [&b"\""[..], b"}", b"]", b",", b"\"}"].contains(&bytes);
        let amount = if tokenizer.special_id("<|close|>").is_some_and(|close| close.0 == id) { 7 } else { 5 };
        if ends || amount == 7 {
            bias.insert(id.to_string(), json!(amount));
        }
    }
    Value::Object(bias)
}

fn schemas() -> Vec<Value> {
    let text = include_str!("../../data/tool-schemas.jsonl");
    let schemas: Vec<Value> =
        text.lines().map(|line| serde_json::from_str::<Value>(line).unwrap()["case"].clone()).collect();
    assert_eq!(schemas.len(), 106);
    schemas
}

fn seeds() -> u64 {
    std::env::var("PERILUNE_SCHEMA_SEEDS").ok().and_then(|text| text.parse().ok()).unwrap_or(1)
}

pub fn assert_valid(schema: &Value, text: &str) {
    let value: Value = match serde_json::from_str(text) {
        Ok(value) => value,
        // JSON knows no largest number; this parser does.
        Err(error) if error.to_string().contains("out of range") => return,
        Err(error) => panic!("{error}: {text}\nfor {schema}"),
    };
    assert!(is_valid(schema, &value), "{text}\nfor {schema}");
}

fn body(extra: &Value, seed: u64) -> Value {
    let mut body = json!({"messages": [{"role": "user", "content": "go"}], "thinking": {"type": "disabled"},
        "temperature": 1, "top_p": 1, "max_tokens": 1500, "seed": seed, "logit_bias": ending_bias()});
    body.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
    body
}

/// The one choice, streamed for every other seed.
fn choice(body: &Value, seed: u64) -> Choice {
    let addr = random_server().addr;
    if seed.is_multiple_of(2) {
        whole_choices(&post(addr, CHAT, body).ok()).remove(0)
    } else {
        assemble(&stream(addr, CHAT, body), 1).choices.remove(0)
    }
}

/// Runs all schemas; how many answers came to their end.
fn run_all(check: impl Fn(&Value, u64) -> bool + Sync) -> (usize, usize) {
    let all: Vec<(Value, u64)> =
        schemas().into_iter().flat_map(|schema| (0..2 * seeds()).map(move |seed| (schema.clone(), seed))).collect();
    let check = &check;
    let ended: usize = std::thread::scope(|scope| {
        let parts = all.chunks(all.len().div_ceil(THREADS));
        let count = |part: &[(Value, u64)]| part.iter().filter(|(schema, seed)| check(schema, *seed)).count();
        let handles: Vec<_> = parts.map(|part| scope.spawn(move || count(part))).collect();
        handles.into_iter().map(|handle| handle.join().unwrap()).sum()
    });
    (ended, all.len())
}

#[test]
fn every_schema_as_a_response() {
    let (ended, all) = run_all(|schema, seed| {
        let format =
            json!({"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}});
        let choice = choice(&body(&format, seed), seed);
        let ended = choice.finish_reason == "stop";
        if ended {
            assert_valid(schema, &choice.content);
        }
        ended
    });
    assert!(ended * 100 >= all * 95, "only {ended} of {all} answers ended");
}

#[test]
fn every_schema_as_arguments_of_a_tool() {
    let (ended, all) = run_all(|schema, seed| {
        let function = json!({"name": "set", "parameters": schema, "strict": true});
        let choice_of =
            if seed % 4 < 2 { json!("required") } else { json!({"type": "function", "function": {"name": "set"}}) };
        let tools = json!({"tools": [{"type": "function", "function": function}], "tool_choice": choice_of, "parallel_tool_calls": false});
        let choice = choice(&body(&tools, seed), seed);
        let ended = choice.finish_reason == "tool_calls";
        assert!(choice.content.is_empty() && (ended || choice.finish_reason == "length"), "{choice:?}");
        if ended {
            assert_eq!(choice.tool_calls.len(), 1);
            assert_eq!(choice.tool_calls[0].0, "set");
            assert_valid(schema, &choice.tool_calls[0].1);
        }
        ended
    });
    assert!(ended * 100 >= all * 95, "only {ended} of {all} answers ended");
}

#[test]
fn streamed_and_whole_answers_are_the_same() {
    let addr = random_server().addr;
    for (i, schema) in schemas().iter().enumerate().step_by(7) {
        let function = json!({"name": "set", "parameters": schema});
        let tools = json!({"tools": [{"type": "function", "function": function}], "tool_choice": "required"});
        let body = with(&body(&tools, i as u64), "max_tokens", 300);
        let whole = whole_choices(&post(addr, CHAT, &body).ok());
        assert_eq!(assemble(&stream(addr, CHAT, &body), 1).choices, whole, "{schema}");
    }
}
