//! What clients rely on: errors, streams, choices, log-probabilities, disconnects, the end of the process.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // all of it is test code

mod running;

use std::io::{Read, Write};
use std::net::TcpStream;

use running::{Reply, Running, post_head, wait_for};
use serde_json::{Value, json};

const QUESTION: &str = "There are 3 boxes with 12 pens in each box. How many pens are there in total?";

fn chat(more: Value) -> Value {
    let mut body = json!({"model": "demo", "max_tokens": 60, "temperature": 0,
        "messages": [{"role": "user", "content": QUESTION}]});
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    body
}

fn post_chat(server: &Running, body: &Value) -> Reply {
    server.post("/v1/chat/completions", body.to_string().as_bytes())
}

fn complete(server: &Running, body: Value) -> Value {
    let reply = server.post("/v1/completions", body.to_string().as_bytes());
    assert_eq!(reply.status, 200, "{}", reply.body);
    reply.json()
}

/// The chunks of a stream; checks the grammar that every stream keeps.
fn chunks(reply: &Reply, choices: usize) -> Vec<Value> {
    assert_eq!(reply.status, 200, "{}", reply.body);
    assert!(reply.head.to_ascii_lowercase().contains("content-type: text/event-stream"), "{}", reply.head);
    let events: Vec<&str> = reply.body.split("\n\n").filter(|e| !e.is_empty() && !e.starts_with(':')).collect();
    let (last, events) = events.split_last().unwrap();
    assert_eq!(*last, "data: [DONE]");
    let chunks: Vec<Value> =
        events.iter().map(|e| serde_json::from_str(e.strip_prefix("data: ").unwrap()).unwrap()).collect();
    let mut finished = vec![false; choices];
    let mut begun = vec![false; choices];
    for chunk in &chunks {
        assert_eq!(chunk["id"], chunks[0]["id"]);
        for part in chunk["choices"].as_array().unwrap() {
            let index = part["index"].as_u64().unwrap() as usize;
            assert!(!finished[index], "something follows the finish of choice {index}");
            if part.get("delta").is_some() {
                assert_eq!(part["delta"].get("role").is_some(), !begun[index], "the role comes first and once: {part}");
            }
            begun[index] = true;
            finished[index] = !part["finish_reason"].is_null();
        }
    }
    assert!(finished.iter().all(|f| *f), "a choice has no finish reason");
    chunks
}

/// Sum of a field of the deltas of one choice.
fn joined(chunks: &[Value], index: u64, field: &str) -> String {
    let parts = chunks.iter().flat_map(|c| c["choices"].as_array().unwrap()).filter(|p| p["index"] == index);
    parts.filter_map(|p| p["delta"][field].as_str()).collect()
}

#[test]
fn wrong_values_are_named_and_harm_nobody() {
    let server = Running::start(&[]);
    let cases = [
        ("top_logprobs", json!({"logprobs": true, "top_logprobs": 1_000_000})),
        ("top_logprobs", json!({"logprobs": true, "top_logprobs": -1})),
        ("top_logprobs", json!({"logprobs": true, "top_logprobs": 21})),
        ("top_logprobs", json!({"logprobs": true, "top_logprobs": true})),
        ("top_logprobs", json!({"logprobs": true, "top_logprobs": "5"})),
        ("logit_bias", json!({"logit_bias": {"163840": 1}})),
        ("logit_bias", json!({"logit_bias": {"-1": 1}})),
        ("logit_bias", json!({"logit_bias": {"AI": 1}})),
        ("logit_bias", json!({"logit_bias": {"1.5": 1}})),
        ("temperature", json!({"temperature": -0.1})),
        ("temperature", json!({"temperature": "hot"})),
        ("top_p", json!({"top_p": 0})),
        ("top_p", json!({"top_p": 1.5})),
        ("n", json!({"n": 0})),
        ("max_tokens", json!({"max_tokens": -1})),
        ("presence_penalty", json!({"presence_penalty": 3})),
        ("repetition_penalty", json!({"repetition_penalty": 0})),
        ("messages", json!({"messages": []})),
        ("messages[0].content", json!({"messages": [{"role": "user", "content": null}]})),
        ("messages[0].tool_call_id", json!({"messages": [{"role": "tool", "content": "x"}]})),
        ("messages[0].content[0].type", json!({"messages": [{"role": "user", "content": [{"type": "hologram"}]}]})),
    ];
    for (param, change) in cases {
        for stream in [false, true] {
            let mut body = chat(change.clone());
            body["stream"] = json!(stream);
            let reply = post_chat(&server, &body);
            assert_eq!(reply.status, 400, "{change}, stream {stream}: {}", reply.body);
            let error = reply.json()["error"].clone();
            assert_eq!(error["param"], param, "{error}");
            assert!(error["message"].as_str().unwrap().contains(param.split('[').next().unwrap()), "{error}");
        }
        assert_eq!(post_chat(&server, &chat(json!({"max_tokens": 1}))).status, 200, "after {change}");
    }
    let long = post_chat(&server, &chat(json!({"max_tokens": 100_000})));
    assert_eq!((long.status, &long.json()["error"]["code"]), (400, &json!("context_length_exceeded")));
    assert_eq!(post_chat(&server, &chat(json!({"model": "no-such"}))).status, 404);
    server.wait_until_idle();
}

