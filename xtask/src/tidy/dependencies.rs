//! Layering: which of our crates may use which, and what must stay out of them.
//!
//! The table is the one of `docs/ARCHITECTURE.md`. Normal and build dependencies count, development ones do not.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::Result;
use serde_json::Value;

use crate::process::{cargo, output};

/// Our crates and those of ours that each may use directly.
const LAYERS: &[(&str, &[&str])] = &[
    ("tensor", &[]),
    ("config", &["tensor"]),
    ("reference", &[]),
    ("backend", &["tensor"]),
    ("conformance", &["backend", "reference", "tensor"]),
    ("weights", &["config", "tensor"]),
    ("cache", &["tensor"]),
    ("disk", &["cache", "tensor"]),
    ("sampling", &["tensor"]),
    ("scheduler", &["cache", "sampling", "tensor"]),
    ("model", &["backend", "config", "tensor", "weights"]),
    ("speculate", &["backend", "config", "model", "tensor", "weights"]),
    ("tokenizer", &["config", "tensor"]),
    ("grammar", &["sampling", "tensor", "tokenizer"]),
    ("protocol", &[]),
    ("engine", &["backend", "cache", "config", "disk", "model", "sampling", "scheduler", "speculate", "tensor"]),
    // Trains drafts; only the server's feature `train` builds it.
    ("train", &["backend", "config", "engine", "model", "sampling", "tensor", "tokenizer", "weights"]),
    ("cpu", &["backend", "tensor"]),
    ("kernels-dsl", &[]),
    ("gpu", &["backend", "kernels-dsl", "tensor"]),
    ("cuda", &["gpu", "kernels-dsl"]),
    ("hip", &["gpu", "kernels-dsl"]),
    // The only backend that compiles kernels at run time: it exists for tests.
    ("emulator", &["backend", "gpu", "kernels-dsl"]),
    (
        "server",
        &[
            "backend",
            "config",
            "cpu",
            "cuda",
            "engine",
            "gpu",
            "grammar",
            "hip",
            "kernels-dsl",
            "model",
            "protocol",
            "sampling",
            "speculate",
            "tensor",
            "tokenizer",
            "train",
            "weights",
        ],
    ),
];
/// Packages that may name `serde` itself.
const SERDE_USERS: &[&str] = &["config", "protocol", "server", "tests"];
/// Never below `crates/`, not even through another crate.
const DEVICE_CRATES: &[&str] = &["cudarc", "hyper", "cubecl", "kernels-dsl", "hip-sys", "hip-runtime-sys"];
/// What is served and what people build by default: CubeCL is not compiled for them (`docs/adr/0005`).
const WITHOUT_CUBECL: &[&[&str]] =
    &[&["perilune-server", "--features", "cuda,hip"], &["perilune-gpu"], &["perilune-cuda"], &["perilune-hip"]];
/// Crates of CubeCL that the draft trainer builds: plain data types that burn's arithmetic on the CPU is made of.
const DEVICELESS: &[&str] = &["cubecl-common", "cubecl-environment", "cubecl-zspace"];
/// Packages whose optional parts `cargo metadata` takes for built: the way through them is not followed there,
/// [`check_cubecl`] looks at what is really built.
const OPAQUE: &[&str] = &["kernels-dsl", "burn"];
/// Members that a bare `cargo build` or `cargo test` leaves out, for what they bring with them: CubeCL, burn.
const NOT_BY_DEFAULT: &[&str] =
    &["cuda", "emulator", "gpu-checks", "hip", "kernels-dsl", "schema-tests", "train", "xtask"];
/// Pure data structures: no runtime, no device.
const PURE: &[&str] = &["cache", "scheduler", "sampling"];

struct Package<'a> {
    /// Without the `perilune-` prefix.
    name: &'a str,
    /// Folder relative to the root.
    folder: String,
    direct: BTreeSet<&'a str>,
    /// `cargo metadata` knows one set of features for the whole workspace, in which `kernels-dsl` has CubeCL; so the ways
    /// through [`OPAQUE`] are not followed.
    reachable: BTreeSet<&'a str>,
}

/// Findings of `cargo tree`, which resolves features for one package: whether it would build CubeCL.
pub(super) fn check_cubecl() -> Result<Vec<String>> {
    let mut findings = Vec::new();
    let trainer: &[&str] = &["perilune-train"];
    let all = WITHOUT_CUBECL.iter().map(|package| (*package, &[][..]));
    for (package, allowed) in all.chain([(trainer, DEVICELESS)]) {
        let mut tree = cargo(&["tree", "--locked", "--edges", "normal,build", "--prefix", "none", "--package"]);
        tree.args(package);
        let tree = output(tree)?;
        findings.extend(find_cubecl(&tree, allowed).map(|used| format!("{}: builds {used}", package.join(" "))));
    }
    Ok(findings)
}

