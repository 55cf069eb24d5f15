//! Checks of structure that no compiler makes: who may depend on whom, licences, features, file headers, names, links.

mod dependencies;
mod features;
mod licences;
mod links;
mod sources;

use anyhow::{Context, Result, bail};
use serde_json::Value;

use crate::process::{cargo, output, root};

/// Runs every check and fails with the list of all findings.
pub(crate) fn run() -> Result<()> {
    let text = output(cargo(&["metadata", "--format-version", "1", "--locked"]))?;
    let metadata: Value = serde_json::from_str(&text).context("cargo metadata printed something that is not JSON")?;
    let files = tracked_files()?;
    let mut findings = dependencies::check(&metadata);
    findings.extend(dependencies::check_cubecl()?);
    findings.extend(licences::check(&metadata));
    findings.extend(sources::check(&files)?);
    findings.extend(links::check(&files)?);
    findings.extend(features::check()?);
    if findings.is_empty() {
        eprintln!("tidy: {} files, nothing to say", files.len());
        return Ok(());
    }
    for finding in &findings {
        eprintln!("tidy: {finding}");
    }
    bail!("{} findings", findings.len())
}

/// Files that git tracks or would track, relative to the root.
fn tracked_files() -> Result<Vec<String>> {
    let mut git = std::process::Command::new("git");
    git.args(["ls-files", "--cached", "--others", "--exclude-standard"]).current_dir(root());
    Ok(output(git)?.lines().filter(|f| root().join(f).is_file()).map(str::to_owned).collect())
}
