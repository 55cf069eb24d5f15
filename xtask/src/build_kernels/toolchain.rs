//! The compilers of the kernels: pinned packages of the Python registry, fetched with its own client, checked, unpacked.
//!
//! `pip` only moves files (so that a mirror or proxy set up for it is honoured); nothing of Python runs a compiler. A
//! package that is already unpacked under `target/` is not asked for again, so a second build works offline.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};
use sha2::{Digest, Sha256};

use super::options::Family;
use crate::process::target;

/// A pinned package.
struct Package {
    name: &'static str,
    version: &'static str,
    /// Of the wheel for Linux on x86-64.
    sha256: &'static str,
    /// Paths in the wheel that are needed: these files, or everything under a folder that ends in `/`.
    keep: &'static [&'static str],
    family: Family,
}

const PACKAGES: &[Package] = &[
    Package {
        name: "nvidia-cuda-nvrtc",
        version: "13.5.37",
        sha256: "86b4d68058807988b7d9af5b44917a0601e9c337f35ccd657bfb3c759ff8d8bc",
        keep: &["nvidia/cu13/lib/"],
        family: Family::Cuda,
    },
    Package {
        name: "nvidia-cuda-runtime",
        version: "13.5.37",
        sha256: "df2b79a8852f10d1fef8c848489c49eebb5754051bf870202a862831412b179d",
        keep: &["nvidia/cu13/include/"],
        family: Family::Cuda,
    },
    Package {
        name: "nvidia-cuda-crt",
        version: "13.5.37",
        sha256: "e898b7f73d3035fa89915a3f7bf3b54a73e90249746111aed295822c4729bb29",
        keep: &["nvidia/cu13/include/"],
        family: Family::Cuda,
    },
    Package {
        name: "nvidia-cuda-cccl",
        version: "13.3.5.0.6",
        sha256: "d5230098fa2df5021e1a00c0c4eee41797671a91119d31e892463e5ccf3ee326",
        keep: &["nvidia/cu13/include/"],
        family: Family::Cuda,
    },
    Package {
        name: "nvidia-cuda-nvdisasm",
        version: "13.5.37",
        sha256: "d3fdbdd49fa53e2e4aacd3db8259d052bd2b049ececdcb69e92e083c6728e7ca",
        keep: &["nvidia/cu13/bin/"],
        family: Family::Cuda,
    },
    Package {
        name: "ziglang",
        version: "0.17.0",
        sha256: "97079827064a7492cce5541ceb438ae8003ce1e54e399676da2d62fb7a5dc08b",
        keep: &["ziglang/zig", "ziglang/lib/include/"],
        family: Family::Hip,
    },
];

/// Where the unpacked compilers are.
pub(super) struct Toolchain {
    folder: PathBuf,
}

impl Toolchain {
    /// Makes the compilers of a family ready, fetching what is missing.
    ///
    /// # Errors
    /// Says which package could not be fetched or has other contents than the pinned ones.
    pub(super) fn prepare(families: &[Family]) -> Result<Toolchain> {
        if !cfg!(all(target_os = "linux", target_arch = "x86_64")) {
            bail!("the pinned kernel compilers are those for Linux on x86-64; build the kernels there");
        }
        let toolchain = Toolchain { folder: target().join("kernel-compilers") };
        let wanted = PACKAGES.iter().filter(|p| families.contains(&p.family));
        let missing: Vec<&Package> = wanted.filter(|p| !toolchain.stamp(p).is_file()).collect();
        if missing.is_empty() {
            return Ok(toolchain);
        }
        let downloads = toolchain.folder.join("download");
        fetch(&missing, &downloads)?;
        for package in missing {
            let wheel = find_wheel(package, &downloads)?;
            unpack(&wheel, package.keep, &toolchain.folder)?;
            fs::write(toolchain.stamp(package), package.sha256)?;
        }
        fs::remove_dir_all(&downloads)?;
        Ok(toolchain)
    }

    /// A file of an unpacked package.
    pub(super) fn path(&self, inside: &str) -> PathBuf {
        self.folder.join(inside)
    }

