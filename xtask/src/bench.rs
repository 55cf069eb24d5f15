//! Tokens per second of the demo and of generated 300M-parameter checkpoints, with the share of memory bandwidth reached.
//!
//! All rows come from one run of one binary, so that their ratios mean something.

use anyhow::Result;

use crate::process::{cargo, run as run_command};

/// Not yet wired.
pub(crate) fn run(_args: &[String]) -> Result<()> {
    run_command(cargo(&["run", "--release", "--", "bench"]))
}
