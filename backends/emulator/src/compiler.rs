//! Calls the system's C++ compiler; what it made is kept by the hash of everything that went in.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};

use libloading::os::unix::{Library, RTLD_GLOBAL, RTLD_LOCAL, RTLD_NOW};

const RUNTIME: &str = include_str!("../device/runtime.cpp");
/// What kernels include, by name.
const KERNEL_HEADERS: &[(&str, &str)] = &[
    ("device.hpp", include_str!("../device/device.hpp")),
    ("interface.h", include_str!("../device/interface.h")),
    ("cuda_fp16.h", include_str!("../device/include/cuda_fp16.h")),
    ("cuda_bf16.h", include_str!("../device/include/cuda_bf16.h")),
];
/// What the runtime includes besides.
const RUNTIME_HEADERS: &[(&str, &str)] = &[
    ("fiber.h", include_str!("../device/fiber.h")),
    ("traffic.h", include_str!("../device/traffic.h")),
    ("writes.h", include_str!("../device/writes.h")),
];
/// For kernels: every access to memory calls the runtime, no expression is contracted.
const KERNEL_FLAGS: &[&str] = &["-O1", "-fsanitize=thread", "-ffp-contract=off", "-fno-strict-aliasing", "-w"];
const RUNTIME_FLAGS: &[&str] = &["-O2", "-Wall"];

/// A C++ compiler that is missing, failed, or made something that cannot be loaded.
#[derive(Debug, Clone)]
pub struct CompilerError(pub String);

impl std::fmt::Display for CompilerError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for CompilerError {}

/// Whether this machine can compile kernels for the emulator.
pub fn compiler_available() -> bool {
    compiler().is_some()
}

/// `$CXX`, or the first of the usual names that runs.
fn compiler() -> Option<&'static str> {
    static FOUND: OnceLock<Option<String>> = OnceLock::new();
    let runs = |name: &String| Command::new(name).arg("--version").output().is_ok_and(|o| o.status.success());
    let names = || std::env::var("CXX").ok().into_iter().chain(["c++", "g++", "clang++"].map(String::from));
    FOUND.get_or_init(|| names().find(runs)).as_deref()
}

/// Compiles into one folder.
#[derive(Debug)]
pub(crate) struct Compiler {
    folder: PathBuf,
}

impl Compiler {
    /// Compiled code is kept in `folder`.
    pub(crate) fn new(folder: &Path) -> Result<Compiler, CompilerError> {
        let include = folder.join("include");
        std::fs::create_dir_all(&include).map_err(|e| CompilerError(format!("{}: {e}", include.display())))?;
        for (name, text) in KERNEL_HEADERS.iter().chain(RUNTIME_HEADERS) {
            let path = include.join(name);
            if std::fs::read(&path).is_ok_and(|old| old == text.as_bytes()) {
                continue;
            }
            write_whole(&path, text)?;
        }
        Ok(Compiler { folder: folder.to_owned() })
    }

