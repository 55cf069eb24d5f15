//! `--api-profile kimi` and `--metrics-compat`.

use perilune_server::Settings;
use perilune_server::metrics_compat::MetricsCompat;
use perilune_server::profile::ApiProfile;
use perilune_tests::gated;
use serde_json::{Value, json};

use crate::client::{Connection, get, post, stream, with};
use crate::script::Script;
use crate::server::{TestServer, demo_settings, eventually};

const CHAT: &str = "/v1/chat/completions";

fn chat() -> Value {
    json!({"messages": [{"role": "user", "content": "x"}], "max_tokens": 5})
}

#[test]
fn kimi_refuses_what_its_own_api_refuses_on_every_surface() {
    let settings = Settings { profile: ApiProfile::Kimi, ..demo_settings() };
    let server = TestServer::over(Script::markup("one two three"), settings, |_| {});
    let surfaces = [
        (CHAT, chat()),
        ("/v1/completions", json!({"prompt": "x", "max_tokens": 2})),
        ("/v1/responses", json!({"input": "x", "max_output_tokens": 2})),
        ("/v1/messages", with(&chat(), "max_tokens", 2)),
        ("/generate", json!({"text": "x"})),
    ];
    for (path, body) in surfaces {
        for (field, wrong, right) in [("temperature", 1.5, 1.0), ("top_p", 1.0, 0.95), ("presence_penalty", 0.1, 0.0)] {
            for stream in [false, true] {
                let refused = post(server.addr, path, &with(&with(&body, field, wrong), "stream", stream));
                assert_eq!((refused.status, &refused.json()["error"]["param"]), (400, &json!(field)), "{path}");
            }
            assert_eq!(post(server.addr, path, &with(&body, field, right)).status, 200, "{path} {field}");
        }
    }
    assert_eq!(post(server.addr, CHAT, &with(&chat(), "n", 2)).refused(400)["param"], "n");
    // The usage comes unasked.
    let events = stream(server.addr, CHAT, &chat());
    let last: Value = serde_json::from_str(&events[events.len() - 2]).unwrap();
    assert_eq!((last["choices"].as_array().unwrap().len(), last["usage"]["completion_tokens"].as_u64()), (0, Some(4)));
}

/// What Grafana's dashboards and routers in front of several servers read.
#[test]
fn figures_have_the_names_of_other_servers() {
    let names: [(MetricsCompat, &[&str]); 2] = [
        (
            MetricsCompat::Vllm,
            &[
                "vllm:num_requests_running{model_name=\"demo\"} 0",
                "vllm:num_requests_waiting{model_name=\"demo\"} 0",
                "vllm:kv_cache_usage_perc{model_name=\"demo\"} 0.0",
                "vllm:generation_tokens_total{model_name=\"demo\"} 10",
                "vllm:prompt_tokens_total{model_name=\"demo\"} ",
                "vllm:prefix_cache_queries_total{model_name=\"demo\"} ",
                "vllm:prefix_cache_hits_total{model_name=\"demo\"} ",
                "vllm:request_success_total{model_name=\"demo\",finished_reason=\"length\"} 2",
                "vllm:spec_decode_num_drafts_total{model_name=\"demo\"} 0",
                "vllm:spec_decode_num_draft_tokens_total{model_name=\"demo\"} 0",
                "vllm:spec_decode_num_accepted_tokens_total{model_name=\"demo\"} 0",
                "vllm:spec_decode_num_accepted_tokens_per_pos_total{model_name=\"demo\",position=\"0\"} 0",
                "vllm:time_to_first_token_seconds_count{model_name=\"demo\"} 2",
                "vllm:inter_token_latency_seconds_count{model_name=\"demo\"} 8",
                "vllm:e2e_request_latency_seconds_count{model_name=\"demo\"} 2",
                "vllm:request_queue_time_seconds_count{model_name=\"demo\"} 2",
            ],
        ),
        (
            MetricsCompat::Sglang,
            &[
                "sglang:num_running_reqs{model_name=\"demo\"} 0",
                "sglang:num_queue_reqs{model_name=\"demo\"} 0",
                "sglang:token_usage{model_name=\"demo\"} 0.0",
                "sglang:cache_hit_rate{model_name=\"demo\"} ",
                "sglang:generation_tokens_total{model_name=\"demo\"} 10",
                "sglang:num_requests_total{model_name=\"demo\"} 2",
                "sglang:time_to_first_token_seconds_count{model_name=\"demo\"} 2",
                "sglang:inter_token_latency_seconds_count{model_name=\"demo\"} 8",
                "sglang:e2e_request_latency_seconds_count{model_name=\"demo\"} 2",
                "sglang:queue_time_seconds_count{model_name=\"demo\"} 2",
            ],
        ),
    ];
    for (compat, lines) in names {
        let settings = Settings { metrics_compat: Some(compat), ..demo_settings() };
        let server = TestServer::over(Script::markup("one two three four five six seven eight"), settings, |_| {});
        (0..2).for_each(|_| drop(post(server.addr, CHAT, &chat()).ok()));
        server.wait_until_idle();
        let page = String::from_utf8(get(server.addr, "/metrics").body).unwrap();
        for line in lines {
            assert!(page.lines().any(|found| found.starts_with(line)), "{line} is missing from\n{page}");
        }
        assert!(page.contains("perilune_generation_tokens_total 10"), "ours stay");
    }
}

#[test]
fn a_stop_string_counts_as_a_stop() {
    let (runner, gate) = gated(Script::markup(&"one two three four five ".repeat(400)));
    let settings = Settings { metrics_compat: Some(MetricsCompat::Vllm), ..demo_settings() };
    let server = TestServer::over(runner, settings, |_| {});
    let body = json!({"prompt": "x", "max_tokens": 3000, "stop": "four", "stream": true});
    let mut stream = Connection::post(server.addr, "/v1/completions", &body);
    eventually("the request is over", || {
        if gate.try_arrival().is_some() {
            gate.pass();
        }
        let finished = server.stats().finished;
        finished.stop + finished.length + finished.abort > 0
    });
    assert!(server.stats().generated_tokens < 2000, "the stop string did not end it");
    assert!(stream.line_with("data: ").is_some());
    drop(gate);
    let page = String::from_utf8(get(server.addr, "/metrics").body).unwrap();
    for line in [
        "perilune_requests_finished_total{reason=\"stop\"} 1",
        "perilune_requests_finished_total{reason=\"abort\"} 0",
        "finished_reason=\"stop\"} 1",
        "finished_reason=\"abort\"} 0",
    ] {
        assert!(page.contains(line), "{line}: {page}");
    }
}
