//! `/v1/messages`: blocks, events, counting, what is refused and how.

use serde_json::{Value, json};

use crate::client::{post, with};
use crate::named_events::named_events;
use crate::script::Script;
use crate::server::{TestServer, demo_settings, shared_demo, tokenizer};

const PATH: &str = "/v1/messages";

fn serve(markup: &str) -> TestServer {
    TestServer::over(Script::markup(markup), demo_settings(), |_| {})
}

fn body(extra: Value) -> Value {
    let mut body = json!({"model": "demo", "max_tokens": 200, "messages": [{"role": "user", "content": "x"}],
        "thinking": {"type": "enabled", "budget_tokens": 1024}});
    body.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
    body
}

/// Puts a stream together as the SDKs do, checking the order of its events.
fn assembled(events: &[(String, Value)]) -> Value {
    assert!(events.iter().all(|(name, event)| event["type"] == json!(name)));
    let (first, rest) = events.split_first().unwrap();
    assert_eq!(first.0, "message_start");
    let mut message = first.1["message"].clone();
    let mut input = String::new();
    let mut open = None;
    for (name, event) in rest {
        let blocks = message["content"].as_array_mut().unwrap();
        match name.as_str() {
            "content_block_start" => {
                assert!(open.is_none() && event["index"] == json!(blocks.len()), "{event}");
                blocks.push(event["content_block"].clone());
                open = Some(blocks.len() - 1);
                input.clear();
            }
            "content_block_delta" => {
                let block = &mut blocks[open.expect("a block is open")];
                let delta = &event["delta"];
                let (key, more) = match delta["type"].as_str().unwrap() {
                    "thinking_delta" => ("thinking", &delta["thinking"]),
                    "signature_delta" => ("signature", &delta["signature"]),
                    "text_delta" => ("text", &delta["text"]),
                    _ => {
                        input.push_str(delta["partial_json"].as_str().unwrap());
                        continue;
                    }
                };
                block[key] = json!(block[key].as_str().unwrap().to_owned() + more.as_str().unwrap());
            }
            "content_block_stop" => {
                let block = &mut blocks[open.take().expect("a block is open")];
                if block["type"] == "tool_use" {
                    block["input"] = as_far_as_complete(&input);
                }
            }
            "message_delta" => {
                message["stop_reason"] = event["delta"]["stop_reason"].clone();
                message["stop_sequence"] = event["delta"]["stop_sequence"].clone();
                message["usage"] = event["usage"].clone();
            }
            other => assert_eq!(other, "message_stop"),
        }
    }
    assert!(open.is_none());
    let tail: Vec<&str> = events[events.len() - 2..].iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(tail, ["message_delta", "message_stop"]);
    message
}

/// What Anthropic's packages make of an input, cut off or not: the members that are complete.
fn as_far_as_complete(input: &str) -> Value {
    let ends = (0..=input.len()).rev().filter(|end| input.is_char_boundary(*end));
    let objects =
        ends.flat_map(|end| ["", "}"].map(|close| serde_json::from_str(&format!("{}{close}", &input[..end]))));
    objects.flatten().find(Value::is_object).unwrap_or_else(|| json!({}))
}

/// A message without what differs between two requests: the later one goes on from what the earlier one stored.
fn timeless(message: &Value) -> Value {
    let mut message = message.clone();
    let usage = &mut message["usage"];
    let prompt = usage["input_tokens"].as_u64().unwrap() + usage["cache_read_input_tokens"].as_u64().unwrap();
    (usage["input_tokens"], usage["cache_read_input_tokens"]) = (json!(prompt), json!(0));
    let id = message["id"].as_str().unwrap().trim_start_matches("msg_").to_owned();
    serde_json::from_str(&message.to_string().replace(&id, "ID")).unwrap()
}

/// The message, the same whole and streamed.
pub fn message(server: &TestServer, body: &Value) -> Value {
    let whole = post(server.addr, PATH, body).ok();
    let streamed = assembled(&named_events(post(server.addr, PATH, &with(body, "stream", true))));
    assert_eq!(timeless(&streamed), timeless(&whole), "{body}");
    whole
}

