//! Answers that go on where the last message, the assistant's, stops.

use std::net::SocketAddr;

use serde_json::{Value, json};

use crate::client::{post, with};
use crate::server::{shared_demo, tokenizer};

const CHAT: &str = "/v1/chat/completions";
const QUESTION: &str = "Tom has 3 apples and buys 4 more. How many apples does he have now?";

fn chat(extra: Value) -> Value {
    let mut body = json!({"messages": [{"role": "user", "content": QUESTION}], "temperature": 0, "max_tokens": 60,
        "thinking": {"type": "disabled"}});
    body.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
    body
}

/// The conversation with what the assistant has begun to say.
fn begun(text: &str) -> Value {
    json!([{"role": "user", "content": QUESTION}, {"role": "assistant", "content": text}])
}

/// An answer, and beginnings of it that are the same tokens whether written by the model or read from a request.
fn answer_and_cuts(addr: SocketAddr) -> (String, Vec<usize>) {
    let answer = post(addr, CHAT, &chat(json!({"return_token_ids": true}))).ok();
    let text = answer["choices"][0]["message"]["content"].as_str().unwrap().to_owned();
    let ids = answer["choices"][0]["token_ids"].as_array().unwrap();
    let same = |cut: &usize| {
        let read: Vec<Value> = tokenizer().encode_text(&text[..*cut]).iter().map(|id| json!(id.0)).collect();
        ids.starts_with(&read)
    };
    let cuts: Vec<usize> = (1..text.len()).filter(|cut| text.is_char_boundary(*cut)).filter(same).collect();
    assert!(cuts.len() > 3, "{text}");
    (text, cuts)
}

#[test]
fn an_answer_goes_on_as_if_it_had_not_been_interrupted() {
    let addr = shared_demo();
    let (text, cuts) = answer_and_cuts(addr);
    for cut in [cuts[0], cuts[cuts.len() / 2], cuts[cuts.len() - 1]] {
        let (said, rest) = text.split_at(cut);
        let extra = json!({"messages": begun(said), "continue_final_message": true, "add_generation_prompt": false});
        let whole = post(addr, CHAT, &chat(extra.clone())).ok();
        let content = whole["choices"][0]["message"]["content"].as_str().unwrap();
        assert!(content.starts_with(rest) && whole["choices"][0]["message"]["reasoning_content"].is_null(), "{whole}");
        let streamed = post(addr, CHAT, &with(&chat(extra), "stream", true)).events();
        let delta = |event: &String| {
            let event: Value = serde_json::from_str(event).ok()?;
            event["choices"][0]["delta"]["content"].as_str().map(str::to_owned)
        };
        assert_eq!(streamed.iter().filter_map(delta).collect::<String>(), content);
        let message = json!({"max_tokens": 60, "temperature": 0, "messages": begun(said)});
        let message = post(addr, "/v1/messages", &message).ok();
        assert_eq!(message["content"], json!([{"type": "text", "text": content}]), "{message}");
        // All that was read counts, what the answer has said already too.
        let count = json!({"messages": begun(said)});
        let counted = post(addr, "/v1/messages/count_tokens", &count).ok()["input_tokens"].as_u64().unwrap();
        assert_eq!(whole["usage"]["prompt_tokens"], counted);
        let alone = post(addr, "/v1/messages/count_tokens", &json!({"messages": [begun(said)[0]]})).ok();
        let said_tokens = tokenizer().encode_text(said).len() as u64;
        assert_eq!(counted, alone["input_tokens"].as_u64().unwrap() + said_tokens);
    }
}

#[test]
fn prompts_are_tokenized_with_and_without_the_opener() {
    let addr = shared_demo();
    let ids = |extra: Value| -> Vec<Value> {
        post(addr, "/tokenize", &chat(extra)).ok()["tokens"].as_array().unwrap().clone()
    };
    let (whole, bare) = (ids(json!({})), ids(json!({"add_generation_prompt": false})));
    assert!(whole.starts_with(&bare) && whole.len() > bare.len());
    let both = begun("So");
    let closed = ids(json!({"messages": both, "add_generation_prompt": false}));
    assert!(closed.starts_with(&bare) && closed.len() > bare.len());
    let open = ids(json!({"messages": both, "continue_final_message": true}));
    let said: Vec<Value> = tokenizer().encode_text("So").iter().map(|id| json!(id.0)).collect();
    assert_eq!(open, [whole, said].concat());
}

#[test]
fn what_cannot_go_on_is_refused() {
    let addr = shared_demo();
    let go_on = |extra: Value| chat(with(&extra, "continue_final_message", true));
    let tools = json!([{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}]);
    let call = json!({"role": "assistant", "content": "x", "tool_calls":
        [{"id": "a", "type": "function", "function": {"name": "f", "arguments": "{}"}}]});
    for (body, param) in [
        (go_on(json!({})), "messages[0]"),
        (go_on(json!({"messages": begun("")})), "messages[1]"),
        (go_on(json!({"messages": [call]})), "messages[0]"),
        (go_on(json!({"messages": begun("So"), "thinking": {"type": "enabled"}})), "messages[1]"),
        (go_on(json!({"messages": begun("So"), "add_generation_prompt": true})), "add_generation_prompt"),
        (go_on(json!({"messages": begun("So"), "regex": "a+"})), "continue_final_message"),
        (go_on(json!({"messages": begun("So"), "tools": tools, "tool_choice": "required"})), "continue_final_message"),
        (chat(json!({"add_generation_prompt": false})), "add_generation_prompt"),
    ] {
        assert_eq!(post(addr, CHAT, &body).refused(400)["param"], param, "{body}");
    }
    let message =
        json!({"max_tokens": 9, "messages": begun("So"), "thinking": {"type": "enabled", "budget_tokens": 1024}});
    let refused = post(addr, "/v1/messages", &message);
    assert_eq!(refused.status, 400);
    assert!(refused.json()["error"]["message"].as_str().unwrap().contains("messages[1]"));
    let completion = json!({"prompt": "a", "continue_final_message": true});
    assert_eq!(post(addr, "/v1/completions", &completion).refused(400)["param"], "continue_final_message");
}
