//! Speculation over HTTP: with prompt lookup on, everything a client sees is what it sees without, but for the counts of
//! drafts.

use perilune_server::drafting::{DraftChoice, DraftOptions};
use perilune_speculate::DraftLengths;
use serde_json::{Value, json};

use crate::client::{post, with};
use crate::server::{TestServer, shared_demo};

const CHAT: &str = "/v1/chat/completions";

fn lookup() -> TestServer {
    TestServer::demo(|options| {
        let source = Some(DraftChoice::Ngram);
        options.drafts = DraftOptions { source, num_drafts: None, lengths: DraftLengths::Fixed };
    })
}

fn chat(question: &str) -> Value {
    json!({
        "messages": [{"role": "user", "content": question}], "temperature": 0, "max_tokens": 120, "seed": 1,
        "logprobs": true, "top_logprobs": 2,
    })
}

/// Without what differs from answer to answer, and the counts of drafts and of the cache.
fn comparable(mut answer: Value) -> Value {
    for key in ["id", "created", "system_fingerprint"] {
        answer[key].take();
    }
    answer["usage"]["prompt_tokens_details"].take();
    let details = answer["usage"]["completion_tokens_details"].as_object_mut().unwrap();
    details.remove("accepted_prediction_tokens");
    details.remove("rejected_prediction_tokens");
    answer
}

#[test]
fn answers_are_the_same_with_prompt_lookup() {
    let (without, with_lookup) = (shared_demo(), lookup());
    let first = chat("There are 3 boxes with 12 pens in each box. How many pens are there in total?");
    let second = chat("Tom has 14 apples, 14 pears and 14 plums. How many pieces of fruit does Tom have?");
    // A stop string that the answer contains, whose tokens may well be drafted together.
    let stopped = with(&second, "stop", json!(["14+"]));
    let short = with(&first, "max_tokens", 9);
    let penalized = with(&with(&second, "frequency_penalty", 1.1), "logit_bias", json!({"20": -100}));
    let chosen = with(&first, "n", 2);
    let (mut accepted, mut drafted) = (0, 0);
    for body in [&first, &second, &stopped, &short, &penalized, &chosen] {
        let expected = post(without, CHAT, body).ok();
        let found = post(with_lookup.addr, CHAT, body).ok();
        let details = &found["usage"]["completion_tokens_details"];
        accepted += details["accepted_prediction_tokens"].as_u64().unwrap_or(0);
        drafted += details["rejected_prediction_tokens"].as_u64().unwrap_or(0);
        assert!(details["reasoning_tokens"].as_u64() <= found["usage"]["completion_tokens"].as_u64());
        assert_eq!(comparable(found), comparable(expected), "{body}");
    }
    drafted += accepted;
    assert!(accepted > 5 && drafted > accepted, "{accepted} of {drafted} drafts");
    let page = String::from_utf8(crate::client::get(with_lookup.addr, "/metrics").body).unwrap();
    let count = |name: &str| -> u64 {
        let line = page.lines().find(|line| line.starts_with(name)).unwrap_or_else(|| panic!("no {name}: {page}"));
        line.rsplit(' ').next().unwrap().parse().unwrap()
    };
    assert!(count("perilune_draft_verifications_total") > 0);
    assert!(
        count("perilune_draft_tokens_total{place=\"0\"}") >= count("perilune_draft_tokens_accepted_total{place=\"0\"}")
    );
}

#[test]
fn a_request_may_turn_it_off_and_a_wrong_number_is_refused() {
    let server = lookup();
    let body = chat("What is 7 + 5? And 7 + 5? And 7 + 5?");
    let answer = post(server.addr, CHAT, &with(&body, "max_draft_tokens", 0)).ok();
    assert_eq!(answer["usage"]["completion_tokens_details"]["accepted_prediction_tokens"], Value::Null);
    for bad in [json!(-1), json!(65), json!("2"), json!(1.5)] {
        let error = post(server.addr, CHAT, &with(&body, "max_draft_tokens", bad)).refused(400);
        assert_eq!(error["param"], "max_draft_tokens");
    }
}