const CALLS: &str = "hm<|close|>think<|sep|><|open|>response<|sep|>Checking.<|close|>response<|sep|><|open|>tools<|sep|>\
    <|open|>call tool=\"f\" index=\"1\"<|sep|><|open|>argument key=\"a\" type=\"number\"<|sep|>7<|close|>argument<|sep|><|close|>call<|sep|>\
    <|open|>call tool=\"g\" index=\"2\"<|sep|><|close|>call<|sep|><|close|>tools<|sep|><|close|>message<|sep|><|end_of_msg|>";

/// The input of the one call, as it is written in the answer, whole and streamed.
fn written(markup: &str) -> (String, String) {
    let server = serve(markup);
    let whole = String::from_utf8(post(server.addr, PATH, &body(json!({}))).body).unwrap();
    let (_, input) = whole.split_once("\"input\":").expect("a call");
    let deltas = named_events(post(server.addr, PATH, &with(&body(json!({})), "stream", true)));
    let pieces = deltas.iter().filter_map(|(_, event)| event["delta"]["partial_json"].as_str());
    (input.split_once("}]").expect("the last block").0.to_owned(), pieces.collect())
}

#[test]
fn numbers_beyond_any_machine_type_stay_as_the_model_wrote_them() {
    let number = "29e669";
    let typed = CALLS.replace(">7<", &format!(">{number}<"));
    let (typed, _) = typed.split_once("<|open|>call tool=\"g\"").unwrap();
    let (whole, streamed) = written(typed);
    assert_eq!(whole, format!("{{\"a\": {number}}}"));
    assert_eq!(streamed, whole);
    let (head, _) = typed.split_once("<|open|>argument").unwrap();
    for (raw, expected) in [
        (format!("{{\"a\": {number}}}"), format!("{{\"a\": {number}}}")),
        (number.to_owned(), format!("{{\"value\": {number}}}")),
        ("{\"a\": ".to_owned(), "{\"text\":\"{\\\"a\\\": \"}".to_owned()),
    ] {
        let (whole, streamed) = written(&format!("{head}<|open|>json type=\"object\"<|sep|>{raw}<|close|>json<|sep|>"));
        assert_eq!((whole.as_str(), streamed.as_str()), (expected.as_str(), expected.as_str()), "{raw}");
    }
}

#[test]
fn channels_become_blocks_in_order() {
    let server = serve(CALLS);
    let found = message(&server, &body(json!({"system": "Be brief."})));
    let content = found["content"].as_array().unwrap();
    let kinds: Vec<&str> = content.iter().map(|block| block["type"].as_str().unwrap()).collect();
    assert_eq!(kinds, ["thinking", "text", "tool_use", "tool_use"]);
    assert_eq!(
        (&content[0]["thinking"], &content[1]["text"], &content[2]["input"]),
        (&json!("hm"), &json!("Checking."), &json!({"a": 7}))
    );
    assert_ne!(content[2]["id"], content[3]["id"]);
    assert_eq!((&found["stop_reason"], &found["role"]), (&json!("tool_use"), &json!("assistant")));
    assert_eq!(found["usage"]["output_tokens"], tokenizer().encode_markup(CALLS).len());
}

#[test]
fn every_end_has_its_reason_and_cuts_leak_nothing() {
    let server = serve(CALLS);
    for limit in 1..tokenizer().encode_markup(CALLS).len() {
        let found = message(&server, &body(json!({"max_tokens": limit})));
        assert_eq!(found["stop_reason"], "max_tokens");
        assert!(!found["content"].to_string().contains("<|"), "{found}");
    }
    let stopped = message(&server, &body(json!({"stop_sequences": ["eck", "never"]})));
    assert_eq!((&stopped["stop_reason"], &stopped["stop_sequence"]), (&json!("stop_sequence"), &json!("eck")));
    assert_eq!(stopped["content"][1]["text"], "Ch");
    let plain = serve("yes<|close|>response<|sep|><|close|>message<|sep|><|end_of_msg|>");
    let found = message(&plain, &body(json!({"thinking": {"type": "disabled"}})));
    assert_eq!(
        (&found["stop_reason"], &found["content"]),
        (&json!("end_turn"), &json!([{"type": "text", "text": "yes"}]))
    );
}

