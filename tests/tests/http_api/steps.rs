//! With drafts a step brings several tokens. However an output is cut into steps, every surface says the same: each event of
//! its stream, what the stream adds up to, and the whole answer.

use serde_json::{Value, json};

use crate::client::{Reply, exchange, raw_request, with};
use crate::grammar::{assemble, whole_choices};
use crate::script::Script;
use crate::server::{TestServer, demo_settings};
use crate::{messages, native, responses};

/// Most tokens of a step.
const MAX_STEP: usize = 8;
const NUM_RANDOM: u64 = 12;

/// Thinking, content with characters of several tokens and a text that ends answers, several calls.
const GOLDEN: &[&str] = &[
    "Let me think: a < b, 😀 <|c.<|close|>think<|sep|><|open|>response<|sep|>Sunny 😀 in 北京, STO or STOP? <|c<|close|>response<|sep|>\
     <|open|>tools<|sep|><|open|>call tool=\"get_weather\" index=\"1\"<|sep|><|open|>argument key=\"city\" type=\"string\"<|sep|>\
     Pa\"ris 😀<|close|>argument<|sep|><|open|>argument key=\"days\" type=\"number\"<|sep|>3<|close|>argument<|sep|><|close|>call<|sep|>\
     <|open|>call tool=\"stop\" index=\"2\"<|sep|><|close|>call<|sep|><|open|>call tool=\"raw\" index=\"3\"<|sep|>\
     <|open|>json type=\"object\"<|sep|>{\"x\": [1, 29e669]}<|close|>json<|sep|><|close|>call<|sep|><|close|>tools<|sep|>\
     <|close|>message<|sep|><|end_of_msg|>",
    "hm<|close|>think<|sep|><|open|>response<|sep|>naïve 😀😀 STO<|close|>response<|sep|><|close|>message<|sep|><|end_of_msg|>",
    "hm<|close|>think<|sep|><|open|>response<|sep|>cut off in the middle of 😀😀😀 and so on and on",
];

fn requests() -> Vec<(&'static str, Value)> {
    let turn = json!([{"role": "user", "content": "x"}]);
    let chat = json!({"messages": turn, "max_tokens": 400, "logprobs": true, "return_token_ids": true});
    let thinking = json!({"type": "enabled", "budget_tokens": 1024});
    let messages = json!({"model": "demo", "messages": turn, "max_tokens": 400, "thinking": thinking});
    let include = json!(["message.output_text.logprobs"]);
    let text = json!({"prompt": "x", "max_tokens": 400, "logprobs": 1});
    let native = json!({"text": "x", "sampling_params": {"max_new_tokens": 400}});
    vec![
        ("/v1/chat/completions", chat.clone()),
        ("/v1/chat/completions", with(&chat, "stop", "STOP")),
        ("/v1/chat/completions", with(&with(&chat, "max_tokens", 37), "stop", "STOP")),
        ("/v1/completions", text.clone()),
        ("/v1/completions", with(&text, "stop", json!(["STOP", "of 😀"]))),
        ("/v1/responses", json!({"model": "demo", "input": "x", "max_output_tokens": 400, "include": include})),
        ("/v1/messages", messages.clone()),
        ("/v1/messages", with(&messages, "stop_sequences", json!(["STOP"]))),
        ("/generate", with(&native, "sampling_params", json!({"max_new_tokens": 400, "stop": "STOP"}))),
    ]
}

/// Every request under one id, so that answers differ in nothing by chance.
fn ask(server: &TestServer, path: &str, body: &Value) -> Reply {
    exchange(server.addr, &raw_request("POST", path, "X-Request-Id: same\r\n", body.to_string().as_bytes()))
}

/// A reply without times and counts of drafts; pings say nothing.
fn plain(reply: Reply) -> Vec<String> {
    let text = String::from_utf8(reply.body).unwrap();
    let counted =
        "created|created_at|[a-z_]*prediction_tokens|[a-z_]*latency|cached_tokens|cache_read_input_tokens|input_tokens";
    let numbers = regex::Regex::new(&format!(r#",?"({counted})":[0-9.]+"#)).unwrap();
    text.split("\n\n")
        .filter(|block| *block != ": ping")
        .map(|block| numbers.replace_all(block, "").into_owned())
        .collect()
}

/// What the surfaces' own tests hold streams and whole answers to.
fn check(server: &TestServer, path: &str, body: &Value) {
    match path {
        "/v1/responses" => drop(responses::respond(server, body)),
        "/generate" => drop(native::generate(server, body)),
        "/v1/messages" => drop(messages::message(server, body)),
        _ => {
            let streamed = assemble(&ask(server, path, &with(body, "stream", true)).events(), 1).choices;
            assert_eq!(streamed, whole_choices(&ask(server, path, body).ok()), "{path} {body}");
        }
    }
}

/// All answers to `requests`, streamed and not, where steps have these sizes.
fn answers(markup: &str, step_sizes: Vec<usize>) -> Vec<Vec<String>> {
    let script = Script { step_sizes: step_sizes.clone(), ..Script::markup(markup) };
    let server = TestServer::over(script, demo_settings(), |config| config.max_drafts = MAX_STEP - 1);
    let mut all = Vec::new();
    for (path, body) in requests() {
        // Anthropic's SDKs, as our own client, read numbers as doubles.
        if path != "/v1/messages" || !markup.contains("29e669") {
            check(&server, path, &body);
        }
        all.push(plain(ask(&server, path, &body)));
        all.push(plain(ask(&server, path, &with(&body, "stream", true))));
    }
    let drafts = server.stats().drafts.accepted.iter().sum::<u64>();
    assert_eq!(drafts > 0, step_sizes.iter().any(|size| *size > 1), "{step_sizes:?}");
    all
}

fn random_sizes(seed: u64) -> Vec<usize> {
    let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as usize
    };
    (0..61).map(|_| 1 + next() % MAX_STEP).collect()
}

#[test]
fn steps_of_any_sizes_say_the_same_on_every_surface() {
    for markup in GOLDEN {
        let expected = answers(markup, vec![1]);
        let uniform = (2..=MAX_STEP).map(|size| vec![size]);
        for sizes in uniform.chain((0..NUM_RANDOM).map(random_sizes)) {
            let found = answers(markup, sizes.clone());
            for (found, expected) in found.iter().flatten().zip(expected.iter().flatten()) {
                assert_eq!(found, expected, "steps of {sizes:?}");
            }
            assert_eq!(found, expected, "steps of {sizes:?}");
        }
    }
}
