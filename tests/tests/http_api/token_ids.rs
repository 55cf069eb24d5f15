//! `--skip-tokenizer-init`: prompts and answers as token ids alone.

use serde_json::json;

use crate::client::{get, post, stream};
use crate::grammar::{assemble, whole_choices};
use crate::server::{TestServer, shared_demo, tokenizer};

const TEXT: &str = "/v1/completions";

#[test]
fn ids_in_ids_out_as_with_a_tokenizer() {
    let server = TestServer::demo(|options| options.token_ids_only = true);
    let prompt: Vec<u32> = tokenizer().encode_text("What is 7 + 5?").iter().map(|id| id.0).collect();
    let body = json!({"prompt": prompt, "max_tokens": 12, "temperature": 0, "return_token_ids": true, "logprobs": 2});
    let known = post(shared_demo(), TEXT, &body).ok();
    let answer = post(server.addr, TEXT, &body).ok();
    let (ids, with_text) = (whole_choices(&answer).remove(0), whole_choices(&known).remove(0));
    assert_eq!((ids.token_ids.clone(), ids.logprobs.clone()), (with_text.token_ids, with_text.logprobs));
    let completion = |answer: &serde_json::Value| answer["usage"]["completion_tokens"].clone();
    assert_eq!((ids.content.as_str(), completion(&answer)), ("", completion(&known)));
    let name = answer["choices"][0]["logprobs"]["tokens"][0].as_str().unwrap();
    assert_eq!(name, format!("token_id:{}", ids.token_ids[0]));
    assert_eq!(assemble(&stream(server.addr, TEXT, &body), 1).choices, [ids]);
    let scored = json!({"prompt": [prompt], "max_tokens": 0, "echo": true, "logprobs": 1, "prompt_logprobs": 1});
    let choice = post(server.addr, TEXT, &scored).ok()["choices"][0].clone();
    assert_eq!(choice["logprobs"]["tokens"].as_array().unwrap().len(), prompt.len());
    assert_eq!(choice["prompt_token_ids"], json!(prompt));
}

#[test]
fn what_needs_text_is_refused_with_a_sentence() {
    let server = TestServer::demo(|options| options.token_ids_only = true);
    let cases = [
        (TEXT, json!({"prompt": "text"}), "prompt"),
        (TEXT, json!({"prompt": ["text"]}), "prompt"),
        (TEXT, json!({"prompt": [50], "stop": "x"}), "stop"),
        ("/v1/chat/completions", json!({"messages": [{"role": "user", "content": "x"}]}), "messages"),
        ("/tokenize", json!({"prompt": "text"}), "prompt"),
        ("/detokenize", json!({"tokens": [1]}), "tokens"),
    ];
    for (path, body, param) in cases {
        let error = post(server.addr, path, &body).refused(400);
        assert_eq!(error["param"], param);
        assert!(error["message"].as_str().unwrap().contains("tokenizer"), "{error}");
    }
    get(server.addr, "/v1/models").ok();
}
