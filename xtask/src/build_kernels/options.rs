//! The command line of `cargo xtask build-kernels`.

use std::path::PathBuf;

use anyhow::{Result, bail};

use crate::process::target;

/// How to call the command.
pub(super) const USAGE: &str = "\
usage: cargo xtask build-kernels [OPTIONS]
  --target cuda|hip|all     which sources and binaries (default all)
  --arch LIST               of sm_90a, sm_100a, gfx942, gfx950 (default: all of the target)
  --model FILE              a config.json; may be given several times (default: every shape in the catalogue)
  --checks                  instead of the catalogue: what `tests/gpu/run` launches, found by running it on the emulator
  --out DIR                 where to write (default target/kernels)
  --check                   only compare the generated sources with kernels-dsl/kernels.lock; needs no compiler
  --lock                    only write kernels-dsl/kernels.lock; needs no compiler
  --update                  build, and write kernels-dsl/kernels.lock and docs/kernels.md as well";

/// Language that a kernel is generated in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Family {
    /// CUDA C++.
    Cuda,
    /// HIP C++.
    Hip,
}

impl Family {
    /// As in paths and options.
    pub(super) fn name(self) -> &'static str {
        match self {
            Family::Cuda => "cuda",
            Family::Hip => "hip",
        }
    }
}

/// Every architecture that kernels are built for.
pub(super) const ARCHITECTURES: &[(&str, Family)] =
    &[("sm_90a", Family::Cuda), ("sm_100a", Family::Cuda), ("gfx942", Family::Hip), ("gfx950", Family::Hip)];

/// What to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Mode {
    /// Compile everything.
    Build,
    /// Compare sources with the lock file.
    Check,
    /// Write the lock file.
    Lock,
    /// Compile, then write the lock file and the table.
    Update,
}

/// Which kernels.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Which {
    /// Those of models.
    Catalogue,
    /// Those that the checks of a GPU launch, and the known models' as well.
    Checks,
}

/// The parsed command line.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Options {
    pub(super) mode: Mode,
    pub(super) which: Which,
    pub(super) architectures: Vec<(&'static str, Family)>,
    pub(super) models: Vec<PathBuf>,
    pub(super) out: PathBuf,
}

impl Options {
    /// Reads the arguments after the chore's name.
    ///
    /// # Errors
    /// Says what is unknown or contradictory.
    pub(super) fn parse(args: &[String]) -> Result<Options> {
        let mut options = Options {
            mode: Mode::Build,
            which: Which::Catalogue,
            architectures: Vec::new(),
            models: Vec::new(),
            out: default_out(),
        };
        let (mut target, mut chosen) = ("all".to_owned(), None);
        let mut args = args.iter();
        while let Some(name) = args.next() {
            let mut value = || args.next().cloned().ok_or_else(|| anyhow::anyhow!("{name} needs a value\n{USAGE}"));
            match name.as_str() {
                "--target" => target = value()?,
                "--arch" => chosen = Some(value()?),
                "--model" => options.models.push(value()?.into()),
                "--out" => options.out = value()?.into(),
                "--checks" => options.which = Which::Checks,
                "--check" => options.mode = Mode::Check,
                "--lock" => options.mode = Mode::Lock,
                "--update" => options.mode = Mode::Update,
                _ => bail!("unknown option `{name}`\n{USAGE}"),
            }
        }
        options.architectures = architectures(&target, chosen.as_deref())?;
        let all = options.architectures.len() == ARCHITECTURES.len() && options.models.is_empty();
        let catalogue = options.which == Which::Catalogue;
        if options.mode != Mode::Build && !(all && catalogue) {
            bail!(
                "--check, --lock and --update are about the whole catalogue: leave out --target, --arch, --model and --checks"
            );
        }
        if !catalogue && !options.models.is_empty() {
            bail!("--checks has its own models: leave out --model");
        }
        Ok(options)
    }

    /// The languages needed.
    pub(super) fn families(&self) -> Vec<Family> {
        let has = |f: &Family| self.architectures.iter().any(|(_, family)| family == f);
        [Family::Cuda, Family::Hip].into_iter().filter(has).collect()
    }
}

fn default_out() -> PathBuf {
    target().join("kernels")
}

fn architectures(target: &str, chosen: Option<&str>) -> Result<Vec<(&'static str, Family)>> {
    let families = match target {
        "cuda" => vec![Family::Cuda],
        "hip" => vec![Family::Hip],
        "all" => vec![Family::Cuda, Family::Hip],
        other => bail!("unknown target `{other}`: cuda, hip or all"),
    };
    let of_target: Vec<_> = ARCHITECTURES.iter().copied().filter(|(_, f)| families.contains(f)).collect();
    let Some(chosen) = chosen else { return Ok(of_target) };
    let find = |name: &str| {
        let found = of_target.iter().copied().find(|(known, _)| *known == name);
        found.ok_or_else(|| anyhow::anyhow!("architecture `{name}` is not one of target {target}"))
    };
    chosen.split(',').map(find).collect()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn parse(text: &str) -> Result<Options> {
        Options::parse(&text.split_whitespace().map(str::to_owned).collect::<Vec<_>>())
    }

    #[test]
    fn targets_and_architectures() {
        assert_eq!(parse("").unwrap().architectures, ARCHITECTURES);
        let hip = parse("--target hip --arch gfx950").unwrap();
        assert_eq!((hip.architectures.clone(), hip.families()), (vec![("gfx950", Family::Hip)], vec![Family::Hip]));
        for wrong in ["--target hip --arch sm_90a", "--arch gfx90a", "--target metal", "--arch", "--fast"] {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn the_table_covers_every_architecture() {
        assert!(parse("--update --target cuda").is_err());
        assert!(parse("--check --model x.json").is_err());
        assert!(parse("--lock --target hip").is_err());
        assert!(parse("--check --checks").is_err() && parse("--checks --model x.json").is_err());
        assert_eq!(parse("--checks --arch sm_90a").unwrap().which, Which::Checks);
        assert_eq!(parse("--check").unwrap().mode, Mode::Check);
        assert_eq!(parse("--lock").unwrap().mode, Mode::Lock);
    }
}
