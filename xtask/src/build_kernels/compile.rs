//! Sources to binaries, for one architecture after another.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

use super::emitted::Source;
use super::hip::Clang;
use super::inspect::{self, Report};
use super::lock::sha256;
use super::nvrtc::{Nvrtc, Thrift};
use super::options::Family;
use super::toolchain::Toolchain;

/// One kernel compiled for one architecture.
pub(super) struct Binary {
    /// Name of its [`Source`].
    pub(super) kernel: String,
    pub(super) architecture: &'static str,
    /// Relative to the output folder.
    pub(super) file: String,
    pub(super) sha256: String,
    pub(super) report: Report,
}

/// The compilers that the chosen architectures need, and where binaries go.
pub(super) struct Compilers<'a> {
    toolchain: &'a Toolchain,
    nvrtc: Option<Nvrtc>,
    clang: Option<Clang>,
    out: &'a Path,
}

impl Compilers<'_> {
    /// Loads the compilers of these families.
    ///
    /// # Errors
    /// Where one cannot be loaded.
    pub(super) fn load<'a>(toolchain: &'a Toolchain, families: &[Family], out: &'a Path) -> Result<Compilers<'a>> {
        let has = |family| families.contains(&family);
        Ok(Compilers {
            toolchain,
            nvrtc: has(Family::Cuda).then(|| Nvrtc::load(toolchain)).transpose()?,
            clang: has(Family::Hip).then(|| Clang::prepare(toolchain)).transpose()?,
            out,
        })
    }

    /// Compiles every source of the architecture's family.
    ///
    /// # Errors
    /// Names the kernel that a compiler refused.
    pub(super) fn build(&self, architecture: (&'static str, Family), sources: &[Source]) -> Result<Vec<Binary>> {
        let (name, family) = architecture;
        fs::create_dir_all(self.out.join(name))?;
        let of_family: Vec<&Source> = sources.iter().filter(|s| s.family == family).collect();
        let compile = |s: &&Source| self.one(s, name).with_context(|| format!("kernel {} for {name}", s.name));
        let threads = std::thread::available_parallelism().map_or(1, usize::from);
        let share = of_family.len().div_ceil(threads).max(1);
        let parts: Vec<Result<Vec<Binary>>> = std::thread::scope(|scope| {
            let start = |part: &[&Source]| part.iter().map(compile).collect();
            let workers: Vec<_> = of_family.chunks(share).map(|part| scope.spawn(move || start(part))).collect();
            let finished = workers.into_iter().map(|worker| worker.join());
            finished.map(|part| part.unwrap_or_else(|_| bail!("a compiling thread ended early"))).collect()
        });
        parts.into_iter().try_fold(Vec::new(), |mut all, part| {
            all.extend(part?);
            Ok(all)
        })
    }

    fn one(&self, source: &Source, architecture: &'static str) -> Result<Binary> {
        let extension = if source.family == Family::Cuda { "cubin" } else { "hsaco" };
        let file = format!("{architecture}/{}.{extension}", source.name);
        let path: PathBuf = self.out.join(&file);
        let (image, report) = match (source.family, &self.nvrtc, &self.clang) {
            (Family::Cuda, Some(nvrtc), _) => {
                let build = |thrift| {
                    let cubin = nvrtc.compile(&source.text, (architecture, thrift))?;
                    fs::write(&path, &cubin.image)?;
                    anyhow::Ok((cubin.image, inspect::cubin(self.toolchain, &path, &cubin.log)?))
                };
                let usual = build(Thrift::Usual)?;
                if usual.1.spilled_bytes > 0 { build(Thrift::Generous)? } else { usual }
            }
            (Family::Hip, _, Some(clang)) => {
                let object = clang.compile(&source.path, architecture)?;
                fs::write(&path, &object.image)?;
                (object.image, inspect::assembly(&object.assembly)?)
            }
            _ => bail!("no compiler is loaded for {}", source.family.name()),
        };
        Ok(Binary { kernel: source.name.clone(), architecture, file, sha256: sha256(&image), report })
    }
}
