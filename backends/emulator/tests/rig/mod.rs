//! Emulated devices for the tests of this folder.
#![allow(dead_code)] // each test binary uses a part of it

use std::collections::BTreeSet;
use std::io::Write as _;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, Once};

use perilune_backend::BackendError;
use perilune_emulator::{Emulator, EmulatorOptions, OnDemand, compiler_available};
use perilune_gpu::{Artifact, Gpu, Kernels};
use perilune_kernels_dsl::{Target, Variant};

/// Set where a missing compiler must fail the tests instead of skipping them.
const REQUIRE: &str = "PERILUNE_REQUIRE_EMULATOR";

/// An emulator; `None`, with a line that says so, where there is no C++ compiler.
pub fn emulator(plane: usize, seed: u64) -> Option<Emulator> {
    if !compiler_available() {
        assert!(std::env::var_os(REQUIRE).is_none_or(|v| v == "0"), "{REQUIRE} is set and there is no C++ compiler");
        static SAY: Once = Once::new();
        // Past the capture of test output, which shows nothing of tests that pass.
        SAY.call_once(|| {
            let line = "skipped: no C++ compiler ($CXX, c++, g++, clang++) to run GPU kernels with";
            let _ = writeln!(std::io::stderr(), "{line}");
        });
        return None;
    }
    let cache = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("kernels");
    Some(Emulator::new(EmulatorOptions { plane, seed, cache }).unwrap())
}

/// The backend on it.
pub fn gpu(plane: usize) -> Option<Gpu<Emulator>> {
    emulator(plane, 1).map(|driver| Gpu::new(driver, OnDemand))
}

/// Kernels that a test asked for.
#[derive(Clone, Default)]
pub struct Asked(Arc<Mutex<BTreeSet<String>>>);

impl Asked {
    /// Their names.
    pub fn names(&self) -> BTreeSet<String> {
        self.0.lock().unwrap().clone()
    }
}

impl Kernels for Asked {
    fn find(&self, variant: &Variant, target: Target) -> Result<Artifact, BackendError> {
        self.0.lock().unwrap().insert(variant.name());
        OnDemand.find(variant, target)
    }
}