#[test]
fn broken_bodies_are_refused() {
    let server = Running::start(&["--max-body-bytes", "1000000"]);
    let deep = "[".repeat(100_000);
    let bodies: [&[u8]; 6] = [
        b"",
        b"not json",
        b"{\"model\":\"demo\",\"messages\":[{\"role\":\"user\",\"content\":\"\xff\"}]}",
        b"{\"messages\":[{\"role\":\"user\",\"content\":\"x\"}],\"temperature\":NaN}",
        b"{\"max_tokens\":1,\"max_tokens\":2,\"messages\":[{\"role\":\"user\",\"content\":\"x\"}]}",
        deep.as_bytes(),
    ];
    for body in bodies {
        let reply = server.post("/v1/chat/completions", body);
        let shown = String::from_utf8_lossy(&body[..body.len().min(60)]).into_owned();
        assert_eq!(reply.status, 400, "{shown}: {}", reply.body);
        assert!(!reply.json()["error"]["message"].as_str().unwrap().is_empty());
    }
    let mut claim = TcpStream::connect(server.address).unwrap();
    claim.write_all(post_head("/v1/chat/completions", 1_000_000_000).as_bytes()).unwrap();
    let mut reply = String::new();
    claim.read_to_string(&mut reply).unwrap();
    assert!(reply.starts_with("HTTP/1.1 413"), "{reply}");
    let unknown = json!({"foo": [1], "store": true, "metadata": {}, "service_tier": "x", "user": "u"});
    assert_eq!(post_chat(&server, &chat(unknown)).status, 200);
}

#[test]
fn a_stream_reassembles_to_the_whole_answer() {
    let server = Running::start(&[]);
    let whole = post_chat(&server, &chat(json!({}))).json();
    let message = &whole["choices"][0]["message"];
    assert_eq!((&message["content"], &whole["choices"][0]["finish_reason"]), (&json!("36"), &json!("stop")));
    let body = chat(json!({"stream": true, "stream_options": {"include_usage": true}}));
    let streamed = chunks(&post_chat(&server, &body), 1);
    assert_eq!(joined(&streamed, 0, "content"), message["content"]);
    assert_eq!(joined(&streamed, 0, "reasoning_content"), message["reasoning_content"]);
    let last = streamed.last().unwrap();
    assert_eq!((&last["choices"], &last["usage"]), (&json!([]), &whole["usage"]));
    let usage = &whole["usage"];
    let reasoning = usage["completion_tokens_details"]["reasoning_tokens"].as_u64().unwrap();
    assert!(reasoning > 0 && reasoning < usage["completion_tokens"].as_u64().unwrap(), "{usage}");
}

#[test]
fn choices_have_their_own_index_and_seed() {
    let server = Running::start(&[]);
    let body = |more: Value| {
        let mut body = chat(json!({"temperature": 1.9, "seed": 11, "max_tokens": 12}));
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        body
    };
    let whole = post_chat(&server, &body(json!({"n": 3}))).json();
    let texts: Vec<&Value> = (0..3).map(|i| &whole["choices"][i]["message"]["reasoning_content"]).collect();
    assert!(texts[0] != texts[1] || texts[1] != texts[2], "{texts:?}");
    let single = post_chat(&server, &body(json!({}))).json();
    assert_eq!(&single["choices"][0]["message"]["reasoning_content"], texts[0]);
    assert_eq!(single["usage"]["prompt_tokens"], whole["usage"]["prompt_tokens"]);
    let streamed = chunks(&post_chat(&server, &body(json!({"n": 3, "stream": true}))), 3);
    for (i, text) in texts.iter().enumerate() {
        assert_eq!(joined(&streamed, i as u64, "reasoning_content"), text.as_str().unwrap());
    }
}

#[test]
fn stop_strings_cut_and_what_was_held_back_is_delivered() {
    let server = Running::start(&[]);
    let body = |stop: Value| {
        json!({"model": "demo", "prompt": "Question: What is 7 + 5?\nAnswer:", "temperature": 0,
        "max_tokens": 12, "stop": stop})
    };
    let plain = complete(&server, body(json!([])))["choices"][0]["text"].as_str().unwrap().to_owned();
    let cut = complete(&server, body(json!(["+ 5 ="])));
    assert_eq!(cut["choices"][0]["finish_reason"], "stop");
    assert_eq!(cut["choices"][0]["text"], plain.split("+ 5 =").next().unwrap());
    // The end of the output is the beginning of this stop string, and no more of it comes.
    let tail: String = plain.chars().rev().take(3).collect::<Vec<_>>().into_iter().rev().collect();
    let held = complete(&server, body(json!([format!("{tail}never")])));
    assert_eq!(held["choices"][0]["text"], plain.as_str());
}

