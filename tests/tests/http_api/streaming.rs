//! Streams: their grammar, and that they re-assemble to what is answered whole.

use serde_json::{Value, json};

use crate::client::{post, stream, with};
use crate::grammar::{Choice, assemble, whole_choices};
use crate::server::{shared_demo, tokenizer};

const CHAT: &str = "/v1/chat/completions";
const TEXT: &str = "/v1/completions";
const QUESTION: &str = "There are 3 boxes with 12 pens in each box. How many pens are there in total?";

fn chat(extra: Value) -> Value {
    let mut body = json!({"messages": [{"role": "user", "content": QUESTION}], "max_tokens": 80});
    body.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
    body
}

/// Usage but for the tokens that an earlier request left behind.
fn without_cached(mut usage: Value) -> Value {
    usage["prompt_tokens_details"]["cached_tokens"].take();
    usage
}

/// The same request whole and streamed gives the same choices; they are returned.
fn alike(path: &str, body: &Value) -> Vec<Choice> {
    let addr = shared_demo();
    let whole = post(addr, path, body).ok();
    let choices = whole_choices(&whole);
    let options = json!({"include_usage": true});
    let streamed = assemble(&stream(addr, path, &with(body, "stream_options", options)), choices.len());
    assert_eq!(streamed.error, None);
    assert_eq!(streamed.choices, choices, "{body}");
    assert_eq!(streamed.usage.map(without_cached), Some(without_cached(whole["usage"].clone())), "{body}");
    choices
}

#[test]
fn a_chat_streams_to_what_it_is_whole() {
    let greedy = alike(CHAT, &chat(json!({"temperature": 0})));
    assert_eq!(greedy[0].finish_reason, "stop");
    assert!(greedy[0].content == "36" && !greedy[0].reasoning.is_empty(), "{greedy:?}");
    let bodies = [
        json!({"temperature": 1.0, "seed": 1}),
        json!({"temperature": 1.0, "seed": 2, "logprobs": true, "top_logprobs": 20, "return_token_ids": true}),
        json!({"temperature": 1.0, "seed": 3, "n": 3}),
        json!({"temperature": 0, "max_tokens": 3}),
        json!({"temperature": 0, "thinking": {"type": "disabled"}}),
        json!({"temperature": 0, "include_reasoning": false}),
        json!({"temperature": 0, "separate_reasoning": false}),
        json!({"temperature": 0, "thinking": {"type": "disabled"}, "ignore_eos": true, "stop": ["1", "6"]}),
        json!({"temperature": 0, "repetition_penalty": 1.3, "frequency_penalty": 0.5, "min_tokens": 70}),
    ];
    bodies.into_iter().for_each(|extra| drop(alike(CHAT, &chat(extra))));
}

#[test]
fn a_completion_streams_to_what_it_is_whole() {
    let bodies = [
        json!({"prompt": "What is 7 + 5?", "max_tokens": 20, "temperature": 0}),
        json!({"prompt": ["What is", "Tom has"], "max_tokens": 12, "temperature": 1.0, "seed": 4, "n": 2}),
        json!({"prompt": "What is", "max_tokens": 8, "echo": true, "logprobs": 3}),
        json!({"prompt": "What is", "max_tokens": 8, "echo": true}),
        json!({"prompt": "What is", "max_tokens": 0, "echo": true, "logprobs": 1}),
        json!({"prompt": "What is", "max_tokens": 60, "stop": [" a", "the"], "return_token_ids": true}),
    ];
    bodies.iter().for_each(|body| drop(alike(TEXT, body)));
}

#[test]
fn reasoning_goes_where_it_was_asked_to_go() {
    let apart = alike(CHAT, &chat(json!({"temperature": 0}))).remove(0);
    let inline = alike(CHAT, &chat(json!({"temperature": 0, "separate_reasoning": false}))).remove(0);
    let nowhere = alike(CHAT, &chat(json!({"temperature": 0, "include_reasoning": false}))).remove(0);
    assert_eq!((inline.content, inline.reasoning.as_str()), (format!("{}{}", apart.reasoning, apart.content), ""));
    assert_eq!((nowhere.content, nowhere.reasoning.as_str()), (apart.content, ""));
}

#[test]
fn the_models_own_limit_ends_an_answer_that_nobody_limited() {
    let body = json!({"messages": [{"role": "user", "content": "hi"}], "ignore_eos": true});
    let answer = post(shared_demo(), CHAT, &body).ok();
    assert_eq!(answer["choices"][0]["finish_reason"], "length");
    assert_eq!(answer["usage"]["completion_tokens"], 1024, "max_new_tokens of generation_config.json");
    let asked = post(shared_demo(), CHAT, &with(&body, "max_tokens", 1030)).ok();
    assert_eq!(asked["usage"]["completion_tokens"], 1030);
    let plain = post(shared_demo(), TEXT, &json!({"prompt": "hi", "ignore_eos": true})).ok();
    assert_eq!(plain["usage"]["completion_tokens"], 16, "the default of this route");
    // Near the end of the context the model's limit gives way.
    let long = json!({"messages": [{"role": "user", "content": "3 ".repeat(7_900)}], "ignore_eos": true});
    let cut = post(shared_demo(), CHAT, &long).ok();
    assert_eq!(cut["choices"][0]["finish_reason"], "length");
    assert!(cut["usage"]["completion_tokens"].as_u64().unwrap() < 1024, "{}", cut["usage"]);
}

