//! What reaches the client for an exact sequence of tokens: stop strings, characters in pieces, channels, tool calls.

use perilune_server::{ReasoningNames, Settings};
use perilune_tensor::TokenId;
use serde_json::{Value, json};

use crate::client::{post, stream, with};
use crate::grammar::{Assembled, Choice, assemble, whole_choices};
use crate::script::Script;
use crate::server::{TestServer, demo_settings, tokenizer};

const CHAT: &str = "/v1/chat/completions";
const TEXT: &str = "/v1/completions";

fn serve(script: Script) -> TestServer {
    TestServer::over(script, demo_settings(), |_| {})
}

/// The one choice of a request, the same whole and streamed.
fn choice(server: &TestServer, path: &str, body: &Value) -> Choice {
    let whole = whole_choices(&post(server.addr, path, body).ok()).remove(0);
    let streamed = assemble(&stream(server.addr, path, body), 1).choices.remove(0);
    assert_eq!(streamed, whole, "{body}");
    whole
}

fn text(extra: Value) -> Value {
    let mut body = json!({"prompt": "x", "max_tokens": 100});
    body.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
    body
}

fn chat(extra: Value) -> Value {
    let mut body = json!({"messages": [{"role": "user", "content": "x"}], "max_tokens": 200});
    body.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
    body
}

#[test]
fn a_stop_string_ends_the_text_wherever_tokens_break() {
    let server = serve(Script::markup("one two three four"));
    for (stop, kept) in [(" three", "one two"), ("o th", "one tw"), ("e", "on"), ("ne two th", "o"), ("one", "")] {
        let choice = choice(&server, TEXT, &text(json!({"stop": [stop, "never"]})));
        assert_eq!((choice.content.as_str(), choice.finish_reason.as_str()), (kept, "stop"), "{stop:?}");
        assert_eq!(choice.stop_reason, json!(stop));
    }
    let counted = post(server.addr, TEXT, &text(json!({"stop": " two"}))).ok();
    let until_match = tokenizer().encode_text("one two").len();
    assert_eq!(counted["usage"]["completion_tokens"], until_match);
}

#[test]
fn text_held_back_for_a_stop_that_does_not_come_is_delivered() {
    let server = serve(Script::markup("the answer is 42. END"));
    for stop in ["END OF", "42. END.", "the answer is 42. END of it"] {
        let choice = choice(&server, TEXT, &text(json!({"stop": stop})));
        assert_eq!((choice.content.as_str(), choice.finish_reason.as_str()), ("the answer is 42. END", "stop"));
        assert_eq!(choice.stop_reason, Value::Null);
    }
    let tokens = tokenizer().encode_text("the answer is 42. END").len();
    let cut = choice(&server, TEXT, &text(json!({"stop": "ENDING", "max_tokens": tokens})));
    assert_eq!((cut.content.as_str(), cut.finish_reason.as_str()), ("the answer is 42. END", "length"));
}

#[test]
fn stops_do_not_act_on_the_first_tokens() {
    let server = serve(Script::markup("no no no no no no no no"));
    let num_tokens = tokenizer().encode_text("no no no").len();
    let choice = choice(&server, TEXT, &text(json!({"stop": " no", "min_tokens": num_tokens})));
    assert_eq!((choice.content.as_str(), choice.finish_reason.as_str()), ("no no no", "stop"));
}

#[test]
fn stop_tokens_end_the_text_and_are_named() {
    let server = serve(Script::ids([50, 51, 52, 53]));
    let found = choice(&server, TEXT, &text(json!({"stop_token_ids": [52], "return_token_ids": true})));
    assert_eq!((found.content.as_str(), found.finish_reason.as_str()), (decoded(&[50, 51]).as_str(), "stop"));
    assert_eq!((found.stop_reason, found.token_ids), (json!(52), vec![json!(50), json!(51), json!(52)]));
    let end = choice(&server, TEXT, &text(json!({})));
    assert_eq!((end.content, end.stop_reason), (decoded(&[50, 51, 52, 53]), Value::Null));
}