#[test]
fn prompts_take_four_shapes_and_are_scored() {
    let server = Running::start(&[]);
    let text = "Question: What is 7 + 5?\nAnswer:";
    let ids = server.post("/tokenize", json!({"prompt": text}).to_string().as_bytes()).json()["tokens"].clone();
    let ask = |prompt: Value| {
        let reply = complete(&server, json!({"model": "demo", "prompt": prompt, "temperature": 0, "max_tokens": 6}));
        reply["choices"].as_array().unwrap().iter().map(|c| c["text"].clone()).collect::<Vec<_>>()
    };
    let one = ask(json!(text));
    assert_eq!(ask(ids.clone()), one);
    assert_eq!(ask(json!([text, text])), [one[0].clone(), one[0].clone()]);
    assert_eq!(ask(json!([ids, ids])), [one[0].clone(), one[0].clone()]);
    for max_tokens in [0, 1] {
        let scored = complete(
            &server,
            json!({"model": "demo", "prompt": ids, "max_tokens": max_tokens, "temperature": 0,
            "echo": true, "logprobs": 5, "top_k": 1}),
        );
        let logprobs = &scored["choices"][0]["logprobs"];
        let values = logprobs["token_logprobs"].as_array().unwrap();
        assert_eq!(values.len(), ids.as_array().unwrap().len() + max_tokens);
        assert!(values[0].is_null());
        assert!(values[1..].iter().all(|v| (-9999.0..=0.0).contains(&v.as_f64().unwrap())), "{values:?}");
        assert!(scored["choices"][0]["text"].as_str().unwrap().starts_with(text));
    }
    let back = server.post("/detokenize", json!({"tokens": ids}).to_string().as_bytes()).json();
    assert_eq!(back["prompt"], text);
}

#[test]
fn a_client_that_leaves_stops_its_generation() {
    let server = Running::start(&[]);
    let mut sockets = Vec::new();
    for stream in [false, true].repeat(4) {
        let body = chat(json!({"max_tokens": 10_000, "ignore_eos": true, "stream": stream})).to_string();
        let mut socket = TcpStream::connect(server.address).unwrap();
        socket.write_all(post_head("/v1/chat/completions", body.len()).as_bytes()).unwrap();
        socket.write_all(body.as_bytes()).unwrap();
        sockets.push(socket);
    }
    wait_for("all to run", || server.metric("requests_running") == 8.0);
    drop(sockets);
    server.wait_until_idle();
    let before = server.metric("generation_tokens_total");
    assert!(before < 8.0 * 10_000.0);
    assert_eq!(post_chat(&server, &chat(json!({}))).status, 200);
}

#[test]
fn without_a_tokenizer_ids_go_in_and_out() {
    let server = Running::start(&["--skip-tokenizer-init"]);
    let reply = complete(
        &server,
        json!({"model": "demo", "prompt": [5, 6, 7], "max_tokens": 4, "temperature": 0,
        "ignore_eos": true, "return_token_ids": true, "logprobs": 2}),
    );
    let choice = &reply["choices"][0];
    assert_eq!(choice["token_ids"].as_array().unwrap().len(), 4, "{reply}");
    for body in [chat(json!({})), json!({"model": "demo", "prompt": "text"})] {
        let path = if body.get("messages").is_some() { "/v1/chat/completions" } else { "/v1/completions" };
        let refused = server.post(path, body.to_string().as_bytes());
        assert_eq!(refused.status, 400, "{}", refused.body);
        assert!(refused.body.contains("tokenizer"), "{}", refused.body);
    }
}

#[test]
fn sigterm_lets_streams_finish() {
    let mut server = Running::start(&["--drain-timeout", "20"]);
    let address = server.address;
    let streams: Vec<_> = (0..4)
        .map(|_| {
            let body = chat(json!({"max_tokens": 400, "ignore_eos": true, "stream": true})).to_string();
            let mut socket = TcpStream::connect(address).unwrap();
            socket.write_all(post_head("/v1/chat/completions", body.len()).as_bytes()).unwrap();
            socket.write_all(body.as_bytes()).unwrap();
            std::thread::spawn(move || {
                let mut text = String::new();
                socket.read_to_string(&mut text).unwrap();
                text
            })
        })
        .collect();
    wait_for("all to run", || server.metric("requests_running") == 4.0);
    server.terminate();
    wait_for("the drain to begin", || server.get("/ready").is_none_or(|reply| reply.status == 503));
    for stream in streams {
        let text = stream.join().unwrap();
        assert!(text.contains("\"finish_reason\":\"length\"") && text.contains("data: [DONE]"), "a stream was cut");
    }
    assert_eq!(server.exit_status().code(), Some(0));
}
