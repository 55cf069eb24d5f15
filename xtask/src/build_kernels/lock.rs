//! `kernels-dsl/kernels.lock`: a hash of every generated source, so that a review sees which kernels a change touches.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;

use anyhow::{Context, Result, bail};
use sha2::{Digest, Sha256};

use super::emitted::Source;
use crate::process::root;

const HEADER: &str = "# SHA-256 of every generated kernel source. Written by `cargo xtask build-kernels --lock`.\n";

/// Lower-case hexadecimal.
pub(super) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}

/// The hash of some bytes.
pub(super) fn sha256(bytes: &[u8]) -> String {
    hex(&Sha256::digest(bytes))
}

fn path() -> PathBuf {
    root().join("kernels-dsl/kernels.lock")
}

/// Writes the lock file.
///
/// # Errors
/// Where it cannot be written.
pub(super) fn write(sources: &[Source]) -> Result<()> {
    let path = path();
    fs::write(&path, render(sources)).with_context(|| path.display().to_string())
}

/// Compares the sources with the lock file.
///
/// # Errors
/// Lists what was added, removed or changed.
pub(super) fn check(sources: &[Source]) -> Result<()> {
    let path = path();
    let locked = fs::read_to_string(&path).with_context(|| path.display().to_string())?;
    let differences = compare(&parse(&locked), &parse(&render(sources)));
    if differences.is_empty() {
        eprintln!("build-kernels: {} sources as in kernels.lock", sources.len());
        return Ok(());
    }
    for difference in &differences {
        eprintln!("build-kernels: {difference}");
    }
    bail!("kernels-dsl/kernels.lock is not up to date: run `cargo xtask build-kernels --lock`")
}

fn render(sources: &[Source]) -> String {
    let lines: BTreeMap<String, String> =
        sources.iter().map(|s| (format!("{}/{}", s.family.name(), s.name), sha256(s.text.as_bytes()))).collect();
    let lines: String = lines.iter().map(|(name, hash)| format!("{hash}  {name}\n")).collect();
    format!("{HEADER}{lines}")
}

/// Name to hash.
fn parse(text: &str) -> BTreeMap<&str, &str> {
    let lines = text.lines().filter(|l| !l.starts_with('#'));
    lines.filter_map(|l| l.split_once("  ")).map(|(hash, name)| (name, hash)).collect()
}

fn compare(locked: &BTreeMap<&str, &str>, found: &BTreeMap<&str, &str>) -> Vec<String> {
    let gone = locked.keys().filter(|n| !found.contains_key(*n)).map(|n| format!("{n} is gone"));
    let rest = found.iter().filter_map(|(name, hash)| match locked.get(name) {
        None => Some(format!("{name} is new")),
        Some(old) if old != hash => Some(format!("{name} has changed")),
        Some(_) => None,
    });
    gone.chain(rest).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn differences_are_named() {
        let locked = parse("# x\n11  cuda/a\n22  cuda/b\n33  hip/c\n");
        let found = parse("11  cuda/a\n23  cuda/b\n44  hip/d\n");
        assert_eq!(compare(&locked, &found), ["hip/c is gone", "cuda/b has changed", "hip/d is new"]);
        assert!(compare(&locked, &locked).is_empty());
    }

    #[test]
    fn hashes_are_those_of_everyone_else() {
        assert_eq!(sha256(b"abc"), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
    }
}