fn decoded(ids: &[u32]) -> String {
    let ids: Vec<TokenId> = ids.iter().copied().map(TokenId).collect();
    String::from_utf8_lossy(&tokenizer().decode_bytes(&ids).unwrap()).into_owned()
}

#[test]
fn characters_are_never_split() {
    let text_of_pieces = "a 😀 naïve 北京 😀😀 z";
    assert!(tokenizer().encode_text("😀").len() > 1, "the demo's vocabulary must split this character");
    let server = serve(Script::markup(text_of_pieces));
    let events = stream(server.addr, TEXT, &text(json!({})));
    assert!(events.iter().all(|event| !event.contains('\u{fffd}')), "{events:?}");
    assert_eq!(assemble(&events, 1).choices[0].content, text_of_pieces);
    assert_eq!(choice(&server, TEXT, &text(json!({}))).content, text_of_pieces);
    // Cut inside a character: what is left of it shows as one replacement character.
    let cut = choice(&server, TEXT, &text(json!({"max_tokens": tokenizer().encode_text("a 😀").len() - 1})));
    assert!(cut.content.ends_with('\u{fffd}') && !cut.content.contains('😀'), "{cut:?}");
}

#[test]
fn text_flows_through_thousands_of_lone_bytes() {
    let lone =
        (0..tokenizer().num_base_tokens() as u32).find(|id| tokenizer().token_bytes(TokenId(*id)).unwrap() == [0x80]);
    let server = serve(Script::ids(std::iter::repeat_n(lone.unwrap(), 5000)));
    let body = text(json!({"max_tokens": 5000}));
    let assembled = assemble(&stream(server.addr, TEXT, &body), 1);
    assert_eq!(assembled.choices[0].content, "\u{fffd}".repeat(5000));
    assert!(assembled.num_chunks >= 5000, "text must flow as it comes");
    assert_eq!(whole_choices(&post(server.addr, TEXT, &body).ok())[0].content, "\u{fffd}".repeat(5000));
}

const ANSWER: &str = "thinking: a < b<|close|>think<|sep|><|open|>response<|sep|>so <|c and 5 < 7<|close|>response<|sep|>\
    <|close|>message<|sep|><|end_of_msg|>";

#[test]
fn channels_come_apart_and_no_control_text_leaks_wherever_the_answer_is_cut() {
    let server = serve(Script::markup(ANSWER));
    let full = choice(&server, CHAT, &chat(json!({})));
    assert_eq!((full.reasoning.as_str(), full.content.as_str()), ("thinking: a < b", "so <|c and 5 < 7"));
    assert_eq!(full.finish_reason, "stop");
    for max_tokens in 1..tokenizer().encode_markup(ANSWER).len() {
        let cut = choice(&server, CHAT, &chat(json!({"max_tokens": max_tokens})));
        assert!(full.reasoning.starts_with(&cut.reasoning) && full.content.starts_with(&cut.content), "{cut:?}");
        assert!(cut.finish_reason == "length" || cut == full, "{cut:?}");
    }
}

#[test]
fn reasoning_may_be_sent_under_both_names() {
    let settings = Settings { reasoning_names: ReasoningNames::Both, ..demo_settings() };
    let server = TestServer::over(Script::markup(ANSWER), settings, |_| {});
    let message = post(server.addr, CHAT, &chat(json!({}))).ok()["choices"][0]["message"].clone();
    assert_eq!(message["reasoning_content"], "thinking: a < b");
    assert_eq!(message["reasoning"], message["reasoning_content"]);
    let mut said = 0;
    for chunk in stream(server.addr, CHAT, &chat(json!({}))) {
        let Ok(chunk) = serde_json::from_str::<Value>(&chunk) else { continue };
        let delta = &chunk["choices"][0]["delta"];
        assert_eq!(delta.get("reasoning"), delta.get("reasoning_content"), "{chunk}");
        said += usize::from(delta["reasoning"].is_string());
    }
    assert!(said > 0);
    let one = serve(Script::markup(ANSWER));
    assert!(post(one.addr, CHAT, &chat(json!({}))).ok()["choices"][0]["message"].get("reasoning").is_none());
}

