//! `/v1/responses`: items, the exact order of events, what is refused.

use serde_json::{Value, json};

use crate::client::{post, with};
use crate::named_events::named_events;
use crate::script::Script;
use crate::server::{TestServer, demo_settings, shared_demo, tokenizer};

const PATH: &str = "/v1/responses";

fn serve(markup: &str) -> TestServer {
    TestServer::over(Script::markup(markup), demo_settings(), |_| {})
}

fn body(extra: Value) -> Value {
    let mut body = json!({"model": "demo", "input": "x", "max_output_tokens": 200});
    body.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
    body
}

/// A response without what differs between two requests.
fn timeless(mut response: Value) -> Value {
    let id = response["id"].as_str().unwrap().trim_start_matches("resp_").to_owned();
    response["created_at"] = json!(0);
    // The later one goes on from what the earlier one stored.
    response["usage"]["input_tokens_details"]["cached_tokens"] = json!(0);
    serde_json::from_str(&response.to_string().replace(&id, "ID")).unwrap()
}

/// Checks the order and numbering of a stream; the response it ends with.
fn checked(events: &[(String, Value)]) -> Value {
    for (i, (name, event)) in events.iter().enumerate() {
        assert_eq!(event["type"], json!(name));
        assert_eq!(event["sequence_number"], json!(i));
    }
    let names: Vec<&str> = events.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(names[..2], ["response.created", "response.in_progress"]);
    let (mut open, mut done): (Option<(u64, String, Vec<String>)>, u64) = (None, 0);
    for (name, event) in &events[2..events.len() - 1] {
        match name.as_str() {
            "response.output_item.added" => {
                assert!(open.is_none() && event["output_index"] == json!(done), "{event}");
                let kind = event["item"]["type"].as_str().unwrap().to_owned();
                assert_eq!(event["item"]["status"], "in_progress");
                open = Some((done, kind, vec![event["item"]["id"].as_str().unwrap().to_owned()]));
            }
            "response.output_item.done" => {
                let (index, kind, log) = open.take().expect("a done for each added");
                assert_eq!(
                    (event["output_index"].as_u64(), event["item"]["type"].as_str()),
                    (Some(index), Some(kind.as_str()))
                );
                assert_eq!(event["item"]["id"], json!(log[0]));
                let order: Vec<&str> = log[1..].iter().map(String::as_str).collect();
                let expected: &[&str] = match kind.as_str() {
                    "function_call" => {
                        &["response.function_call_arguments.delta", "response.function_call_arguments.done"]
                    }
                    "reasoning" => &[
                        "response.content_part.added",
                        "response.reasoning_text.delta",
                        "response.reasoning_text.done",
                        "response.content_part.done",
                    ],
                    _ => &[
                        "response.content_part.added",
                        "response.output_text.delta",
                        "response.output_text.done",
                        "response.content_part.done",
                    ],
                };
                // A call may be cut off before its first argument.
                let cut = kind == "function_call" && event["item"]["status"] == "incomplete" && order.len() == 1;
                assert_eq!(order, if cut { &expected[1..] } else { expected });
                done += 1;
            }
            other => {
                let (index, _, log) = open.as_mut().expect("an item is open");
                assert_eq!(
                    (event["output_index"].as_u64(), event["item_id"].as_str()),
                    (Some(*index), Some(log[0].as_str())),
                    "{event}"
                );
                if !other.starts_with("response.function_call") {
                    assert_eq!(event["content_index"], 0);
                }
                if log.last().map(String::as_str) != Some(other) {
                    log.push(other.to_owned());
                }
            }
        }
    }
    assert!(open.is_none(), "each added has its done");
    let (_, last) = events.last().unwrap();
    assert_eq!(last["response"]["output"].as_array().unwrap().len() as u64, done);
    last["response"].clone()
}

/// The response, the same whole and streamed.
pub fn respond(server: &TestServer, body: &Value) -> Value {
    let whole = post(server.addr, PATH, body).ok();
    let streamed = checked(&named_events(post(server.addr, PATH, &with(body, "stream", true))));
    assert_eq!(timeless(streamed), timeless(whole.clone()), "{body}");
    whole
}

