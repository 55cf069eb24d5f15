//! Stored prefixes over HTTP: the same answers as from a server that stores none, counted in the usage.

use serde_json::{Value, json};

use crate::client::{get, post, stream};
use crate::grammar::{Choice, assemble, whole_choices};
use crate::server::TestServer;

const TEXT: &str = "/v1/completions";
const CHAT: &str = "/v1/chat/completions";
/// Tokens of a stored block.
const BLOCK: u64 = 64;

fn cached(answer: &Value) -> u64 {
    answer["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap()
}

fn servers() -> (TestServer, TestServer) {
    let cold = TestServer::demo(|options| options.prefixes = perilune_engine::Prefixes::Forget);
    (TestServer::demo(|_| {}), cold)
}

#[test]
fn a_long_prompt_with_two_endings() {
    let (server, cold) = servers();
    // Some 2,000 tokens.
    let prefix = "Tom has 12 boxes with 7 pens each and gives 5 of them away. ".repeat(110);
    let ask = |addr, ending: &str| {
        let body = json!({"prompt": format!("{prefix}{ending}"), "max_tokens": 12, "temperature": 0, "logprobs": 2});
        let answer = post(addr, TEXT, &body).ok();
        (whole_choices(&answer), cached(&answer), answer["usage"]["prompt_tokens"].as_u64().unwrap())
    };
    for (ending, least) in
        [("How many are left?", 0), ("What is 7 + 5?", 1000), ("How many are left?", 1000), ("And?", 1000)]
    {
        let (choices, cached, prompt_tokens) = ask(server.addr, ending);
        let (expected, none, _) = ask(cold.addr, ending);
        assert_eq!((choices, none), (expected, 0), "{ending}, {cached} of {prompt_tokens} stored");
        assert!(
            prompt_tokens > 1500 && cached >= least && cached < prompt_tokens,
            "{cached} of {prompt_tokens} stored"
        );
    }
}

#[test]
fn every_turn_of_a_chat_is_what_it_is_cold_and_starts_at_the_turn_before() {
    let (server, cold) = servers();
    let mut messages = vec![json!({"role": "system", "content": "You are a calm teacher of sums."})];
    let (mut before, mut first): (u64, Option<(Value, Vec<Choice>)>) = (0, None);
    let parameters = json!({"type": "object", "properties": {"sum": {"type": "string"}}});
    let function = json!({"name": "calculate", "description": "Works out a sum.", "parameters": parameters});
    let tools = json!([{"type": "function", "function": function}]);
    for turn in 0..12 {
        let question = format!("There are {} boxes with {} pens each. How many pens?", 3 + turn, 2 + turn * turn);
        messages.push(json!({"role": "user", "content": question}));
        let body = json!({"messages": messages, "tools": tools, "max_tokens": 60, "temperature": 0, "logprobs": true});
        let answer = post(server.addr, CHAT, &body).ok();
        let choices = whole_choices(&answer);
        assert_eq!(choices, whole_choices(&post(cold.addr, CHAT, &body).ok()), "turn {turn}");
        assert!(cached(&answer) + 20 >= before, "turn {turn}: {} stored, {before} tokens before", cached(&answer));
        let streamed = assemble(&stream(server.addr, CHAT, &body), 1);
        assert_eq!(streamed.choices, choices, "turn {turn}, streamed");
        first.get_or_insert((body, choices.clone()));
        before = answer["usage"]["prompt_tokens"].as_u64().unwrap();
        messages.push(json!({"role": "assistant", "content": choices[0].content}));
    }
    // Nothing that came later has spoilt what was stored first.
    let (body, choices) = first.unwrap();
    assert_eq!(whole_choices(&post(server.addr, CHAT, &body).ok()), choices);
}

#[test]
fn a_turn_that_demands_something_of_its_answer_leaves_its_question_to_the_next() {
    let (server, _) = servers();
    let function = json!({"name": "calculate", "parameters": {"type": "object", "properties": {}}});
    let format = json!({"type": "json_object"});
    for demand in [json!({"tool_choice": "required"}), json!({"tool_choice": "none", "response_format": format})] {
        let mut messages = vec![json!({"role": "system", "content": format!("You demand {demand}.")})];
        let mut shared = 0;
        for turn in 0..5 {
            let question = format!("There are {turn} boxes with 7 pens each. ").repeat(18);
            messages.push(json!({"role": "user", "content": question}));
            let mut body = json!({"messages": messages, "tools": [{"type": "function", "function": function}],
                "max_tokens": 60, "temperature": 0});
            let plain = post(server.addr, "/tokenize", &body).ok();
            body.as_object_mut().unwrap().extend(demand.as_object().unwrap().clone());
            let answer = post(server.addr, CHAT, &body).ok();
            assert!(cached(&answer) + BLOCK >= shared, "turn {turn}, {demand}: {} of {shared}", cached(&answer));
            shared = plain["count"].as_u64().unwrap();
            messages.push(json!({"role": "assistant", "content": "Seven each."}));
        }
    }
}

#[test]
fn whoever_has_the_same_instructions_starts_behind_them() {
    let (server, cold) = servers();
    let rules = "You are a calm teacher of sums. Show every step, and never round. ".repeat(20);
    for (thinking, tools) in [("enabled", false), ("disabled", false), ("enabled", true), ("disabled", true)] {
        for (i, question) in ["7 + 5?", "9 - 2?", "3 * 4?"].into_iter().enumerate() {
            let rules = format!("{rules} {thinking} {tools}");
            let messages = json!([{"role": "system", "content": rules}, {"role": "user", "content": question}]);
            let mut body = json!({"messages": messages, "thinking": {"type": thinking}, "max_tokens": 8,
                "temperature": 0, "logprobs": true});
            if tools {
                let function = json!({"name": "calculate", "parameters": {"type": "object", "properties": {}}});
                body["tools"] = json!([{"type": "function", "function": function}]);
            }
            let answer = post(server.addr, CHAT, &body).ok();
            assert_eq!(whole_choices(&answer), whole_choices(&post(cold.addr, CHAT, &body).ok()));
            let lacking = answer["usage"]["prompt_tokens"].as_u64().unwrap() - cached(&answer);
            assert!(i == 0 || lacking < BLOCK, "{thinking}, tools {tools}, question {i}: {lacking} tokens computed");
        }
    }
}

#[test]
fn salts_the_report_and_the_flush() {
    let (server, _) = servers();
    let body = |salt: Value| json!({"prompt": "pens and boxes ".repeat(60), "max_tokens": 2, "cache_salt": salt});
    let ask = |salt: Value| cached(&post(server.addr, TEXT, &body(salt)).ok());
    assert_eq!((ask(json!("a")), ask(json!("b")), ask(json!(null))), (0, 0, 0));
    assert!(ask(json!("a")) > 60 && ask(json!(null)) > 60);
    for wrong in [json!(""), json!(5), json!("x".repeat(1025))] {
        let error = post(server.addr, TEXT, &body(wrong)).refused(400);
        assert_eq!(error["param"], "cache_salt");
    }
    let report = get(server.addr, "/cache").ok();
    assert!(report["usage"]["slots_stored"].as_u64() > Some(2), "{report}");
    assert!(report["events"]["hit_tokens"].as_u64() > Some(120), "{report}");
    let states = |report: &Value| {
        let prefixes = report["prefixes"].as_array().unwrap().clone();
        prefixes.iter().map(|prefix| prefix["states"].as_array().unwrap().len()).sum::<usize>()
    };
    assert_eq!(Some(states(&report) as u64), report["usage"]["states"].as_u64());
    assert!(!report.to_string().contains("pens"), "no text of anybody");
    post(server.addr, "/flush_cache", &json!({})).ok();
    assert_eq!(states(&get(server.addr, "/cache").ok()), 0);
    assert_eq!(ask(json!("a")), 0);
    let metrics = String::from_utf8(get(server.addr, "/metrics").body).unwrap();
    let hits = metrics.lines().find_map(|line| line.strip_prefix("perilune_prefix_cache_hits_total ")).unwrap();
    assert!(hits.parse::<u64>().unwrap() > 120, "{hits}");
}