/// Raw arguments are an object of their own at the end, those of elements come as they are written; cut anywhere both
/// are what the whole message has.
#[test]
fn inputs_of_every_form_are_the_same_whole_and_streamed() {
    let calls = "yes<|close|>response<|sep|><|open|>tools<|sep|><|open|>call tool=\"f\"<|sep|>\
        <|open|>argument key=\"text\" type=\"string\"<|sep|>one, \"two\", {three<|close|>argument<|sep|>\
        <|open|>argument key=\"list\" type=\"array\"<|sep|>[1, {\"a\": \"b, c\"}]<|close|>argument<|sep|><|close|>call<|sep|>\
        <|open|>call tool=\"g\"<|sep|><|open|>json type=\"object\"<|sep|>{\"a\": broken<|close|>json<|sep|><|close|>call<|sep|>\
        <|open|>call tool=\"h\"<|sep|><|open|>json<|sep|><|close|>json<|sep|><|close|>call<|sep|><|close|>tools<|sep|>\
        <|close|>message<|sep|><|end_of_msg|>";
    let server = serve(calls);
    for limit in 1..=tokenizer().encode_markup(calls).len() {
        message(&server, &body(json!({"max_tokens": limit, "thinking": {"type": "disabled"}})));
    }
    let found = message(&server, &body(json!({"thinking": {"type": "disabled"}})));
    let inputs: Vec<&Value> = found["content"].as_array().unwrap()[1..].iter().map(|block| &block["input"]).collect();
    let text = json!({"text": "one, \"two\", {three", "list": [1, {"a": "b, c"}]});
    assert_eq!(inputs, [&text, &json!({"text": "{\"a\": broken"}), &json!({})]);
}

#[test]
fn counting_agrees_with_generating() {
    let addr = shared_demo();
    let tools = json!([{"name": "f", "description": "d", "input_schema": {"type": "object", "properties": {}}}]);
    for extra in [json!({}), json!({"system": "Be brief.", "tools": tools}), json!({"thinking": {"type": "disabled"}})]
    {
        let asked = body(extra);
        let counted = post(addr, "/v1/messages/count_tokens", &asked).ok();
        let usage = post(addr, PATH, &with(&asked, "max_tokens", 1)).ok()["usage"].clone();
        let prompt = usage["input_tokens"].as_u64().unwrap() + usage["cache_read_input_tokens"].as_u64().unwrap();
        assert_eq!(counted["input_tokens"].as_u64(), Some(prompt));
    }
}

#[test]
fn a_use_and_its_result_go_round() {
    let schema = json!({"type": "object", "properties": {"city": {"type": "string", "maxLength": 10}}, "required": ["city"], "additionalProperties": false});
    let tools = json!([{"name": "get_weather", "input_schema": schema}]);
    let addr = shared_demo();
    let asked = body(
        json!({"tools": tools, "tool_choice": {"type": "tool", "name": "get_weather"}, "thinking": {"type": "disabled"}, "max_tokens": 400}),
    );
    let first = post(addr, PATH, &asked).ok();
    let used = &first["content"][0];
    assert_eq!((&used["type"], &used["name"]), (&json!("tool_use"), &json!("get_weather")));
    assert!(used["input"]["city"].as_str().unwrap().chars().count() <= 10);
    let turns = json!([{"role": "user", "content": "x"}, {"role": "assistant", "content": first["content"]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": used["id"], "content": "18C"}]}]);
    let again = body(json!({"tools": tools, "messages": turns, "max_tokens": 5}));
    assert_eq!(post(addr, PATH, &again).ok()["type"], "message");
}

#[test]
fn refusals_and_faults_have_the_shape_of_this_api() {
    let addr = shared_demo();
    for path in [PATH, "/v1/messages/count_tokens"] {
        for stream in [false, true] {
            let reply = post(addr, path, &with(&body(json!({"messages": []})), "stream", stream));
            assert_eq!(reply.status, 400);
            let error = reply.json();
            assert_eq!((&error["type"], &error["error"]["type"]), (&json!("error"), &json!("invalid_request_error")));
            assert!(error["error"]["message"].as_str().unwrap().contains("messages"));
        }
    }
    let unknown = post(addr, PATH, &body(json!({"model": "other"})));
    assert_eq!((unknown.status, unknown.json()["error"]["type"].clone()), (404, json!("not_found_error")));
    let mut script = Script::markup("one two three");
    script.tokens[2] = None;
    let server = TestServer::over(script, demo_settings(), |_| {});
    let events = named_events(post(server.addr, PATH, &with(&body(json!({})), "stream", true)));
    assert_eq!(
        (events.last().unwrap().0.as_str(), &events.last().unwrap().1["error"]["type"]),
        ("error", &json!("api_error"))
    );
}