fn find_cubecl<'t>(tree: &'t str, allowed: &[&str]) -> Option<&'t str> {
    let allowed = |line: &str| line.split(' ').next().is_some_and(|name| allowed.contains(&name));
    tree.lines().find(|line| line.starts_with("cubecl") && !allowed(line))
}

/// Findings of all workspace members.
pub(super) fn check(metadata: &Value) -> Vec<String> {
    let packages = members(metadata);
    let ours: BTreeSet<&str> = packages.iter().map(|p| p.name).collect();
    let mut findings: Vec<String> = packages.iter().flat_map(|package| check_package(package, &ours)).collect();
    findings.extend(check_default_members(metadata));
    findings
}

/// Findings for members that are built by default and should not be, or the other way round.
fn check_default_members(metadata: &Value) -> Vec<String> {
    let ids = |key: &str| -> BTreeSet<&str> {
        metadata[key].as_array().into_iter().flatten().filter_map(Value::as_str).collect()
    };
    let (members, built) = (ids("workspace_members"), ids("workspace_default_members"));
    let packages = metadata["packages"].as_array().into_iter().flatten();
    let names = packages.filter_map(|p| Some((p["id"].as_str()?, short(p["name"].as_str()?))));
    let wrong = names.filter(|(id, name)| members.contains(id) && built.contains(id) == NOT_BY_DEFAULT.contains(name));
    wrong
        .map(|(id, name)| match built.contains(id) {
            true => format!("{name} is among default-members, but not to be built by default"),
            false => format!("{name} is not among default-members of the root Cargo.toml"),
        })
        .collect()
}

fn check_package(package: &Package<'_>, ours: &BTreeSet<&str>) -> Vec<String> {
    let mut findings = Vec::new();
    let name = package.name;
    let mut say = |what: String| findings.push(format!("{}: {what}", package.folder));
    let layer = LAYERS.iter().find(|(layer, _)| *layer == name);
    let layered = package.folder.starts_with("crates/") || layer.is_some();
    if layered && layer.is_none() {
        say("is not in the table of xtask/src/tidy/dependencies.rs".into());
    }
    let allowed = layer.map(|(_, allowed)| *allowed).unwrap_or_default();
    if layered {
        for used in package.direct.intersection(ours).filter(|used| !allowed.contains(used)) {
            say(format!("may not depend on {used}"));
        }
    }
    if package.direct.contains("serde") && !SERDE_USERS.contains(&name) {
        say("may not name serde".into());
    }
    if package.folder.starts_with("crates/") {
        let device = |d: &&&str| DEVICE_CRATES.contains(d) || d.starts_with("cubecl-");
        for used in package.reachable.iter().filter(device) {
            say(format!("reaches {used}, which belongs to a backend or the server"));
        }
    }
    if package.folder.starts_with("backends/") {
        for runtime in ["cubecl-cuda", "cubecl-hip", "cubecl-wgpu", "cubecl-cpu", "cubecl-runtime"] {
            if package.reachable.contains(runtime) {
                say(format!("reaches {runtime}: kernels are compiled ahead of time"));
            }
        }
    }
    if PURE.contains(&name) {
        for used in ["tokio", "backend"].into_iter().filter(|used| package.reachable.contains(used)) {
            say(format!("reaches {used}: it must stay a pure data structure"));
        }
    }
    findings
}

