//! The generated sources are those that `kernels.lock` lists: a change of kernels shows in a review.
#![cfg(feature = "compile")]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // all of it is test code

use std::collections::{BTreeMap, BTreeSet};

use perilune_kernels_dsl::Target;
use perilune_kernels_dsl::catalogue::{Shapes, variants};
use perilune_kernels_dsl::compile::source;
use sha2::{Digest, Sha256};

/// Hashes by family and name.
fn generated() -> BTreeMap<String, String> {
    let models = Shapes::known().unwrap();
    let mut all = BTreeMap::new();
    for (family, target) in [("cuda", Target::CUDA), ("hip", Target::HIP)] {
        for variant in variants(&models, target) {
            let kernel = source(&variant, target).unwrap();
            let hash = Sha256::digest(kernel.text.as_bytes());
            let hash: String = hash.iter().map(|byte| format!("{byte:02x}")).collect();
            all.insert(format!("{family}/{}", kernel.name), hash);
        }
    }
    all
}

#[test]
fn sources_are_those_of_the_lock_file() {
    let text = include_str!("../kernels.lock");
    let lines = text.lines().filter(|line| !line.starts_with('#')).filter_map(|line| line.split_once("  "));
    let locked: BTreeMap<String, String> = lines.map(|(hash, name)| (name.to_owned(), hash.to_owned())).collect();
    let generated = generated();
    let differs = |name: &&String| locked.get(*name) != generated.get(*name);
    let names: BTreeSet<&String> = locked.keys().chain(generated.keys()).collect();
    let changed: Vec<&String> = names.into_iter().filter(differs).collect();
    let some = &changed[..changed.len().min(5)];
    assert!(
        changed.is_empty(),
        "run `cargo xtask build-kernels --lock`: {} differ, among them {some:?}",
        changed.len()
    );
    assert!(generated.len() > 100, "{} sources", generated.len());
}
