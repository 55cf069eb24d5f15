//! `bench-serve` against a server: every request is accounted for.

use clap::Parser;
use perilune_server::bench_serve;
use perilune_server::cli::{Cli, Command};
use serde_json::Value;

use crate::script::Script;
use crate::server::{TestServer, demo_settings};

#[test]
fn a_load_is_accounted_for() {
    let server = TestServer::over(Script::markup("one two three four"), demo_settings(), |_| {});
    let (url, page) = (format!("http://{}", server.addr), tempfile::NamedTempFile::new().unwrap());
    let run = |more: &[&str]| {
        let line = [
            "perilune",
            "bench-serve",
            "--url",
            url.as_str(),
            "--requests",
            "30",
            "--rate",
            "inf",
            "--max-tokens",
            "3",
            "--json",
        ];
        let Some(Command::BenchServe(args)) = Cli::try_parse_from(line.iter().chain(more)).unwrap().command else {
            panic!("another command")
        };
        serde_json::from_str::<Value>(&bench_serve::run(&args).unwrap()).unwrap()
    };
    let figures = run(&["--goal-ttft-ms", "60000", "--html", page.path().to_str().unwrap()]);
    assert_eq!((figures["completed"].as_u64(), figures["good_requests"].as_u64()), (Some(30), Some(30)), "{figures}");
    assert!(
        figures["ttft_ms"]["p50"].as_f64().unwrap() > 0.0
            && figures["output_tokens_per_second"].as_f64().unwrap() > 0.0
    );
    assert!(std::fs::read_to_string(page.path()).unwrap().matches("<circle").count() == 60);
    let refused = run(&["--model-name", "nobody"]);
    assert_eq!(refused["failures"][0]["count"].as_u64(), Some(30), "{refused}");
}
