//! The OpenAPI document: what is said there of each route is what the route does.

use std::collections::BTreeSet;
use std::net::SocketAddr;

use perilune_tests::is_valid;
use serde_json::{Value, json};

use crate::client::{Reply, exchange, get, post, raw_request, stream, with};
use crate::named_events::named_events;
use crate::script::Script;
use crate::server::{TestServer, demo_settings, shared_demo};

/// One operation of the document.
struct Operation {
    path: String,
    method: String,
    said: Value,
}

fn document(addr: SocketAddr) -> Value {
    get(addr, "/openapi.json").ok()
}

fn operations(document: &Value) -> Vec<Operation> {
    let mut all = Vec::new();
    for (path, methods) in document["paths"].as_object().unwrap() {
        for (method, said) in methods.as_object().unwrap() {
            all.push(Operation { path: path.replace("{id}", "demo"), method: method.clone(), said: said.clone() });
        }
    }
    all
}

impl Operation {
    fn example(&self) -> &Value {
        &self.said["requestBody"]["content"]["application/json"]["example"]
    }

    fn send(&self, addr: SocketAddr, headers: &str, body: &[u8]) -> Reply {
        exchange(addr, &raw_request(&self.method.to_uppercase(), &self.path, headers, body))
    }

    /// What is said of an answer of this status and type; it must be there.
    fn promised(&self, status: u16, media: &str) -> &Value {
        let content = &self.said["responses"][status.to_string()]["content"][media];
        assert!(content.is_object(), "{} {}: {status} {media} is not documented", self.method, self.path);
        content
    }

    /// Checks an answer against the document.
    fn check(&self, document: &Value, reply: &Reply) {
        let media = reply.header("content-type").unwrap().split(';').next().unwrap();
        let content = self.promised(reply.status, media);
        if media == "application/json" {
            assert_fits(document, &content["schema"], &reply.json(), &self.path);
        }
    }
}

/// `value` is what `schema` says and has nothing that the schema does not know.
fn assert_fits(document: &Value, schema: &Value, value: &Value, place: &str) {
    let mut root = document.clone();
    close(&mut root["components"]["schemas"]);
    root.as_object_mut().unwrap().retain(|key, _| key == "components");
    root["$ref"] = schema["$ref"].clone();
    let whole = if schema.get("$ref").is_some() { &root } else { schema };
    assert!(is_valid(whole, value), "{place}: {value}\n{schema}");
}

/// Objects that name their fields have no others, so that the test sees what the document lacks.
fn close(schema: &mut Value) {
    match schema {
        Value::Object(map) => {
            if map.contains_key("properties") && map.get("type") == Some(&json!("object")) {
                map.entry("additionalProperties").or_insert(json!(false));
            }
            map.values_mut().for_each(close);
        }
        Value::Array(items) => items.iter_mut().for_each(close),
        _ => {}
    }
}

#[test]
fn every_route_answers_its_example_as_documented() {
    let addr = shared_demo();
    let document = document(addr);
    for operation in operations(&document) {
        let body = match operation.example() {
            Value::Null => String::new(),
            example => example.to_string(),
        };
        let reply = operation.send(addr, "", body.as_bytes());
        let expected = match operation.path.as_str() {
            "/v1/embeddings" => 501,
            "/" => 307,
            _ => 200,
        };
        assert_eq!(reply.status, expected, "{}: {}", operation.path, String::from_utf8_lossy(&reply.body));
        operation.check(&document, &reply);
        let schema = &operation.said["requestBody"]["content"]["application/json"]["schema"];
        if !schema.is_null() {
            assert_fits(&document, schema, operation.example(), &operation.path);
        }
    }
}

