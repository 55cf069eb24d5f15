//! `cargo run` and `cargo test` share what they build: no test dependency turns on a feature of what the server is made of.
//!
//! One such feature low in the tree compiles everything above it a second time. `server/Cargo.toml` names the features
//! that tests ask for.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::Result;

use crate::process::{cargo, output};

/// The feature lists with which each package is built; several where build scripts use it, too.
type Features = BTreeMap<String, BTreeSet<String>>;

/// Findings: packages that the server and the tests build with different features.
pub(super) fn check() -> Result<Vec<String>> {
    let run = tree(&["--package", "perilune-server", "--edges", "normal,build"])?;
    let test = tree(&["--edges", "normal,build,dev"])?;
    Ok(differences(&run, &test))
}

fn differences(run: &Features, test: &Features) -> Vec<String> {
    let shared = run.iter().filter_map(|(package, features)| Some((package, features, test.get(package)?)));
    let differ = shared.filter(|(_, features, under_test)| !features.is_subset(under_test));
    differ
        .map(|(package, features, under_test)| {
            format!("{package} is built twice: with features {features:?} to run, {under_test:?} to test")
        })
        .collect()
}

fn tree(args: &[&str]) -> Result<Features> {
    let mut command = cargo(&["tree", "--locked", "--prefix", "none", "--no-dedupe", "--format", "{p}\t{f}"]);
    command.args(args);
    Ok(parse(&output(command)?))
}

fn parse(lines: &str) -> Features {
    let mut features = Features::new();
    for (package, list) in lines.lines().filter_map(|line| line.split_once('\t')) {
        features.entry(package.to_owned()).or_default().insert(list.to_owned());
    }
    features
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_feature_that_only_tests_turn_on_is_found() {
        let run = parse("tokio v1.0.0\tnet,sync\nlibc v0.2.0\t\n\nonly-here v1.0.0\tx\n");
        let test = parse("tokio v1.0.0\tnet,sync,test-util\nlibc v0.2.0\t\nlibc v0.2.0\tstd\n");
        let findings = differences(&run, &test);
        assert_eq!(findings.len(), 1, "{findings:?}");
        assert!(findings[0].starts_with("tokio v1.0.0 is built twice"), "{findings:?}");
    }
}
