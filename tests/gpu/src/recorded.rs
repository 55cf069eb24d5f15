//! Which kernels the checks launch: found by running them on the emulator, at both plane widths.

use std::path::Path;

use anyhow::Result;

#[cfg(not(feature = "emulator"))]
const LEFT_OUT: &str = "this build cannot run kernels without a GPU: build it with --features emulator";

#[cfg(not(feature = "emulator"))]
pub(crate) fn write(_: &Path) -> Result<()> {
    anyhow::bail!(LEFT_OUT)
}

#[cfg(not(feature = "emulator"))]
pub(crate) fn traffic() -> Result<()> {
    anyhow::bail!(LEFT_OUT)
}

/// Prints what the kernels of the table move and must move at small sizes, as JSON by kernel: `[moved, least]` in bytes.
#[cfg(feature = "emulator")]
pub(crate) fn traffic() -> Result<()> {
    let mut all = serde_json::Map::new();
    for plane in [32, 64] {
        let gpu = perilune_gpu::Gpu::new(crate::device::emulator(plane)?, perilune_emulator::OnDemand);
        gpu.driver().count_traffic();
        crate::table::once(&gpu)?;
        all.extend(gpu.driver().traffic().into_iter().map(|(name, t)| (name, serde_json::json!([t.moved, t.least]))));
    }
    println!("{}", serde_json::Value::Object(all));
    Ok(())
}

/// Writes the sources of all of them, and of the known and the tiny models' kernels, for CUDA and HIP.
#[cfg(feature = "emulator")]
pub(crate) fn write(out: &Path) -> Result<()> {
    use perilune_kernels_dsl::Target;
    use perilune_kernels_dsl::catalogue::{Shapes, variants};
    use perilune_kernels_dsl::compile::emit;

    let mut shapes = Shapes::known().map_err(anyhow::Error::msg)?;
    let text = std::fs::read_to_string(perilune_tests::data_dir().join("vectors.json"))?;
    let tiny: serde_json::Value = serde_json::from_str(&text)?;
    for tag in ["k3", "kl"] {
        shapes.push(Shapes::from_config(&tiny[tag]["config"]).map_err(anyhow::Error::msg)?);
    }
    for (target, plane) in [(Target::CUDA, 32), (Target::HIP, 64)] {
        let mut all = variants(&shapes, target);
        all.extend(asked::by_checks(plane)?);
        all.sort_by_key(perilune_kernels_dsl::Variant::name);
        all.dedup_by_key(|variant| variant.name());
        emit::write(out, target, &all).map_err(|error| anyhow::anyhow!("{error}"))?;
        eprintln!("{} kernels at planes of {plane}", all.len());
    }
    Ok(())
}

#[cfg(feature = "emulator")]
mod asked {
    use std::collections::HashSet;
    use std::sync::{Arc, Mutex};

    use anyhow::Result;
    use perilune_backend::BackendError;
    use perilune_emulator::OnDemand;
    use perilune_gpu::{Artifact, Gpu, Kernels};
    use perilune_kernels_dsl::{Target, Variant};

    use crate::device::emulator;
    use crate::options::Size;
    use crate::{checks, models};

    #[derive(Clone, Default)]
    struct Asked(Arc<Mutex<HashSet<Variant>>>);

    impl Kernels for Asked {
        fn find(&self, variant: &Variant, target: Target) -> Result<Artifact, BackendError> {
            self.0.lock().unwrap().insert(*variant);
            OnDemand.find(variant, target)
        }
    }

    /// Every kernel that conformance and the tiny models ask for.
    pub(super) fn by_checks(plane: usize) -> Result<Vec<Variant>> {
        let asked = Asked::default();
        let gpu = || Ok::<_, anyhow::Error>(Gpu::new(emulator(plane)?, asked.clone()));
        checks::run(&gpu()?, Size::Model)?;
        models::run(&gpu, Size::Small)?;
        let all = asked.0.lock().unwrap().iter().copied().collect();
        Ok(all)
    }
}
