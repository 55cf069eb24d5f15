//! Everything that decides whether a change lands, in the order of what fails fastest.

use anyhow::{Result, bail};

use crate::process::{cargo, root, run as run_command, target};
use crate::tidy;

/// Features that build the drivers of GPUs.
const DRIVERS: &str = "perilune-server/cuda,perilune-server/hip,perilune-gpu-checks/cuda,perilune-gpu-checks/hip";

/// Features with which the tests, and the checks of a GPU, run GPU kernels on the host.
const EMULATED: &str = "perilune-kernels-dsl/compile,perilune-gpu-checks/emulator";

/// Runs all checks; `--skip-python` leaves out the ones that need Python packages.
pub(crate) fn run(args: &[String]) -> Result<()> {
    let with_python = match args {
        [] => true,
        [flag] if flag == "--skip-python" => false,
        _ => bail!("usage: cargo xtask ci [--skip-python]"),
    };
    run_command(cargo(&["fmt", "--all", "--check"]))?;
    tidy::run()?;
    // The draft trainer is left out: burn takes as long to compile as everything else together. `cargo test --release
    // --package perilune-train` runs its tests.
    let all = ["--release", "--workspace", "--exclude", "perilune-train", "--exclude", "perilune-schema-tests"];
    let mut tests = cargo(&["test"]);
    tests.args(all).args(["--features", EMULATED]);
    // A machine that decides must have a C++ compiler to run the GPU kernels with.
    tests.env("PERILUNE_REQUIRE_EMULATOR", "1");
    run_command(tests)?;
    // By itself, as its validator turns on features of crates that are shared.
    run_command(cargo(&["test", "--release", "--package", "perilune-schema-tests"]))?;
    let mut clippy = cargo(&["clippy"]);
    clippy.args(all).args(["--all-targets", "--features", DRIVERS, "--", "-D", "warnings"]);
    run_command(clippy)?;
    let schemas = ["--release", "--package", "perilune-schema-tests", "--all-targets"];
    run_command(cargo(&[&["clippy"], &schemas[..], &["--", "-D", "warnings"]].concat()))?;
    let mut doc = cargo(&["doc", "--release", "--no-deps", "--document-private-items"]);
    doc.env("RUSTDOCFLAGS", "-D warnings -A rustdoc::private-intra-doc-links");
    run_command(doc)?;
    // With the features of the tests, so that nothing is compiled once more.
    let mut programs = cargo(&["build", "--bin", "perilune", "--bin", "gpu-checks"]);
    programs.args(all).args(["--features", EMULATED]);
    run_command(programs)?;
    let mut dry_run = std::process::Command::new("tests/gpu/run");
    dry_run.arg("--dry-run").arg(target().join("release/gpu-checks")).current_dir(root());
    run_command(dry_run)?;
    if with_python {
        let mut python = std::process::Command::new(std::env::var_os("PYTHON").unwrap_or_else(|| "python3".into()));
        python.arg("tests/clients/run.py").current_dir(root());
        run_command(python)?;
    }
    Ok(())
}
