//! Bytes that kernels move against the least possible: counted, access by access, where the emulator runs them.

use std::collections::BTreeMap;

use anyhow::{Context, Result};
use serde_json::Value;

use crate::process::{cargo, output};

/// Bytes moved and bytes that had to be, by kernel; for those that the table of `tests/gpu` launches.
pub(super) type Traffic = BTreeMap<String, (u64, u64)>;

/// Counts them.
///
/// # Errors
/// Where the emulator cannot run, for one because there is no C++ compiler.
pub(super) fn count() -> Result<Traffic> {
    let program = ["--package", "perilune-gpu-checks", "--features", "emulator", "--", "traffic"];
    let mut command = cargo(&["run", "--release", "--quiet"]);
    command.args(program);
    parse(&output(command)?)
}

fn parse(text: &str) -> Result<Traffic> {
    let all: BTreeMap<String, Value> = serde_json::from_str(text.trim()).context("the emulator's figures")?;
    let pair = |value: &Value| Some((value[0].as_u64()?, value[1].as_u64()?));
    all.into_iter()
        .map(|(name, value)| {
            let figures = pair(&value).with_context(|| format!("the emulator's figures of {name}"))?;
            Ok((name, figures))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn figures_by_kernel() {
        assert_eq!(parse("{\"a\": [20, 10]}\n").unwrap()["a"], (20, 10));
        assert!(parse("{\"a\": [20]}").is_err() && parse("no").is_err());
    }
}