#[test]
fn an_answer_that_skips_the_end_of_thinking_is_still_an_answer() {
    for end in ["<|close|>response<|sep|><|close|>message<|sep|><|end_of_msg|>", "<|end_of_msg|>"] {
        let server = serve(Script::markup(&format!("forty-two{end}")));
        let whole = post(server.addr, CHAT, &chat(json!({}))).ok();
        let answer = whole_choices(&whole).remove(0);
        assert_eq!((answer.content.as_str(), answer.reasoning.as_str()), ("forty-two", ""), "{end}");
        assert_eq!(whole["usage"]["completion_tokens_details"]["reasoning_tokens"], 0);
        // A stream cannot take back what it showed as reasoning; its content is right all the same.
        let streamed = assemble(&stream(server.addr, CHAT, &chat(json!({}))), 1).choices.remove(0);
        assert_eq!(streamed.content, "forty-two", "{end}");
    }
}

const CALLS: &str = "hm<|close|>think<|sep|><|open|>response<|sep|>Looking.<|close|>response<|sep|><|open|>tools<|sep|>\
    <|open|>call tool=\"get_weather\" index=\"1\"<|sep|><|open|>argument key=\"city\" type=\"string\"<|sep|>Pa\"ris<|close|>argument<|sep|>\
    <|open|>argument key=\"days\" type=\"number\"<|sep|>3<|close|>argument<|sep|><|close|>call<|sep|>\
    <|open|>call tool=\"stop\" index=\"2\"<|sep|><|close|>call<|sep|><|close|>tools<|sep|><|close|>message<|sep|><|end_of_msg|>";

