//! `cargo xtask build-kernels`: every kernel of the catalogue as sources, binaries and a manifest, without a GPU.
//!
//! The emitter of `kernels-dsl` writes CUDA C++ and HIP C++; pinned compilers, fetched once, make cubins and code objects
//! of them; what they say about registers and memory accesses goes into the manifest and into `docs/kernels.md`.

mod compile;
mod emitted;
mod hip;
mod inspect;
mod lock;
mod nvrtc;
mod options;
mod table;
mod toolchain;
mod traffic;

use std::fs;

use anyhow::{Context, Result, bail};
use serde_json::{Value, json};

use compile::{Binary, Compilers};
use emitted::Source;
use options::{Mode, Options, USAGE};
use toolchain::Toolchain;
use traffic::Traffic;

/// Runs the chore.
pub(crate) fn run(args: &[String]) -> Result<()> {
    if args.iter().any(|a| a == "--help" || a == "-h") {
        println!("{USAGE}");
        return Ok(());
    }
    let options = Options::parse(args)?;
    let sources = emitted::emit(&options)?;
    match options.mode {
        Mode::Check => return lock::check(&sources),
        Mode::Lock => return lock::write(&sources),
        Mode::Build | Mode::Update => {}
    }
    let toolchain = Toolchain::prepare(&options.families())?;
    let compilers = Compilers::load(&toolchain, &options.families(), &options.out)?;
    let mut binaries = Vec::new();
    for architecture in &options.architectures {
        eprintln!("── {}", architecture.0);
        binaries.extend(compilers.build(*architecture, &sources)?);
    }
    let traffic = match (traffic::count(), options.mode) {
        (Ok(traffic), _) => traffic,
        (Err(error), Mode::Update) => return Err(error),
        (Err(error), _) => {
            eprintln!("build-kernels: bytes moved are left out: {error}");
            Traffic::new()
        }
    };
    write_manifest(&options, &sources, (&binaries, &traffic))?;
    print!("{}", table::render(&sources, (&binaries, &traffic)));
    eprintln!("build-kernels: {} binaries of {} sources in {}", binaries.len(), sources.len(), options.out.display());
    if options.mode == Mode::Update {
        lock::write(&sources)?;
        table::write(&sources, (&binaries, &traffic))?;
    }
    refuse_spills(&binaries)
}

/// `manifest.json`: per kernel what the emitter said, and its binaries.
fn write_manifest(options: &Options, sources: &[Source], (binaries, traffic): (&[Binary], &Traffic)) -> Result<()> {
    let families = options.families();
    let compilers: Vec<String> = families.iter().flat_map(|f| toolchain::versions(*f)).collect();
    let kernels: Vec<Value> = sources.iter().map(|source| kernel(source, (binaries, traffic))).collect();
    let manifest = json!({ "version": 1, "compilers": compilers, "kernels": kernels });
    let path = options.out.join("manifest.json");
    fs::write(&path, serde_json::to_string_pretty(&manifest)?).with_context(|| path.display().to_string())
}

fn kernel(source: &Source, (binaries, traffic): (&[Binary], &Traffic)) -> Value {
    let of_family = options::ARCHITECTURES.iter().filter(|(_, f)| *f == source.family).map(|(a, _)| *a);
    let of_family: Vec<&str> = of_family.collect();
    let mine = binaries.iter().filter(|b| b.kernel == source.name && of_family.contains(&b.architecture));
    let mut facts = source.facts.clone();
    facts["target"] = source.family.name().into();
    facts["bytes"] = traffic.get(&source.name).map(|(moved, least)| json!({ "moved": moved, "least": least })).into();
    facts["source_sha256"] = lock::sha256(source.text.as_bytes()).into();
    let binary = |b: &Binary| {
        let mut entry = b.report.json();
        entry["file"] = b.file.clone().into();
        entry["sha256"] = b.sha256.clone().into();
        (b.architecture.to_owned(), entry)
    };
    facts["binaries"] = mine.map(binary).collect();
    facts
}

/// Kernels that read memory once and do little else: what they spilled would be a large part of what they move.
const NEVER_SPILLS: &[&str] = &["kda_decode", "kda_verify", "kda_fold", "mla_", "linear_", "moe_"];

/// Names kernels that spill; fails for those that must not.
fn refuse_spills(binaries: &[Binary]) -> Result<()> {
    let mut refused = Vec::new();
    for binary in binaries.iter().filter(|b| b.report.spilled_bytes > 0) {
        let what = format!("{} on {}: {} bytes", binary.kernel, binary.architecture, binary.report.spilled_bytes);
        eprintln!("build-kernels: spills: {what}");
        if NEVER_SPILLS.iter().any(|prefix| binary.kernel.starts_with(prefix)) {
            refused.push(what);
        }
    }
    if !refused.is_empty() {
        bail!("kernels that must not spill registers do: {}", refused.join(", "));
    }
    Ok(())
}