#[test]
fn more_answers_than_the_examples_have() {
    let server = TestServer::over(
        Script::markup(
            "hm<|close|>think<|sep|><|open|>response<|sep|>Hi<|close|>response<|sep|><|open|>tools<|sep|>\
             <|open|>call tool=\"f\" index=\"1\"<|sep|><|open|>argument key=\"a\" type=\"number\"<|sep|>1\
             <|close|>argument<|sep|><|close|>call<|sep|><|close|>tools<|sep|>",
        ),
        demo_settings(),
        |_| {},
    );
    let document = document(server.addr);
    let turns = json!([{"role": "user", "content": "a"}]);
    let parameters = json!({"type": "object", "properties": {"a": {"type": "number"}}});
    let function = json!({"name": "f", "parameters": parameters});
    let cases = [
        ("/v1/chat/completions", json!({"messages": turns, "tools": [{"type": "function", "function": function}]})),
        (
            "/v1/messages",
            json!({"messages": turns, "max_tokens": 99, "tools": [{"name": "f", "input_schema": parameters}],
            "thinking": {"type": "enabled"}}),
        ),
        (
            "/v1/responses",
            json!({"input": "a", "tools": [{"type": "function", "name": "f", "parameters": parameters}],
            "include": ["message.output_text.logprobs"]}),
        ),
        ("/v1/completions", json!({"prompt": [[1, 2], [3]], "n": 2, "max_tokens": 2})),
        ("/generate", json!({"text": ["a", "b"], "sampling_params": {"n": 2, "max_new_tokens": 99}})),
        ("/generate", json!({"input_ids": [1, 2], "sampling_params": {"max_new_tokens": 2}})),
    ];
    let operations = operations(&document);
    for (path, body) in cases {
        let operation = operations.iter().find(|operation| operation.path == path).unwrap();
        let reply = operation.send(server.addr, "", body.to_string().as_bytes());
        assert_eq!(reply.status, 200, "{}", String::from_utf8_lossy(&reply.body));
        operation.check(&document, &reply);
        let schema = &operation.said["requestBody"]["content"]["application/json"]["schema"];
        assert_fits(&document, schema, &body, path);
        let event = &operation.promised(200, "text/event-stream")["schema"];
        let events = &event["properties"]["data"]["anyOf"][0]["contentSchema"];
        assert!(events.is_object(), "{path}: {event}");
        if event["required"] == json!(["event", "data"]) {
            let named = named_events(post(server.addr, path, &with(&body, "stream", true)));
            assert!(named.len() > 10);
            for (_, data) in named {
                assert_fits(&document, events, &data, path);
            }
        } else {
            let said = stream(server.addr, path, &body);
            let (last, chunks) = said.split_last().unwrap();
            assert_eq!(last, "[DONE]");
            for chunk in chunks {
                assert_fits(&document, events, &serde_json::from_str(chunk).unwrap(), path);
            }
        }
    }
    let calls = post(server.addr, "/v1/chat/completions", &json!({"messages": turns})).ok();
    assert_eq!(calls["choices"][0]["message"]["tool_calls"][0]["function"]["name"], "f", "{calls}");
}

#[test]
fn refusals_are_documented_too() {
    let addr = shared_demo();
    let document = document(addr);
    let unknown = |operation: &Operation| match operation.path.as_str() {
        "/v1/models/demo" => get(addr, "/v1/models/nobody"),
        _ => operation.send(addr, "", with(operation.example(), "model", "nobody").to_string().as_bytes()),
    };
    let mut seen = BTreeSet::new();
    for operation in operations(&document) {
        let mut check = |reply: Reply, expected: u16| {
            assert_eq!(reply.status, expected, "{}: {}", operation.path, String::from_utf8_lossy(&reply.body));
            operation.check(&document, &reply);
            seen.insert(expected);
        };
        if !operation.example().is_null() {
            check(operation.send(addr, "", b"{"), 400);
            check(operation.send(addr, "Content-Type: text/plain\r\n", b"{}"), 415);
            let claim = format!(
                "POST {} HTTP/1.1\r\nHost: test\r\nConnection: close\r\nContent-Length: 999999999\r\n\r\n",
                operation.path
            );
            check(exchange(addr, claim.as_bytes()), 413);
        }
        if operation.said["responses"].get("404").is_some() {
            check(unknown(&operation), 404);
        }
    }
    assert_eq!(seen, BTreeSet::from([400, 404, 413, 415]));
}

#[test]
fn other_methods_and_paths_are_refused() {
    let addr = shared_demo();
    let document = document(addr);
    for Operation { path, method, .. } in operations(&document) {
        for other in ["DELETE", "PUT", if method == "get" { "POST" } else { "GET" }] {
            let reply = exchange(addr, &raw_request(other, &path, "", b""));
            let allowed = reply.header("allow").unwrap_or_default().to_owned();
            assert!(allowed.contains(&method.to_uppercase()), "{other} {path}: {allowed:?}");
            reply.refused(405);
        }
    }
    get(addr, "/nowhere").refused(404);
}

#[test]
fn the_page_shows_every_operation_and_schema_and_fetches_nothing() {
    let addr = shared_demo();
    let document = document(addr);
    let page = String::from_utf8(get(addr, "/docs").body).unwrap();
    for (path, _) in document["paths"].as_object().unwrap() {
        assert!(page.contains(&format!("<code>{path}</code>")), "{path}");
    }
    for (name, _) in document["components"]["schemas"].as_object().unwrap() {
        assert!(page.contains(&format!("id='{name}'")), "{name}");
    }
    for foreign in ["<script", "http://", "https://", "src=", "@import", "url("] {
        assert!(!page.contains(foreign), "{foreign}");
    }
}

#[test]
fn references_lead_somewhere() {
    let document = document(shared_demo());
    let mut open = vec![&document];
    let mut count = 0;
    while let Some(value) = open.pop() {
        match value {
            Value::Object(map) => {
                if let Some(Value::String(target)) = map.get("$ref") {
                    assert!(document.pointer(target.trim_start_matches('#')).is_some(), "{target}");
                    count += 1;
                }
                open.extend(map.values());
            }
            Value::Array(items) => open.extend(items),
            _ => {}
        }
    }
    assert!(count > 50, "{count}");
}
