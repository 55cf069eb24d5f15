//! Tokens per second of the demo and of generated 300M-parameter checkpoints, with the share of memory bandwidth reached.
//!
//! All rows come from one run of one binary, so that their ratios mean something. Checkpoints are generated once, under
//! `target/bench-models`.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

use crate::bench_peer::Peer;
use crate::bench_servers::ServerPeer;
use crate::process::{cargo, output, root, run as run_command};

/// Name of a generated model, its configuration, and how its experts are stored.
const GENERATED: &[(&str, &str, &str)] = &[
    ("mid-k3-bf16", "xtask/bench-models/mid-k3.json", "bf16"),
    ("mid-k3-mxfp4", "xtask/bench-models/mid-k3.json", "mxfp4"),
    ("mid-kimi-linear-bf16", "xtask/bench-models/mid-kimi-linear.json", "bf16"),
];
/// Those that are compared with llama.cpp, which knows K3 with its full output gate only.
const COMPARED: &[(&str, &str, &str)] = &[
    ("mid-kimi-linear-bf16", "xtask/bench-models/mid-kimi-linear.json", "bf16"),
    ("mid-k3-full-gate-bf16", "xtask/bench-models/mid-k3-full-gate.json", "bf16"),
];

const USAGE: &str = "\
usage: cargo xtask bench [--json] [--models NAME,…] [-- OPTIONS OF `perilune bench`]
       cargo xtask bench --peer DIR [--rounds N] [--threads N] [--json] [--models NAME,…]
       cargo xtask bench --server-peer DIR [--rounds N] [--threads N] [--json] [--models NAME,…]
--peer: the programs of llama.cpp in DIR and ours take turns on the same weights,
        mid-kimi-linear-bf16 and mid-k3-full-gate-bf16
--server-peer: the same for llama-server in DIR and `perilune serve`: four chats that begin alike, and 16 clients
models: demo, mid-k3-bf16, mid-k3-mxfp4, mid-kimi-linear-bf16; all of them where not named";

struct Options {
    json: bool,
    models: Option<Vec<String>>,
    peer: Option<PathBuf>,
    server_peer: Option<PathBuf>,
    rounds: usize,
    threads: usize,
    passed_on: Vec<String>,
}

/// Generates what is missing and measures each model.
pub(crate) fn run(args: &[String]) -> Result<()> {
    let Some(options) = parse(args)? else {
        println!("{USAGE}");
        return Ok(());
    };
    run_command(cargo(&["build", "--release", "--package", "perilune-server"]))?;
    let wanted = |name: &str| options.models.as_ref().is_none_or(|models| models.iter().any(|m| m == name));
    let mut measured = Vec::new();
    let compared = COMPARED.iter().filter(|(name, ..)| wanted(name));
    let (rounds, threads) = (options.rounds, options.threads);
    if let Some(programs) = options.peer.clone() {
        let peer = Peer { programs, rounds, threads };
        for (name, config, experts) in compared {
            measured.push(peer.compare(name, &generate(name, config, experts)?)?);
        }
    } else if let Some(programs) = options.server_peer.clone() {
        let peer = ServerPeer { programs, rounds, threads };
        for (name, config, experts) in compared {
            measured.push(peer.compare(name, &generate(name, config, experts)?)?);
        }
    } else {
        if wanted("demo") {
            measured.push(measure("demo", &root().join("models/demo"), &options)?);
        }
        for (name, config, experts) in GENERATED.iter().filter(|(name, ..)| wanted(name)) {
            measured.push(measure(name, &generate(name, config, experts)?, &options)?);
        }
    }
    if options.json {
        println!("{}", serde_json::to_string_pretty(&serde_json::Value::Array(measured))?);
    }
    Ok(())
}

/// `None` asks for the usage.
fn parse(args: &[String]) -> Result<Option<Options>> {
    let mut options = Options {
        json: false,
        models: None,
        peer: None,
        server_peer: None,
        rounds: 3,
        threads: 2,
        passed_on: Vec::new(),
    };
    let mut rest = args.iter();
    while let Some(arg) = rest.next() {
        match arg.as_str() {
            "--json" => options.json = true,
            "--models" => {
                let names = rest.next().context("--models needs names")?;
                let names: Vec<String> = names.split(',').map(str::to_owned).collect();
                let known =
                    |name: &str| name == "demo" || GENERATED.iter().chain(COMPARED).any(|(known, ..)| *known == name);
                if let Some(unknown) = names.iter().find(|name| !known(name)) {
                    bail!("--models: `{unknown}` is not a model\n{USAGE}");
                }
                options.models = Some(names);
            }
            "--peer" => options.peer = Some(rest.next().context("--peer needs a directory")?.into()),
            "--server-peer" => {
                options.server_peer = Some(rest.next().context("--server-peer needs a directory")?.into())
            }
            "--rounds" => options.rounds = number(rest.next(), "--rounds")?,
            "--threads" => options.threads = number(rest.next(), "--threads")?,
            "--" => {
                options.passed_on.extend(rest.by_ref().cloned());
            }
            "--help" | "-h" => return Ok(None),
            other => bail!("unknown option `{other}`\n{USAGE}"),
        }
    }
    Ok(Some(options))
}

fn number(text: Option<&String>, flag: &str) -> Result<usize> {
    let number = text.and_then(|text| text.parse().ok()).filter(|number| *number > 0);
    number.with_context(|| format!("{flag} needs a number from 1"))
}

/// The folder of a generated checkpoint, written where it is missing. A half-written one has no final name.
fn generate(name: &str, config: &str, experts: &str) -> Result<PathBuf> {
    let folder = root().join("target/bench-models").join(name);
    if folder.is_dir() {
        return Ok(folder);
    }
    let unfinished = folder.with_extension("unfinished");
    std::fs::create_dir_all(&unfinished)?;
    let mut command =
        cargo(&["run", "--release", "--quiet", "--package", "perilune-server", "--", "bench-model", config]);
    command.arg(&unfinished).args(["--experts", experts]);
    run_command(command)?;
    std::fs::rename(&unfinished, &folder)?;
    Ok(folder)
}

/// Runs `perilune bench` on one model; its JSON where that was asked for, else it prints its table itself.
fn measure(name: &str, folder: &Path, options: &Options) -> Result<serde_json::Value> {
    let mut command = cargo(&["run", "--release", "--quiet", "--package", "perilune-server", "--", "bench", "--model"]);
    command.arg(folder).args(&options.passed_on);
    if !options.json {
        println!("\n{name}");
        run_command(command)?;
        return Ok(serde_json::Value::Null);
    }
    command.arg("--json");
    let rows: serde_json::Value = serde_json::from_str(&output(command)?).context("`perilune bench --json`")?;
    Ok(serde_json::json!({ "model": name, "rows": rows }))
}

#[cfg(test)]
mod tests {
    use super::parse;

    #[test]
    fn options() {
        let words = |text: &str| text.split(' ').map(str::to_owned).collect::<Vec<_>>();
        let options = parse(&words("--json --models demo,mid-k3-bf16 -- --batch 1")).unwrap().unwrap();
        assert!(options.json);
        assert_eq!(options.models.unwrap(), ["demo", "mid-k3-bf16"]);
        assert_eq!(options.passed_on, ["--batch", "1"]);
        let options = parse(&words("--peer somewhere --rounds 5")).unwrap().unwrap();
        assert_eq!((options.peer.unwrap().to_str(), options.rounds), (Some("somewhere"), 5));
        assert!(parse(&words("--rounds 0")).is_err());
        assert!(parse(&words("--models nonsense")).is_err());
        assert!(parse(&words("--jsn")).is_err());
    }
}
