//! Replays the committed corpus of the fuzz targets through the functions that they fuzz, so that what was found once stays
//! found. `fuzz/README.md` says how to look for more.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // tests

#[path = "../../fuzz/src/checks.rs"]
mod checks;

use std::path::Path;

/// Runs every file of a target's corpus; a panic names the file.
fn replay(target: &str, check: fn(&[u8])) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fuzz/corpus").join(target);
    let mut files: Vec<_> = std::fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    assert!(files.len() >= 4, "{target}: {} files", files.len());
    for file in files {
        let data = std::fs::read(&file).unwrap();
        if let Err(panic) = std::panic::catch_unwind(|| check(&data)) {
            eprintln!("the file is {}", file.display());
            std::panic::resume_unwind(panic);
        }
    }
}

#[test]
fn requests() {
    replay("requests", checks::requests);
}

#[test]
fn tokenizer() {
    replay("tokenizer", checks::tokenizer);
}

#[test]
fn prompt() {
    replay("prompt", checks::prompt);
}

#[test]
fn output() {
    replay("output", checks::output);
}

#[test]
fn config() {
    replay("config", checks::config);
}

#[test]
fn safetensors() {
    replay("safetensors", checks::safetensors);
}