const CALLS: &str = "hm<|close|>think<|sep|><|open|>response<|sep|>Checking.<|close|>response<|sep|><|open|>tools<|sep|>\
    <|open|>call tool=\"f\" index=\"1\"<|sep|><|open|>argument key=\"a\" type=\"number\"<|sep|>7<|close|>argument<|sep|><|close|>call<|sep|>\
    <|open|>call tool=\"g\" index=\"2\"<|sep|><|close|>call<|sep|><|close|>tools<|sep|><|close|>message<|sep|><|end_of_msg|>";

#[test]
fn channels_become_items_in_order() {
    let server = serve(CALLS);
    let response = respond(&server, &body(json!({"instructions": "Be brief.", "metadata": {"a": "b"}})));
    let kinds: Vec<&str> =
        response["output"].as_array().unwrap().iter().map(|item| item["type"].as_str().unwrap()).collect();
    assert_eq!(kinds, ["reasoning", "message", "function_call", "function_call"]);
    assert_eq!(response["output"][0]["content"][0]["text"], "hm");
    assert_eq!(response["output"][1]["content"][0]["text"], "Checking.");
    assert_eq!(response["output"][2]["arguments"], "{\"a\": 7}");
    assert_eq!(
        (&response["status"], &response["instructions"], &response["metadata"]["a"]),
        (&json!("completed"), &json!("Be brief."), &json!("b"))
    );
    let usage = &response["usage"];
    assert_eq!(usage["output_tokens_details"]["reasoning_tokens"], tokenizer().encode_text("hm").len());
    assert_eq!(
        usage["total_tokens"].as_u64(),
        Some(usage["input_tokens"].as_u64().unwrap() + usage["output_tokens"].as_u64().unwrap())
    );
}

#[test]
fn a_cut_anywhere_is_incomplete_and_leaks_nothing() {
    let server = serve(CALLS);
    for limit in 1..tokenizer().encode_markup(CALLS).len() {
        let response = respond(&server, &body(json!({"max_output_tokens": limit})));
        assert_eq!(response["status"], "incomplete");
        assert_eq!(response["incomplete_details"]["reason"], "max_output_tokens");
        let last = response["output"].as_array().unwrap().last();
        assert!(last.is_none_or(|item| item["status"] == "incomplete"), "{response}");
        let text = response["output"].to_string();
        assert!(!text.contains("<|") && !text.contains("|>"), "{text}");
    }
}

#[test]
fn an_answer_in_the_think_channel_is_a_message() {
    let server = serve("answer<|close|>response<|sep|><|close|>message<|sep|><|end_of_msg|>");
    let whole = post(server.addr, PATH, &body(json!({}))).ok();
    assert_eq!(whole["output"].as_array().unwrap().len(), 1);
    assert_eq!(whole["output"][0]["content"][0]["text"], "answer");
    // A stream cannot take back what it showed; it says the words again as what they are.
    let streamed = checked(&named_events(post(server.addr, PATH, &with(&body(json!({})), "stream", true))));
    assert_eq!(streamed["output"][1]["content"][0]["text"], "answer");
}

/// The message's log-probabilities, the same whole, in the last event and over all deltas; its text as their bytes have it.
fn scored(server: &TestServer, limit: usize) -> (Vec<Value>, String, String) {
    let include = json!({"max_output_tokens": limit, "include": ["message.output_text.logprobs"], "top_logprobs": 1});
    let part = |response: &Value| {
        let items = response["output"].as_array().unwrap().iter();
        let part = items.filter(|item| item["type"] == "message").map(|item| item["content"][0].clone()).next_back();
        part.unwrap_or(json!({"text": "", "logprobs": []}))
    };
    let whole = part(&post(server.addr, PATH, &body(include.clone())).ok());
    let events = named_events(post(server.addr, PATH, &with(&body(include), "stream", true)));
    assert_eq!(part(&checked(&events)), whole, "{limit}");
    let deltas = events.iter().filter(|(name, _)| name == "response.output_text.delta");
    let entries: Vec<Value> = deltas.flat_map(|(_, event)| event["logprobs"].as_array().unwrap().clone()).collect();
    assert_eq!(Some(&entries), whole["logprobs"].as_array(), "{limit}");
    let bytes = entries.iter().flat_map(|entry| entry["bytes"].as_array().unwrap());
    let bytes: Vec<u8> = bytes.map(|byte| byte.as_u64().unwrap() as u8).collect();
    (entries, String::from_utf8_lossy(&bytes).into_owned(), whole["text"].as_str().unwrap().to_owned())
}