fn members(metadata: &Value) -> Vec<Package<'_>> {
    let list = |value: &'_ Value| value.as_array().cloned().unwrap_or_default();
    let root = metadata["workspace_root"].as_str().unwrap_or_default();
    let names: BTreeMap<&str, &str> = metadata["packages"]
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(|p| Some((p["id"].as_str()?, short(p["name"].as_str()?))))
        .collect();
    let graph: BTreeMap<&str, Vec<&str>> = metadata["resolve"]["nodes"]
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(|node| {
            let deps = node["deps"].as_array()?.iter().filter(|d| is_built_in(d));
            Some((node["id"].as_str()?, deps.filter_map(|d| d["pkg"].as_str()).collect()))
        })
        .collect();
    let member_ids: BTreeSet<String> =
        list(&metadata["workspace_members"]).iter().filter_map(|m| m.as_str().map(str::to_owned)).collect();
    let packages = metadata["packages"].as_array().map(Vec::as_slice).unwrap_or_default();
    let of_ours = packages.iter().filter(|p| p["id"].as_str().is_some_and(|id| member_ids.contains(id)));
    of_ours
        .filter_map(|p| {
            let id = p["id"].as_str()?;
            let manifest = p["manifest_path"].as_str()?;
            let folder = manifest.strip_prefix(root)?.trim_start_matches('/').trim_end_matches("/Cargo.toml");
            let named = |ids: BTreeSet<&str>| ids.into_iter().filter_map(|id| names.get(id).copied()).collect();
            Some(Package {
                name: names.get(id).copied()?,
                folder: folder.to_owned(),
                direct: graph.get(id)?.iter().filter_map(|id| names.get(id).copied()).collect(),
                reachable: named(reach(&graph, id, &names)),
            })
        })
        .collect()
}

/// Whether a dependency of the resolve graph is a normal or a build one.
fn is_built_in(dependency: &Value) -> bool {
    dependency["dep_kinds"].as_array().into_iter().flatten().any(|kind| kind["kind"].as_str() != Some("dev"))
}

fn reach<'a>(
    graph: &BTreeMap<&'a str, Vec<&'a str>>,
    from: &'a str,
    names: &BTreeMap<&'a str, &'a str>,
) -> BTreeSet<&'a str> {
    let mut seen = BTreeSet::new();
    let mut open: Vec<&str> = graph.get(from).cloned().unwrap_or_default();
    while let Some(id) = open.pop() {
        if seen.insert(id) && names.get(id).is_none_or(|name| !OPAQUE.contains(name)) {
            open.extend(graph.get(id).into_iter().flatten());
        }
    }
    seen
}

fn short(name: &str) -> &str {
    name.strip_prefix("perilune-").unwrap_or(name)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    fn metadata(dependency: &str, kind: Option<&str>) -> serde_json::Value {
        json!({
            "workspace_root": "/r",
            "workspace_members": ["c", "t"],
            "workspace_default_members": ["c", "t"],
            "packages": [
                {"id": "c", "name": "perilune-cache", "manifest_path": "/r/crates/cache/Cargo.toml"},
                {"id": "t", "name": "perilune-tensor", "manifest_path": "/r/crates/tensor/Cargo.toml"},
                {"id": "x", "name": dependency, "manifest_path": "/x/Cargo.toml"},
            ],
            "resolve": {"nodes": [
                {"id": "c", "deps": [{"pkg": "t", "dep_kinds": [{"kind": null}]}, {"pkg": "x", "dep_kinds": [{"kind": kind}]}]},
                {"id": "t", "deps": []},
                {"id": "x", "deps": []},
            ]},
        })
    }

    #[test]
    fn finds_what_must_stay_out() {
        for bad in ["tokio", "hyper", "cudarc", "cubecl-core", "serde"] {
            assert_eq!(super::check(&metadata(bad, None)).len(), 1, "{bad}");
        }
        assert!(super::check(&metadata("bytemuck", None)).is_empty());
    }

    #[test]
    fn finds_cubecl_in_a_tree() {
        assert_eq!(super::find_cubecl("perilune-gpu v0.1.0\ncubecl v0.11.3\n", &[]), Some("cubecl v0.11.3"));
        assert_eq!(super::find_cubecl("perilune-gpu v0.1.0\nperilune-kernels-dsl v0.1.0\n", &[]), None);
        let tree = "burn v0.22.1\ncubecl-common v0.11.3\ncubecl-cuda v0.11.3\n";
        assert_eq!(super::find_cubecl(tree, super::DEVICELESS), Some("cubecl-cuda v0.11.3"));
    }

    #[test]
    fn finds_members_that_are_wrongly_built_or_not_built_by_default() {
        let mut without = metadata("bytemuck", None);
        without["workspace_default_members"] = json!(["c"]);
        assert_eq!(super::check(&without), ["tensor is not among default-members of the root Cargo.toml"]);
        without["packages"][1]["name"] = json!("perilune-xtask");
        assert!(super::check_default_members(&without).is_empty());
        without["workspace_default_members"] = json!(["c", "t"]);
        assert_eq!(
            super::check_default_members(&without),
            ["xtask is among default-members, but not to be built by default"]
        );
    }

    #[test]
    fn development_dependencies_do_not_count() {
        assert!(super::check(&metadata("tokio", Some("dev"))).is_empty());
    }
}
