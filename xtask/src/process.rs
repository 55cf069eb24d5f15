//! Running programs from the repository root and saying which one failed.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use anyhow::{Context, Result, bail};

/// The repository root.
pub(crate) fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().map(Path::to_path_buf).unwrap_or_default()
}

/// Where cargo puts what it builds.
pub(crate) fn target() -> PathBuf {
    root().join(std::env::var_os("CARGO_TARGET_DIR").unwrap_or_else(|| "target".into()))
}

/// `cargo` with these arguments, in the root.
pub(crate) fn cargo(args: &[&str]) -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.args(args).current_dir(root());
    command
}

/// Runs a command, printing it and how long it took.
pub(crate) fn run(mut command: Command) -> Result<()> {
    let shown = show(&command);
    eprintln!("── {shown}");
    let begin = Instant::now();
    let status = command.status().with_context(|| format!("cannot start `{shown}`"))?;
    eprintln!("── {:.0} s: {shown}", begin.elapsed().as_secs_f64());
    if !status.success() {
        bail!("`{shown}` ended with {status}");
    }
    Ok(())
}

/// Standard output of a command that must succeed.
pub(crate) fn output(mut command: Command) -> Result<String> {
    let shown = show(&command);
    let output = command.output().with_context(|| format!("cannot start `{shown}`"))?;
    if !output.status.success() {
        bail!("`{shown}` ended with {}: {}", output.status, String::from_utf8_lossy(&output.stderr));
    }
    String::from_utf8(output.stdout).with_context(|| format!("`{shown}` printed something that is not UTF-8"))
}

fn show(command: &Command) -> String {
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    words.map(|w| w.to_string_lossy()).collect::<Vec<_>>().join(" ")
}