    /// Written when a package is completely unpacked.
    fn stamp(&self, package: &Package) -> PathBuf {
        self.folder.join(format!("{}-{}.{}", package.name, package.version, &package.sha256[..16]))
    }
}

/// What the manifest says about the compilers of a family: `name version`.
pub(super) fn versions(family: Family) -> Vec<String> {
    let of_family = PACKAGES.iter().filter(|p| p.family == family);
    of_family.map(|p| format!("{} {}", p.name, p.version)).collect()
}

/// Downloads packages with the registry's client, which compares the hashes.
fn fetch(packages: &[&Package], folder: &Path) -> Result<()> {
    fs::create_dir_all(folder)?;
    let list: String =
        packages.iter().map(|p| format!("{}=={} --hash=sha256:{}\n", p.name, p.version, p.sha256)).collect();
    let requirements = folder.join("requirements.txt");
    fs::write(&requirements, &list)?;
    let python = std::env::var_os("PYTHON").unwrap_or_else(|| "python3".into());
    let mut pip = Command::new(&python);
    pip.args(["-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps", "--require-hashes"])
        .args(["--only-binary", ":all:", "--dest"])
        .arg(folder)
        .arg("--requirement")
        .arg(&requirements);
    let names = packages.iter().map(|p| format!("{} {}", p.name, p.version)).collect::<Vec<_>>().join(", ");
    eprintln!("── fetching {names}");
    let output = pip.output().with_context(|| {
        format!("fetching the kernel compilers needs `{}` with pip; $PYTHON names another one", python.display())
    })?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        let last = said.lines().rev().find(|l| l.starts_with("ERROR")).unwrap_or("no reason given");
        bail!("the kernel compilers ({names}) could not be fetched: {last}");
    }
    Ok(())
}

/// The downloaded wheel with the pinned contents.
fn find_wheel(package: &Package, folder: &Path) -> Result<PathBuf> {
    let prefix = format!("{}-{}-", package.name.replace('-', "_"), package.version);
    let mut paths = fs::read_dir(folder)?.filter_map(|entry| Some(entry.ok()?.path()));
    let matches = |p: &PathBuf| p.file_name().is_some_and(|n| n.to_string_lossy().starts_with(&prefix));
    let wheel = paths.find(matches).with_context(|| format!("no file of {} was fetched", package.name))?;
    let found = sha256_of_file(&wheel)?;
    if found != package.sha256 {
        bail!("{} has sha256 {found}, pinned is {}", wheel.display(), package.sha256);
    }
    Ok(wheel)
}

fn sha256_of_file(path: &Path) -> Result<String> {
    let mut hasher = Sha256::new();
    io::copy(&mut File::open(path)?, &mut hasher)?;
    Ok(super::lock::hex(&hasher.finalize()))
}

/// Extracts the wanted files of a wheel.
fn unpack(wheel: &Path, keep: &[&str], into: &Path) -> Result<()> {
    let mut archive = zip::ZipArchive::new(File::open(wheel)?).with_context(|| wheel.display().to_string())?;
    for index in 0..archive.len() {
        let mut entry = archive.by_index(index)?;
        let Some(inside) = entry.enclosed_name() else { bail!("{}: a path leaves the archive", wheel.display()) };
        let name = inside.to_string_lossy().into_owned();
        let wanted = keep.iter().any(|k| name == *k || (k.ends_with('/') && name.starts_with(k)));
        if entry.is_dir() || !wanted {
            continue;
        }
        let path = into.join(inside);
        if let Some(parent) = path.parent() {
            fs::create_dir_all(parent)?;
        }
        io::copy(&mut entry, &mut File::create(&path)?)?;
        make_executable(&path, &name)?;
    }
    Ok(())
}

/// Wheels do not always carry permissions: programs are known by their place.
#[cfg(unix)]
fn make_executable(path: &Path, name: &str) -> Result<()> {
    use std::os::unix::fs::PermissionsExt;
    if name.contains("/bin/") || name == "ziglang/zig" {
        fs::set_permissions(path, fs::Permissions::from_mode(0o755))?;
    }
    Ok(())
}

#[cfg(not(unix))]
fn make_executable(_: &Path, _: &str) -> Result<()> {
    Ok(())
}
