//! The log of requests: what was asked and answered, read by the simulator.

use clap::Parser;
use perilune_server::Settings;
use perilune_server::cli::{Cli, Command};
use perilune_server::request_log::RequestLog;
use serde_json::{Value, json};

use crate::client::{post, stream, with};
use crate::script::Script;
use crate::server::{TestServer, demo_settings};

#[test]
fn every_request_is_a_line_that_the_simulator_reads() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("requests.jsonl");
    let settings = Settings { request_log: Some(RequestLog::open(&path).unwrap()), ..demo_settings() };
    let server = TestServer::over(Script::markup("one two"), settings, |_| {});
    let ids: Vec<u32> = (300..360).collect();
    let body = json!({"prompt": ids, "max_tokens": 5, "return_token_ids": true});
    let answer = post(server.addr, "/v1/completions", &body).ok();
    stream(server.addr, "/v1/completions", &body);
    let chat = json!({"messages": [{"role": "user", "content": "pens"}], "max_tokens": 5});
    post(server.addr, "/v1/chat/completions", &chat).ok();
    post(server.addr, "/v1/completions", &json!({"prompt": ids, "max_tokens": -1})).refused(400);
    post(server.addr, "/v1/completions", &with(&body, "cache_salt", "a secret")).ok();
    server.wait_until_idle();
    let text = std::fs::read_to_string(&path).unwrap();
    let lines: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(lines.len(), 4, "{text}");
    assert_eq!((&lines[0]["tokens"], &lines[1]["tokens"]), (&json!(ids), &json!(ids)));
    assert_eq!(lines[0]["output"], answer["choices"][0]["token_ids"]);
    assert!(!lines[2]["checkpoints"].as_array().unwrap().is_empty(), "where turns end: {}", lines[2]);
    assert!(lines[3]["salt"].as_str().is_some_and(|salt| salt.len() == 32), "{}", lines[3]);
    assert!(!text.contains("a secret") && lines[..3].iter().all(|line| line["salt"].is_null()), "{text}");
    let args = ["perilune", "simulate-cache", "--memory-gib", "4", "--trace", path.to_str().unwrap()];
    let Some(Command::SimulateCache(args)) = Cli::try_parse_from(args).unwrap().command else { panic!() };
    let report = perilune_server::simulate::run(&args).unwrap();
    assert!(report.contains("      4  "), "four requests: {report}");
    let error = RequestLog::open(dir.path()).unwrap_err().to_string();
    assert!(error.contains("--request-log"), "{error}");
}
