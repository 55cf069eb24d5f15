//! Everything that decides whether a change lands, in the order of what fails fastest.

use anyhow::{Result, bail};

use crate::process::{cargo, root, run as run_command};
use crate::tidy;

/// Runs all checks; `--skip-python` leaves out the ones that need Python packages.
pub(crate) fn run(args: &[String]) -> Result<()> {
    let with_python = match args {
        [] => true,
        [flag] if flag == "--skip-python" => false,
        _ => bail!("usage: cargo xtask ci [--skip-python]"),
    };
    run_command(cargo(&["fmt", "--all", "--check"]))?;
    tidy::run()?;
    let mut tests = cargo(&["test", "--release", "--workspace", "--features", "perilune-kernels-dsl/compile"]);
    // A machine that decides must have a C++ compiler to run the GPU kernels with.
    tests.env("PERILUNE_REQUIRE_EMULATOR", "1");
    run_command(tests)?;
    run_command(cargo(&["clippy", "--release", "--workspace", "--all-targets", "--", "-D", "warnings"]))?;
    run_command(cargo(&[
        "clippy",
        "--release",
        "--package",
        "perilune-server",
        "--package",
        "perilune-gpu-checks",
        "--features",
        "perilune-server/cuda,perilune-server/hip,perilune-gpu-checks/cuda,perilune-gpu-checks/hip",
        "--all-targets",
        "--",
        "-D",
        "warnings",
    ]))?;
    let mut dry_run = std::process::Command::new(root().join("tests/gpu/run"));
    dry_run.arg("--dry-run");
    run_command(dry_run)?;
    let mut doc = cargo(&["doc", "--release", "--no-deps", "--document-private-items"]);
    doc.env("RUSTDOCFLAGS", "-D warnings -A rustdoc::private-intra-doc-links");
    run_command(doc)?;
    if with_python {
        run_command(cargo(&["build", "--release", "--package", "perilune-server"]))?;
        let mut python = std::process::Command::new(std::env::var_os("PYTHON").unwrap_or_else(|| "python3".into()));
        python.arg("tests/clients/run.py").current_dir(root());
        run_command(python)?;
    }
    Ok(())
}
