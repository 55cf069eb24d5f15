//! The golden runs: logits of small checkpoints against values computed by independent implementations.

use std::process::Command;

use anyhow::{Result, bail};

use crate::process::{cargo, root, run as run_command};

/// Runs the golden tests; with `--regenerate` first makes the transformers set again.
pub(crate) fn run(args: &[String]) -> Result<()> {
    match args {
        [] => {}
        [flag] if flag == "--regenerate" => {
            let mut python = Command::new("python3");
            python.arg("tests/data/golden_kimi_linear/make_golden.py").current_dir(root());
            run_command(python)?;
        }
        _ => bail!("usage: cargo xtask golden [--regenerate]"),
    }
    run_command(cargo(&["test", "--release", "--package", "perilune-tests", "--test", "golden*"]))
}
