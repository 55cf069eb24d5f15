//! The grammar every stream keeps, and the message its chunks re-assemble to.
//!
//! `chunk* usage? [DONE]`, or `chunk* error [DONE]`. All chunks carry the same id, time, model and object. Per choice: the
//! first chunk names the role (chat), exactly one chunk has a finish reason, and nothing of the choice follows it.

use std::collections::BTreeMap;

use serde_json::Value;

/// What the chunks of one choice add up to.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Choice {
    pub content: String,
    pub reasoning: String,
    /// Name and arguments of each call.
    pub tool_calls: Vec<(String, String)>,
    pub finish_reason: String,
    pub stop_reason: Value,
    pub logprobs: Vec<Value>,
    pub token_ids: Vec<Value>,
}

/// What a stream adds up to.
#[derive(Debug, Default)]
pub struct Assembled {
    pub choices: Vec<Choice>,
    pub usage: Option<Value>,
    pub error: Option<Value>,
    pub num_chunks: usize,
    pub prompt_logprobs: Option<Value>,
}

/// Checks a stream of `n` choices and puts it together.
pub fn assemble(events: &[String], n: usize) -> Assembled {
    let (done, chunks) = events.split_last().expect("an empty stream");
    assert_eq!(done, "[DONE]");
    let chunks: Vec<Value> = chunks.iter().map(|chunk| serde_json::from_str(chunk).expect(chunk)).collect();
    let mut assembled = Assembled { num_chunks: chunks.len(), ..Assembled::default() };
    let mut choices: BTreeMap<u64, Choice> = BTreeMap::new();
    for (at, chunk) in chunks.iter().enumerate() {
        let last = at + 1 == chunks.len();
        if let Some(error) = chunk.get("error") {
            assert!(last, "only [DONE] follows an error: {events:?}");
            assembled.error = Some(error.clone());
            continue;
        }
        for key in ["id", "object", "created", "model"] {
            assert!(!chunk[key].is_null() && chunk[key] == chunks[0][key], "{key} differs: {chunk}");
        }
        let parts = chunk["choices"].as_array().expect("choices");
        if parts.is_empty() {
            assert!(last && chunk["usage"].is_object(), "a chunk without choices has the usage, last: {chunk}");
        }
        if chunk["usage"].is_object() {
            assembled.usage = Some(chunk["usage"].clone());
        }
        if let Some(list) = chunk.get("prompt_logprobs") {
            assert_eq!(at, 0, "what concerns the prompt comes first");
            assembled.prompt_logprobs = Some(list.clone());
        }
        parts.iter().for_each(|part| add(&mut choices, part, chunk["object"].as_str().unwrap()));
    }
    assert!(choices.keys().copied().eq(0..n as u64), "choices {:?} of {n}", choices.keys());
    assembled.choices = choices.into_values().collect();
    for choice in &assembled.choices {
        assert!(!choice.finish_reason.is_empty(), "a choice without an end: {choice:?}");
    }
    assembled
}

fn add(choices: &mut BTreeMap<u64, Choice>, part: &Value, object: &str) {
    let index = part["index"].as_u64().expect("index");
    let first = !choices.contains_key(&index);
    let choice = choices.entry(index).or_default();
    assert!(choice.finish_reason.is_empty(), "choice {index} goes on after its end: {part}");
    if object == "chat.completion.chunk" {
        assert_eq!(part["delta"]["role"].as_str(), first.then_some("assistant"), "the role comes first: {part}");
        add_delta(choice, &part["delta"]);
        choice.logprobs.extend(part["logprobs"]["content"].as_array().into_iter().flatten().cloned());
    } else {
        assert_eq!(object, "text_completion");
        choice.content.push_str(part["text"].as_str().expect("text"));
        choice.logprobs.extend(part["logprobs"]["token_logprobs"].as_array().into_iter().flatten().cloned());
    }
    choice.token_ids.extend(part["token_ids"].as_array().into_iter().flatten().cloned());
    match part.get("finish_reason").expect("finish_reason is always there") {
        Value::Null => {}
        reason => {
            choice.finish_reason = reason.as_str().unwrap().to_owned();
            choice.stop_reason = part.get("stop_reason").cloned().unwrap_or(Value::Null);
        }
    }
}

fn add_delta(choice: &mut Choice, delta: &Value) {
    choice.content.push_str(delta["content"].as_str().unwrap_or_default());
    choice.reasoning.push_str(delta["reasoning_content"].as_str().unwrap_or_default());
    for call in delta["tool_calls"].as_array().into_iter().flatten() {
        let function = &call["function"];
        let arguments = function["arguments"].as_str().expect("arguments");
        if call["index"].as_u64() == Some(choice.tool_calls.len() as u64) {
            assert!(call["id"].is_string() && call["type"] == "function", "{call}");
            choice.tool_calls.push((function["name"].as_str().expect("the whole name").to_owned(), String::new()));
        } else {
            assert_eq!(call["index"].as_u64(), Some(choice.tool_calls.len() as u64 - 1), "{call}");
            assert!(function.get("name").is_none(), "the name comes once: {call}");
        }
        choice.tool_calls.last_mut().unwrap().1.push_str(arguments);
    }
}

/// A choice of an answer that was not streamed, in the same form.
pub fn whole_choice(part: &Value) -> Choice {
    let message = &part["message"];
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let call = |call: &Value| (text(&call["function"]["name"]), text(&call["function"]["arguments"]));
    let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
    let chat = message.is_object();
    Choice {
        content: if chat { text(&message["content"]) } else { text(&part["text"]) },
        reasoning: text(&message["reasoning_content"]),
        tool_calls: list(&message["tool_calls"]).iter().map(call).collect(),
        finish_reason: text(&part["finish_reason"]),
        stop_reason: part["stop_reason"].clone(),
        logprobs: if chat { list(&part["logprobs"]["content"]) } else { list(&part["logprobs"]["token_logprobs"]) },
        token_ids: list(&part["token_ids"]),
    }
}

/// All choices of an answer that was not streamed.
pub fn whole_choices(body: &Value) -> Vec<Choice> {
    let parts = body["choices"].as_array().expect("choices");
    assert!(parts.iter().enumerate().all(|(at, part)| part["index"] == at), "choices out of order: {body}");
    parts.iter().map(whole_choice).collect()
}

#[test]
#[should_panic(expected = "without an end")]
fn a_stream_without_a_finish_reason_is_caught() {
    let chunk = r#"{"id":"a","object":"chat.completion.chunk","created":1,"model":"m","choices":[{"index":0,"delta":{"role":"assistant"},"finish_reason":null}]}"#;
    assemble(&[chunk.to_owned(), "[DONE]".to_owned()], 1);
}

#[test]
#[should_panic(expected = "goes on after its end")]
fn a_second_finish_reason_is_caught() {
    let chunk = r#"{"id":"a","object":"text_completion","created":1,"model":"m","choices":[{"index":0,"text":"","finish_reason":"stop"}]}"#;
    assemble(&[chunk.to_owned(), chunk.to_owned(), "[DONE]".to_owned()], 1);
}