#[test]
fn n_choices_equal_single_requests_with_derived_seeds() {
    let addr = shared_demo();
    let sampled = json!({"temperature": 2.0, "seed": 11, "max_tokens": 40});
    let body = with(&chat(sampled.clone()), "n", 3);
    let many = assemble(&stream(addr, CHAT, &with(&body, "stream_options", json!({"include_usage": true}))), 3);
    let usage = many.usage.unwrap();
    let mut completion = 0;
    for (index, choice) in many.choices.iter().enumerate() {
        let seed = perilune_sampling::derived_seed(11, index).cast_signed();
        let single = post(addr, CHAT, &with(&chat(sampled.clone()), "seed", seed)).ok();
        assert_eq!(&whole_choices(&single)[0], choice, "choice {index}");
        assert_eq!(usage["prompt_tokens"], single["usage"]["prompt_tokens"], "the prompt counts once");
        completion += single["usage"]["completion_tokens"].as_u64().unwrap();
    }
    assert_eq!(usage["completion_tokens"], completion);
    assert!(many.choices[0] != many.choices[1] && many.choices[1] != many.choices[2], "{:?}", many.choices);
}

#[test]
fn a_seed_gives_the_same_tokens_whatever_runs_beside_it() {
    let addr = shared_demo();
    let body = chat(json!({"temperature": 2.0, "seed": 21, "logprobs": true, "top_logprobs": 2}));
    let alone = whole_choices(&post(addr, CHAT, &body).ok());
    std::thread::scope(|scope| {
        for seed in 0..6 {
            let other = chat(json!({"temperature": 1.0, "seed": seed}));
            scope.spawn(move || post(addr, CHAT, &other).ok());
        }
        let together: Vec<_> = (0..3).map(|_| scope.spawn(|| whole_choices(&post(addr, CHAT, &body).ok()))).collect();
        for choices in together {
            assert!(choices.join().unwrap() == alone, "company changed the answer");
        }
    });
    let other = whole_choices(&post(addr, CHAT, &with(&body, "seed", 22)).ok());
    assert!(other != alone, "another seed gave the same");
}

#[test]
fn usage_comes_when_asked_for_and_adds_up() {
    let addr = shared_demo();
    let body = chat(json!({"temperature": 0}));
    let usage = post(addr, CHAT, &body).ok()["usage"].clone();
    let count = |key: &str| usage[key].as_u64().unwrap();
    assert_eq!(count("prompt_tokens") + count("completion_tokens"), count("total_tokens"));
    let reasoning = usage["completion_tokens_details"]["reasoning_tokens"].as_u64().unwrap();
    assert!(0 < reasoning && reasoning < count("completion_tokens"), "{usage}");
    let cached = usage["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap();
    assert!(cached <= count("prompt_tokens"), "{usage}");
    assert!(assemble(&stream(addr, CHAT, &body), 1).usage.is_none());

    let options = json!({"include_usage": true, "continuous_usage_stats": true});
    let events = stream(addr, CHAT, &with(&body, "stream_options", options));
    assert_eq!(assemble(&events, 1).usage.map(without_cached), Some(without_cached(usage.clone())));
    let counts: Vec<u64> = events[..events.len() - 1]
        .iter()
        .map(|event| serde_json::from_str::<Value>(event).unwrap()["usage"]["completion_tokens"].as_u64().unwrap())
        .collect();
    assert!(counts.is_sorted() && counts.last() == usage["completion_tokens"].as_u64().as_ref(), "{counts:?}");
}

#[test]
fn the_generation_opener_is_not_counted() {
    let addr = shared_demo();
    let body = chat(json!({"max_tokens": 1}));
    let counted = post(addr, CHAT, &body).ok()["usage"]["prompt_tokens"].as_u64().unwrap();
    let rendered = post(addr, "/tokenize", &body).ok()["count"].as_u64().unwrap();
    let opener = 2 + tokenizer().encode_text("think").len() as u64;
    assert_eq!(rendered, counted + opener);
}

#[test]
fn log_probabilities_stand_for_every_token() {
    let addr = shared_demo();
    let extra = json!({"temperature": 0, "logprobs": true, "top_logprobs": 3, "return_token_ids": true});
    let body = post(addr, CHAT, &chat(extra)).ok();
    let choice = whole_choices(&body).remove(0);
    assert_eq!(choice.logprobs.len() as u64, body["usage"]["completion_tokens"].as_u64().unwrap());
    assert_eq!(choice.logprobs.len(), choice.token_ids.len());
    for entry in &choice.logprobs {
        let top = entry["top_logprobs"].as_array().unwrap();
        assert_eq!(top.len(), 3);
        // Greedy: the token is the most likely one.
        assert_eq!((&top[0]["token"], &top[0]["logprob"]), (&entry["token"], &entry["logprob"]));
        let bytes: Vec<u8> = entry["bytes"].as_array().unwrap().iter().map(|b| b.as_u64().unwrap() as u8).collect();
        assert_eq!(String::from_utf8_lossy(&bytes), entry["token"].as_str().unwrap());
    }
    let rendered = body["prompt_token_ids"].as_array().unwrap();
    let tokenized = post(addr, "/tokenize", &chat(json!({}))).ok();
    assert_eq!(Some(rendered), tokenized["tokens"].as_array());
}