#[test]
fn tool_calls_arrive_as_they_are_written() {
    let server = serve(Script::markup(CALLS));
    let chunks = stream(server.addr, CHAT, &chat(json!({})));
    let chunks = chunks.iter().filter_map(|chunk| serde_json::from_str::<Value>(chunk).ok());
    let calls =
        chunks.flat_map(|chunk| chunk["choices"][0]["delta"]["tool_calls"].as_array().cloned().unwrap_or_default());
    let calls: Vec<Value> = calls.filter(|call| call["index"] == 0).collect();
    assert_eq!(calls[0]["function"], json!({"name": "get_weather", "arguments": ""}));
    assert!(calls[0]["id"].is_string());
    let pieces: Vec<&str> = calls[1..].iter().map(|call| call["function"]["arguments"].as_str().unwrap()).collect();
    assert_eq!(pieces.concat(), r#"{"city": "Pa\"ris", "days": 3}"#);
    // Head, each token of the string, its end; head and value; the end.
    let num_tokens = tokenizer().encode_text("Pa\"ris").len();
    assert!(num_tokens > 1);
    assert_eq!(pieces.len(), 1 + num_tokens + 1 + 2 + 1, "{pieces:?}");
}

#[test]
fn tool_calls_are_the_same_whole_and_streamed_wherever_they_are_cut() {
    let server = serve(Script::markup(CALLS));
    let full = choice(&server, CHAT, &chat(json!({})));
    assert_eq!((full.content.as_str(), full.finish_reason.as_str()), ("Looking.", "tool_calls"));
    let names: Vec<&str> = full.tool_calls.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(names, ["get_weather", "stop"]);
    let arguments: Value = serde_json::from_str(&full.tool_calls[0].1).unwrap();
    assert_eq!(arguments, json!({"city": "Pa\"ris", "days": 3}));
    assert_eq!(full.tool_calls[1].1, "{}");
    for max_tokens in 1..tokenizer().encode_markup(CALLS).len() {
        let cut = choice(&server, CHAT, &chat(json!({"max_tokens": max_tokens})));
        assert!(full.content.starts_with(&cut.content) && cut.tool_calls.len() <= full.tool_calls.len(), "{cut:?}");
        for ((name, part), (full_name, whole)) in cut.tool_calls.iter().zip(&full.tool_calls) {
            assert!(name == full_name && whole.starts_with(part.as_str()), "{cut:?}");
        }
        assert!(cut.finish_reason == "length" || cut == full, "a cut message is `length`: {cut:?}");
    }
}

#[test]
fn text_held_back_for_a_stop_comes_before_the_call_after_it() {
    let server = serve(Script::markup(CALLS));
    let chunks = stream(server.addr, CHAT, &chat(json!({"stop": "g. Then"})));
    let place = |what: &str| chunks.iter().position(|chunk| chunk.contains(what)).unwrap();
    assert!(place(r#""content":"g.""#) <= place("get_weather"), "{chunks:?}");
    assert_eq!(choice(&server, CHAT, &chat(json!({"stop": "g. Then"}))).content, "Looking.");
}

#[test]
fn tool_call_ids_are_unique_over_choices() {
    let server = serve(Script::markup(CALLS));
    let answer = post(server.addr, CHAT, &chat(json!({"n": 2}))).ok();
    let calls =
        answer["choices"].as_array().unwrap().iter().flat_map(|c| c["message"]["tool_calls"].as_array().unwrap());
    let ids: std::collections::BTreeSet<&str> = calls.map(|call| call["id"].as_str().unwrap()).collect();
    assert_eq!(ids.len(), 4);
}

#[test]
fn stop_strings_act_on_the_answer_not_on_the_reasoning() {
    let server = serve(Script::markup(ANSWER));
    let choice = choice(&server, CHAT, &chat(json!({"stop": ["a <", " and"]})));
    assert_eq!((choice.reasoning.as_str(), choice.content.as_str()), ("thinking: a < b", "so <|c"));
    assert_eq!((choice.finish_reason.as_str(), choice.stop_reason), ("stop", json!(" and")));
}

#[test]
fn impossible_alternatives_get_the_floor() {
    let server = serve(Script::markup("ab"));
    let body = chat(json!({"logprobs": true, "top_logprobs": 20, "thinking": {"type": "disabled"}}));
    let logprobs = choice(&server, CHAT, &body).logprobs;
    assert_eq!(logprobs[0]["logprob"], -9999.0);
    assert_eq!(logprobs[0]["top_logprobs"][19]["logprob"], -9999.0);
    let scored = text(json!({"echo": true, "logprobs": 5, "prompt_logprobs": 20}));
    assert_eq!(*choice(&server, TEXT, &scored).logprobs.last().unwrap(), -9999.0);
}

/// A request whose logits are not finite ends with an error; those beside it and after it do not notice.
#[test]
fn a_corrupt_request_ends_alone_with_an_error() {
    let mut script = Script::markup("fine so far");
    script.tokens.push(None);
    let server = serve(script);
    let fails = with(&text(json!({})), "stream", false);
    assert_eq!(post(server.addr, TEXT, &fails).refused(500)["type"], "server_error");
    let Assembled { choices, error, .. } = assemble(&stream(server.addr, TEXT, &fails), 1);
    assert_eq!((choices[0].content.as_str(), choices[0].finish_reason.as_str()), ("fine so far", "error"));
    assert!(error.unwrap()["message"].as_str().unwrap().contains("not finite"));
    let streamed = assemble(&stream(server.addr, CHAT, &chat(json!({"n": 2}))), 2);
    assert!(streamed.error.is_some());
    post(server.addr, TEXT, &text(json!({"max_tokens": 2}))).ok();
    assert!(server.stats().corrupted_requests >= 3);
    server.wait_until_idle();
}
