//! HIP C++ to a code object, by the clang of the unpacked Zig, whose own headers stand in for HIP's.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use super::toolchain::Toolchain;

/// Put before every source.
const PRELUDE: &str = include_str!("prelude.hip.h");

/// The compiler with its working folder.
pub(super) struct Clang {
    program: PathBuf,
    folder: PathBuf,
}

/// What a compilation gives.
pub(super) struct CodeObject {
    pub(super) image: Vec<u8>,
    /// Assembly, with the metadata of registers, spills and shared memory.
    pub(super) assembly: String,
}

impl Clang {
    /// Writes the stand-in headers.
    ///
    /// # Errors
    /// Where they cannot be written.
    pub(super) fn prepare(toolchain: &Toolchain) -> Result<Clang> {
        let clang = Clang { program: toolchain.path("ziglang/zig"), folder: toolchain.path("hip") };
        let headers = clang.folder.join("include/hip");
        fs::create_dir_all(&headers)?;
        fs::write(clang.folder.join("prelude.hip.h"), PRELUDE)?;
        // The generated sources include this by name; the prelude already has the type.
        fs::write(headers.join("hip_bf16.h"), "#pragma once\n")?;
        Ok(clang)
    }

    /// Compiles one translation unit for one architecture.
    ///
    /// # Errors
    /// With the compiler's messages.
    pub(super) fn compile(&self, source: &Path, architecture: &str) -> Result<CodeObject> {
        let stem = source.file_stem().map(|s| s.to_string_lossy().into_owned()).unwrap_or_default();
        let place = |extension: &str| self.folder.join(format!("{stem}.{architecture}.{extension}"));
        let (assembly, object, linked) = (place("s"), place("o"), place("hsaco"));
        let prelude = self.folder.join("prelude.hip.h");
        let include = self.folder.join("include");
        let offload = format!("--offload-arch={architecture}");
        let mut to_assembly =
            self.command(&["clang", "-x", "hip", "--offload-device-only", &offload, "-O3", "-nogpulib"]);
        to_assembly
            .args(["-nogpuinc", "-std=c++17", "-fdeclspec", "-fuse-cuid=none", "-ffp-contract=off", "-I"])
            .arg(include);
        to_assembly.arg("-include").arg(prelude).arg("-S").arg(source).arg("-o").arg(&assembly);
        finish(to_assembly)?;
        let cpu = format!("-mcpu={architecture}");
        let mut to_object = self.command(&["clang", "-target", "amdgcn-amd-amdhsa", &cpu, "-c"]);
        to_object.arg(&assembly).arg("-o").arg(&object);
        finish(to_object)?;
        let mut link = self.command(&["ld.lld", "-shared"]);
        link.arg(&object).arg("-o").arg(&linked);
        finish(link)?;
        let made = CodeObject { image: fs::read(&linked)?, assembly: fs::read_to_string(&assembly)? };
        for file in [assembly, object, linked] {
            fs::remove_file(file)?;
        }
        Ok(made)
    }

    fn command(&self, words: &[&str]) -> Command {
        let mut command = Command::new(&self.program);
        command.args(words);
        command
    }
}

/// Runs one step of a compilation.
fn finish(mut command: Command) -> Result<()> {
    let output = command.output().with_context(|| format!("cannot start {}", command.get_program().display()))?;
    if !output.status.success() {
        bail!("the HIP compiler refused the source:\n{}", String::from_utf8_lossy(&output.stderr));
    }
    Ok(())
}