    /// The runtime, loaded once per process so that kernels find its functions.
    pub(crate) fn runtime(&self) -> Result<&'static Library, CompilerError> {
        static RUNTIME_LIBRARY: Mutex<Option<&'static Library>> = Mutex::new(None);
        let mut loaded = RUNTIME_LIBRARY.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(library) = *loaded {
            return Ok(library);
        }
        let path =
            self.shared_object("runtime", RUNTIME, (RUNTIME_FLAGS, &[KERNEL_HEADERS, RUNTIME_HEADERS].concat()))?;
        let library: &'static Library = Box::leak(Box::new(open(&path, RTLD_GLOBAL)?));
        *loaded = Some(library);
        Ok(library)
    }

    /// A kernel's text for planes of this many units.
    pub(crate) fn kernel(&self, name: &str, text: &str, plane: usize) -> Result<Library, CompilerError> {
        let text = format!("#define EMU_PLANE {plane}\n#include \"device.hpp\"\n{text}");
        let path = self.shared_object(name, &text, (KERNEL_FLAGS, KERNEL_HEADERS))?;
        open(&path, RTLD_LOCAL)
    }

    /// Compiles unless it was done before with the same compiler, flags and headers.
    fn shared_object(
        &self,
        name: &str,
        text: &str,
        (flags, headers): (&[&str], &[(&str, &str)]),
    ) -> Result<PathBuf, CompilerError> {
        let Some(compiler) = compiler() else {
            return Err(CompilerError("no C++ compiler: neither $CXX nor c++, g++ or clang++ runs".into()));
        };
        let mut hasher = DefaultHasher::new();
        (compiler, text, flags, headers).hash(&mut hasher);
        let target = self.folder.join(format!("{name}-{:016x}.so", hasher.finish()));
        if target.is_file() {
            return Ok(target);
        }
        let unique = unique_suffix();
        let source = self.folder.join(format!("{name}-{unique}.cpp"));
        let (object, output) = (source.with_extension("o"), source.with_extension("so.part"));
        write_whole(&source, text)?;
        let mut compile = Command::new(compiler);
        compile.args(["-std=c++17", "-fPIC", "-c", "-I"]).arg(self.folder.join("include")).args(flags);
        run(compile.arg(&source).arg("-o").arg(&object))?;
        // Linked without the sanitizer's flag, which would pull in its own runtime.
        run(Command::new(compiler).arg("-shared").arg(&object).arg("-o").arg(&output))?;
        std::fs::rename(&output, &target).map_err(|e| CompilerError(format!("{}: {e}", target.display())))?;
        let _ = std::fs::remove_file(&source);
        let _ = std::fs::remove_file(&object);
        Ok(target)
    }
}

fn unique_suffix() -> String {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    format!("{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed))
}

/// Writes a file that others may read at the same time.
fn write_whole(path: &Path, text: &str) -> Result<(), CompilerError> {
    let part = path.with_file_name(format!("part-{}", unique_suffix()));
    let written = std::fs::write(&part, text).and_then(|()| std::fs::rename(&part, path));
    written.map_err(|e| CompilerError(format!("{}: {e}", path.display())))
}

fn open(path: &Path, visibility: i32) -> Result<Library, CompilerError> {
    // SAFETY: the library was compiled from our runtime or a generated kernel; neither has initialisers of its own.
    unsafe { Library::open(Some(path), RTLD_NOW | visibility) }
        .map_err(|e| CompilerError(format!("{}: {e}", path.display())))
}

fn run(command: &mut Command) -> Result<(), CompilerError> {
    let output = command.output().map_err(|e| CompilerError(format!("{command:?}: {e}")))?;
    if output.status.success() {
        return Ok(());
    }
    let text = String::from_utf8_lossy(&output.stderr);
    let first: Vec<&str> = text.lines().take(30).collect();
    Err(CompilerError(format!("{command:?} failed:\n{}", first.join("\n"))))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// On processors without an own context switch the runtime falls back to ucontext.
    #[test]
    fn the_portable_fibers_compile() {
        if !compiler_available() {
            return;
        }
        let folder = std::env::temp_dir().join(format!("perilune-emulator-{}", std::process::id()));
        let compiler = Compiler::new(&folder).unwrap();
        let flags = [RUNTIME_FLAGS, &["-DEMU_UCONTEXT"]].concat();
        compiler.shared_object("portable", RUNTIME, (&flags, RUNTIME_HEADERS)).unwrap();
        std::fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn what_the_compiler_says_is_in_the_error() {
        if !compiler_available() {
            return;
        }
        let folder = std::env::temp_dir().join(format!("perilune-emulator-error-{}", std::process::id()));
        let compiler = Compiler::new(&folder).unwrap();
        let error = compiler.kernel("broken", "int f() { return nonsense; }", 32).unwrap_err().to_string();
        std::fs::remove_dir_all(folder).unwrap();
        assert!(error.contains("nonsense"), "{error}");
    }
}
