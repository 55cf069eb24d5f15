//! `docs/kernels.md`: the table of what the compilers made of every kernel.

use std::fmt::Write as _;
use std::fs;

use anyhow::{Context, Result};

use super::compile::Binary;
use super::emitted::Source;
use super::options::{ARCHITECTURES, Family};
use super::toolchain;
use super::traffic::Traffic;
use crate::process::root;

/// Writes the table over all kernels and architectures.
///
/// # Errors
/// Where it cannot be written.
pub(super) fn write(sources: &[Source], built: (&[Binary], &Traffic)) -> Result<()> {
    let path = root().join("docs/kernels.md");
    fs::write(&path, render(sources, built)).with_context(|| path.display().to_string())
}

/// The table as text.
pub(super) fn render(sources: &[Source], (binaries, traffic): (&[Binary], &Traffic)) -> String {
    let versions = [toolchain::versions(Family::Cuda), toolchain::versions(Family::Hip)].concat().join(", ");
    let mut text = format!(
        "# Kernels\n\nWritten by `cargo xtask build-kernels --update`; not to be edited. Every figure is read from what \
         the pinned compilers\n({versions})\nmade, or counted by the emulator; none comes from a device.\n\n\
         * **regs**: vector registers of a unit. **spill**: bytes spilled per unit. **stack**: bytes of stack per unit.\n\
         * **loads**, **stores**: instructions that access global memory, `count × bytes`, widest first.\n\
         * **shared**: bytes of shared memory of a block. **units**: threads of a block.\n"
    );
    let mut kernels: Vec<&str> = sources.iter().map(|s| s.name.as_str()).collect();
    kernels.sort_unstable();
    kernels.dedup();
    let built = |(architecture, _): &&(&str, Family)| binaries.iter().any(|b| b.architecture == *architecture);
    for (architecture, family) in ARCHITECTURES.iter().filter(built) {
        let _ = write!(
            text,
            "\n## {architecture}\n\n| kernel | units | shared | regs | spill | stack | loads | stores |\n\
             | --- | --: | --: | --: | --: | --: | --- | --- |\n"
        );
        for name in &kernels {
            let source = sources.iter().find(|s| s.family == *family && s.name == *name);
            let binary = binaries.iter().find(|b| b.architecture == *architecture && b.kernel == *name);
            if let (Some(source), Some(binary)) = (source, binary) {
                text.push_str(&row(source, binary));
            }
        }
    }
    text.push_str(&bytes(traffic));
    text
}

/// What kernels move against what they must.
fn bytes(traffic: &Traffic) -> String {
    if traffic.is_empty() {
        return String::new();
    }
    let mut text = "\n## Bytes moved\n\nCounted by the emulator, every access of every unit, at the sizes of `tests/gpu/run \
                    --dry-run`: the buffers that make up\nmost of what a kernel touches. **least**: different bytes read, and \
                    different bytes written. What is read more than once comes\nfrom a cache on a device. With more than two heads (four where planes are 64 wide) further planes of mla_attend read \
                    each latent\nagain.\n\n\
                    | kernel | moved | least | moved / least |\n| --- | --: | --: | --: |\n"
        .to_owned();
    for (name, (moved, least)) in traffic {
        let ratio = *moved as f64 / (*least).max(1) as f64;
        let _ = writeln!(text, "| {name} | {moved} | {least} | {ratio:.2} |");
    }
    text
}

fn row(source: &Source, binary: &Binary) -> String {
    let (facts, report) = (&source.facts, &binary.report);
    format!(
        "| {} | {} | {} | {} | {} | {} | {} | {} |\n",
        source.name,
        facts["units"],
        facts["shared_bytes"],
        report.registers,
        report.spilled_bytes,
        report.stack_bytes,
        widths(&report.loads),
        widths(&report.stores)
    )
}

/// `4 × 16, 1 × 4`.
fn widths(counts: &[(u32, u32)]) -> String {
    counts.iter().map(|(width, count)| format!("{count} × {width}")).collect::<Vec<_>>().join(", ")
}
