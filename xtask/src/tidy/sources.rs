//! Rust files: header, length, name; text files: no path of somebody's machine.

use std::path::Path;

use anyhow::Result;

use crate::process::root;

/// A file longer than this says in its header why, on a line that begins with `//! Long because`.
const MAX_LINES: usize = 450;
/// Names that say nothing about what is inside.
const EMPTY_NAMES: &[&str] = &["utils", "util", "helpers", "helper", "common", "types", "misc"];
/// Paths of a particular machine; written in two halves so that this file does not find itself.
const MACHINE_PATHS: &[&str] = &[concat!("/", "work/"), concat!("/", "root/"), concat!("/", "home/")];

/// Findings of all source files.
pub(super) fn check(files: &[String]) -> Result<Vec<String>> {
    let mut findings = Vec::new();
    for file in files {
        let Ok(text) = String::from_utf8(std::fs::read(root().join(file))?) else { continue };
        if file.ends_with(".rs") {
            findings.extend(check_rust(file, &text));
        }
        let machine = MACHINE_PATHS.iter().find(|path| text.contains(**path));
        findings.extend(machine.map(|path| format!("{file}: names a path of one machine, `{path}`")));
    }
    Ok(findings)
}

fn check_rust(file: &str, text: &str) -> Vec<String> {
    let mut findings = Vec::new();
    if !text.starts_with("//!") {
        findings.push(format!("{file}: does not begin with a `//!` header"));
    }
    let lines = text.lines().count();
    if lines > MAX_LINES && !text.lines().any(|line| line.starts_with("//! Long because")) {
        findings.push(format!("{file}: {lines} lines; split it, or say why in a header line `//! Long because …`"));
    }
    let stem = Path::new(file).file_stem().map(|s| s.to_string_lossy().into_owned()).unwrap_or_default();
    if EMPTY_NAMES.contains(&stem.as_str()) {
        findings.push(format!("{file}: the name says nothing about what is inside"));
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::check_rust;

    #[test]
    fn rules() {
        assert_eq!(check_rust("a/b.rs", "//! Fine.\n"), Vec::<String>::new());
        assert_eq!(check_rust("a/utils.rs", "fn x() {}\n").len(), 2);
        let long = format!("//! Long.\n{}", "\n".repeat(500));
        assert_eq!(check_rust("a/b.rs", &long).len(), 1);
        assert_eq!(check_rust("a/b.rs", &format!("//! X.\n//! Long because of a table.\n{long}")).len(), 0);
    }
}
