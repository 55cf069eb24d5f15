//! Repository chores: `cargo xtask ci | tidy | golden | bench | build-kernels`.
//!
//! Each chore is an ordinary program over `cargo`, so that what CI runs is what a contributor runs. Nothing here is part
//! of the product.

mod bench;
mod bench_peer;
mod bench_servers;
mod build_kernels;
mod ci;
mod golden;
mod process;
mod tidy;

use anyhow::{Result, bail};

const USAGE: &str = "\
usage: cargo xtask CHORE
  ci [--skip-python]        everything that decides whether a change lands
  tidy                      layering, dependencies, features, licences, headers, names, links
  golden [--regenerate]     the golden runs; --regenerate makes their data again (Python, torch, transformers)
  bench [OPTIONS]           tokens per second and share of memory bandwidth (`cargo xtask bench --help`)
  build-kernels [OPTIONS]   GPU kernels to sources, binaries and a manifest (`cargo xtask build-kernels --help`)";

fn main() -> Result<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let (chore, rest) = args.split_first().map_or(("", &[][..]), |(first, rest)| (first.as_str(), rest));
    match chore {
        "ci" => ci::run(rest),
        "tidy" => tidy::run(),
        "golden" => golden::run(rest),
        "bench" => bench::run(rest),
        "build-kernels" => build_kernels::run(rest),
        "" | "help" | "--help" | "-h" => {
            println!("{USAGE}");
            Ok(())
        }
        other => bail!("unknown chore `{other}`\n{USAGE}"),
    }
}
