//! `widen MODEL FACTOR OUT [DRAFT DRAFT_OUT]`: a model that is wider and says the same, and a draft for it.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // a tool of the tests

use std::path::Path;

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let ([model, factor, out] | [model, factor, out, _, _]) = args[..] else {
        eprintln!("usage: widen MODEL FACTOR OUT [DRAFT DRAFT_OUT]");
        std::process::exit(2);
    };
    let Ok(factor) = factor.parse::<usize>() else {
        eprintln!("FACTOR is `{factor}`; a power of two");
        std::process::exit(2);
    };
    std::fs::create_dir_all(out).unwrap();
    perilune_tests::widen_model(Path::new(model), factor, Path::new(out));
    if let [.., draft, draft_out] = args[3..] {
        std::fs::create_dir_all(draft_out).unwrap();
        perilune_tests::widen_draft(Path::new(draft), factor, Path::new(draft_out));
    }
}