#[test]
fn log_probabilities_are_those_of_the_messages_tokens_streamed_or_not() {
    let said = "Is 😀 naïve 北京? 😀";
    let calls = CALLS.replace("Checking.", said);
    let plain = format!("{said}<|close|>response<|sep|><|close|>message<|sep|><|end_of_msg|>");
    // The second never ends its thinking: what was thought is the message.
    for markup in [calls, plain] {
        let server = serve(&markup);
        let num_tokens = tokenizer().encode_markup(&markup).len();
        let (entries, spelled, text) = scored(&server, num_tokens + 1);
        assert_eq!(entries.len(), tokenizer().encode_text(said).len(), "{entries:?}");
        assert_eq!((spelled.as_str(), text.as_str()), (said, said));
        for limit in 1..num_tokens {
            let (_, spelled, text) = scored(&server, limit);
            assert_eq!(spelled, text, "cut at {limit}");
        }
    }
}

#[test]
fn a_fault_ends_the_stream_with_its_event() {
    let mut script = Script::markup("one two three");
    script.tokens[2] = None;
    let server = TestServer::over(script, demo_settings(), |_| {});
    let events =
        named_events(post(server.addr, PATH, &with(&body(json!({"reasoning": {"effort": "none"}})), "stream", true)));
    let (name, event) = events.last().unwrap();
    assert_eq!(name, "response.failed");
    assert_eq!(
        (&event["response"]["status"], &event["response"]["error"]["code"]),
        (&json!("failed"), &json!("server_error"))
    );
    assert_eq!(post(server.addr, PATH, &body(json!({}))).refused(500)["type"], "server_error");
}

#[test]
fn turns_and_formats_go_round() {
    let addr = shared_demo();
    let schema = json!({"type": "object", "properties": {"n": {"type": "integer", "minimum": 0, "maximum": 99}}, "required": ["n"], "additionalProperties": false});
    let format = json!({"format": {"type": "json_schema", "name": "x", "schema": schema, "strict": true}});
    let first = post(
        addr,
        PATH,
        &body(json!({"text": format, "max_output_tokens": 1000, "input": "There are 3 boxes with 12 pens in each box. How many pens?"})),
    )
    .ok();
    let text = first["output"].as_array().unwrap().last().unwrap()["content"][0]["text"].as_str().unwrap().to_owned();
    assert!(serde_json::from_str::<Value>(&text).unwrap()["n"].is_i64(), "{text}");
    let mut input = vec![json!({"role": "user", "content": "There are 3 boxes."})];
    input.extend(first["output"].as_array().unwrap().clone());
    input.push(json!({"role": "user", "content": "And 4?"}));
    let second = post(addr, PATH, &body(json!({"input": input}))).ok();
    assert_eq!(second["object"], "response");
}

#[test]
fn refusals_name_their_field_streamed_or_not() {
    let addr = shared_demo();
    for (extra, param) in [
        (json!({"previous_response_id": "resp_1"}), "previous_response_id"),
        (json!({"input": 5}), "input"),
        (json!({"top_logprobs": 21}), "top_logprobs"),
        (json!({"temperature": 9}), "temperature"),
        (
            json!({"text": {"format": {"type": "json_schema", "name": "x", "schema": {"type": "objekt"}}}}),
            "text.format.schema.type",
        ),
        (
            json!({"tools": [{"type": "function", "name": "f", "strict": true, "parameters": {"not": {}}}]}),
            "tools[0].parameters.not",
        ),
    ] {
        for stream in [false, true] {
            let error = post(addr, PATH, &with(&body(extra.clone()), "stream", stream)).refused(400);
            assert_eq!(error["param"], param, "{extra}");
        }
    }
    assert_eq!(post(addr, PATH, &body(json!({"model": "other"}))).refused(404)["code"], "model_not_found");
}
