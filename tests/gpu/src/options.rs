//! The command line.

use std::path::PathBuf;

use anyhow::{Result, bail};

const USAGE: &str = "\
usage: gpu-checks [--backend cuda|hip --kernels DIR]   on a GPU
       gpu-checks --backend emulator                   the same way at small sizes, without a GPU
       gpu-checks traffic                              bytes that kernels of the table move and must move, as JSON
       gpu-checks kernels --out DIR                    sources of the kernels that the checks launch";

/// How large measurements are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Size {
    /// K3's.
    Model,
    /// What the emulator can do.
    Small,
}

/// What to do.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum What {
    Checks { backend: String, kernels: Option<PathBuf> },
    Kernels { out: PathBuf },
    Traffic,
}

/// The parsed command line.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Options {
    pub(crate) what: What,
    pub(crate) size: Size,
}

impl Options {
    pub(crate) fn parse(args: impl Iterator<Item = String>) -> Result<Options> {
        let (mut backend, mut kernels, mut out, mut word) = (None, None, None, None);
        let mut args = args;
        while let Some(name) = args.next() {
            let mut value = || args.next().ok_or_else(|| anyhow::anyhow!("{name} needs a value\n{USAGE}"));
            match name.as_str() {
                "kernels" | "traffic" => word = Some(name.clone()),
                "--backend" => backend = Some(value()?),
                "--kernels" => kernels = Some(PathBuf::from(value()?)),
                "--out" => out = Some(PathBuf::from(value()?)),
                _ => bail!("unknown argument `{name}`\n{USAGE}"),
            }
        }
        let what = match (word.as_deref(), backend, out) {
            (Some("kernels"), None, Some(out)) => What::Kernels { out },
            (Some("traffic"), None, None) => What::Traffic,
            (None, Some(backend), None) => What::Checks { backend, kernels },
            _ => bail!("{USAGE}"),
        };
        let small = matches!(&what, What::Checks { backend, .. } if backend == "emulator");
        Ok(Options { what, size: if small { Size::Small } else { Size::Model } })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<Options> {
        Options::parse(text.split_whitespace().map(str::to_owned))
    }

    #[test]
    fn what_is_asked_for() {
        let dry = parse("--backend emulator").unwrap();
        assert_eq!((dry.size, dry.what), (Size::Small, What::Checks { backend: "emulator".into(), kernels: None }));
        assert_eq!(parse("--backend cuda --kernels k").unwrap().size, Size::Model);
        assert_eq!(parse("kernels --out d").unwrap().what, What::Kernels { out: "d".into() });
        assert_eq!(parse("traffic").unwrap().what, What::Traffic);
        for wrong in ["", "kernels", "traffic --out d", "--backend", "--fast", "kernels --backend cuda --out d"] {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
    }
}
