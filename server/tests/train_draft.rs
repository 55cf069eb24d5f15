//! `train-draft` as a process: a small draft for the shipped demo, from prompts to a checkpoint, interrupted and measured.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
#![cfg(feature = "train")]

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::Value;

/// A directory with a prompt file of six questions, and the draft's place in it.
struct Stage {
    dir: tempfile::TempDir,
}

impl Stage {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let question =
            |i: usize| format!("{{\"question\": \"What is {i} + {}?\", \"answer\": \"left alone\"}}\n", 3 * i);
        std::fs::write(dir.path().join("prompts.jsonl"), (1..=6).map(question).collect::<String>()).unwrap();
        Stage { dir }
    }

    fn out(&self) -> PathBuf {
        self.dir.path().join("draft")
    }

    fn run(&self, more: &[&str]) -> Output {
        let small = "--threads 1 --layers 1 --intermediate 32 --markov-rank 8 --taps 2,7 --anchors 8 --batch 2 --held-out 2 \
                     --max-answer-tokens 48 --measure-every 2 --save-every 2";
        let mut command = Command::new(env!("CARGO_BIN_EXE_perilune"));
        command.arg("train-draft").args(small.split_whitespace()).args(more);
        command.arg("--prompts").arg(self.dir.path().join("prompts.jsonl")).arg("--out").arg(self.out());
        command.output().unwrap()
    }

    fn report(&self, more: &[&str]) -> Value {
        let output = self.run(more);
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        serde_json::from_slice(&output.stdout).unwrap()
    }

    fn refusal(&self, more: &[&str]) -> String {
        let output = self.run(more);
        assert!(!output.status.success());
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        text.lines().find(|line| line.starts_with("error: ")).unwrap_or(&text).to_owned()
    }
}

fn steps(dir: &Path) -> Vec<u64> {
    let log = std::fs::read_to_string(dir.join("training/log.jsonl")).unwrap();
    let lines = log.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    lines.filter(|line| line["loss"].is_number()).map(|line| line["step"].as_u64().unwrap()).collect()
}

#[test]
fn a_draft_is_trained_resumed_and_measured() {
    let stage = Stage::new();
    let report = stage.report(&["--steps", "4"]);
    assert!(report["held_out"]["accept_length"].as_f64().unwrap() >= 1.0, "{report}");
    let out = stage.out();
    for file in ["config.json", "model.safetensors", "training/answers.jsonl", "training/settings.json"] {
        assert!(out.join(file).is_file(), "{file}");
    }
    assert!(std::fs::read(out.join("training/training.png")).unwrap().starts_with(b"\x89PNG"));
    assert_eq!(steps(&out), [1, 2, 3, 4]);
    let config: Value = serde_json::from_slice(&std::fs::read(out.join("config.json")).unwrap()).unwrap();
    assert_eq!(config["architectures"][0], "DSparkDraftModel");
    assert_eq!(config["dflash_config"]["target_layer_ids"], serde_json::json!([2, 7]));
    assert_eq!(config["eos_token_id"], 2018);

    assert!(stage.refusal(&["--steps", "6"]).contains("the directory is not empty"));
    assert!(stage.refusal(&["--steps", "6", "--resume", "--seed", "5"]).contains("begun with `seed` 0, not 5"));
    let answers = std::fs::read_to_string(out.join("training/answers.jsonl")).unwrap();
    stage.report(&["--steps", "6", "--resume"]);
    assert_eq!(steps(&out), [1, 2, 3, 4, 5, 6]);
    // No prompt is answered twice.
    assert_eq!(std::fs::read_to_string(out.join("training/answers.jsonl")).unwrap(), answers);

    // More answers to the same prompts, the first ones kept.
    stage.report(&["--steps", "7", "--resume", "--more-answers", "1"]);
    let more = std::fs::read_to_string(out.join("training/answers.jsonl")).unwrap();
    assert!(more.starts_with(&answers), "{more}");
    let nth = |line: &str| serde_json::from_str::<Value>(line).unwrap()["nth"].as_u64().unwrap();
    assert_eq!(more.lines().map(nth).collect::<Vec<_>>(), [[0; 6], [1; 6]].concat());
    let answers = more;

    let measured = stage.report(&["--evaluate"]);
    assert_eq!(measured["survival"].as_array().unwrap().len(), 7);
    assert_eq!(std::fs::read_to_string(out.join("training/answers.jsonl")).unwrap(), answers);
}

#[test]
fn a_bad_prompt_file_is_refused_before_anything_is_written() {
    let stage = Stage::new();
    std::fs::write(stage.dir.path().join("prompts.jsonl"), "{\"question\": \"fine\"}\n{\"question\": 3}\n").unwrap();
    assert!(stage.refusal(&[]).ends_with("prompts.jsonl, line 2: `question` is a number, not a string"));
    assert!(!stage.out().exists());
    assert!(stage.refusal(&["--model", "nowhere"]).contains("nowhere"));
}
