//! GPUs: from flags to a device with the kernels of the model, or to a sentence that says what is missing.
//!
//! Which GPUs a binary knows is decided when it is built, by the features `cuda` and `hip`.

use crate::backend::{DeviceOptions, WithBackend};
use crate::error::ServerError;

/// Runs `work` on an NVIDIA GPU.
#[cfg(feature = "cuda")]
pub(crate) fn with_cuda<W: WithBackend>(device: DeviceOptions<'_>, work: W) -> Result<W::Output, ServerError> {
    let driver = perilune_cuda::open(0).map_err(|error| refused("cuda", &error))?;
    open::on(driver, device, work)
}

/// Says how to get a binary that can.
#[cfg(not(feature = "cuda"))]
pub(crate) fn with_cuda<W: WithBackend>(_: DeviceOptions<'_>, _: W) -> Result<W::Output, ServerError> {
    Err(left_out("cuda"))
}

/// Runs `work` on an AMD GPU.
#[cfg(feature = "hip")]
pub(crate) fn with_hip<W: WithBackend>(device: DeviceOptions<'_>, work: W) -> Result<W::Output, ServerError> {
    let driver = perilune_hip::open(0).map_err(|error| refused("hip", &error))?;
    open::on(driver, device, work)
}

/// Says how to get a binary that can.
#[cfg(not(feature = "hip"))]
pub(crate) fn with_hip<W: WithBackend>(_: DeviceOptions<'_>, _: W) -> Result<W::Output, ServerError> {
    Err(left_out("hip"))
}

#[cfg(any(feature = "cuda", feature = "hip"))]
fn refused(backend: &str, error: &dyn std::error::Error) -> ServerError {
    ServerError::Flag { flag: "--backend", value: backend.into(), rule: error.to_string() }
}

#[cfg(not(all(feature = "cuda", feature = "hip")))]
fn left_out(backend: &str) -> ServerError {
    let rule = format!(
        "this binary was built without it: `cargo build --release --package perilune-server --features {backend}` \
         builds one with it, and needs no toolkit"
    );
    ServerError::Flag { flag: "--backend", value: backend.into(), rule }
}

#[cfg(any(feature = "cuda", feature = "hip"))]
mod open {
    //! What both vendors have in common.

    use std::path::Path;

    use perilune_backend::BackendError;
    use perilune_cpu::CpuLimits;
    use perilune_gpu::{Driver, Folder, Gpu, Manifest};
    use perilune_kernels_dsl::catalogue::{Shapes, variants};
    use perilune_kernels_dsl::{Target, Variant};

    use crate::backend::{DeviceOptions, Measured, WithBackend};
    use crate::error::ServerError;

    impl<D: Driver> Measured for Gpu<D> {
        fn limits(&self) -> Result<CpuLimits, ServerError> {
            let what = "measuring a GPU's limits; tests/gpu/run measures kernels against a copy".into();
            Err(BackendError::Unsupported { op: "bench", what }.into())
        }
    }

    /// Runs `work` on an opened device.
    pub(super) fn on<D: Driver, W: WithBackend>(
        driver: D,
        device: DeviceOptions<'_>,
        work: W,
    ) -> Result<W::Output, ServerError> {
        let kernels = kernels(driver.info().architecture.as_str(), device.kernels)?;
        if let Some(model) = device.model {
            complete((device.kernels, kernels.manifest()), (model, driver.info().target))?;
        }
        work.run(Gpu::new(driver, kernels))
    }

    fn flag(kernels: Option<&Path>, rule: String) -> ServerError {
        let value = kernels.map_or_else(|| "absent".to_owned(), |path| path.display().to_string());
        ServerError::Flag { flag: "--kernels", value, rule }
    }

    fn kernels(architecture: &str, path: Option<&Path>) -> Result<Folder, ServerError> {
        let Some(folder) = path else {
            let rule = "a GPU needs the folder that `cargo xtask build-kernels --out DIR` writes";
            return Err(flag(path, rule.to_owned()));
        };
        Folder::open(folder, architecture).map_err(|error| flag(path, error.to_string()))
    }

    /// Whether everything that the model needs was built: found now, not at the first request.
    fn complete(
        (kernels, manifest): (Option<&Path>, &Manifest),
        (model, target): (&Path, Target),
    ) -> Result<(), ServerError> {
        let config = model.join("config.json");
        let bad = |what: String| ServerError::Answer(format!("{}: {what}", config.display()));
        let text = std::fs::read_to_string(&config).map_err(|error| bad(error.to_string()))?;
        let parsed = serde_json::from_str(&text).map_err(|error| bad(error.to_string()))?;
        let shapes = Shapes::from_config(&parsed).map_err(bad)?;
        let names: Vec<String> = variants(&[shapes], target).iter().map(Variant::name).collect();
        let missing: Vec<&String> = names.iter().filter(|name| manifest.get(name).is_none()).collect();
        match missing.as_slice() {
            [] => Ok(()),
            [first, ..] => Err(flag(
                kernels,
                format!(
                    "{} of the {} kernels that this model needs are not there, {first} for one; \
                     `cargo xtask build-kernels --model {} --out DIR` builds them",
                    missing.len(),
                    names.len(),
                    config.display()
                ),
            )),
        }
    }

    #[cfg(test)]
    mod tests {
        use super::*;

        const EMPTY: &str = r#"{"version": 1, "kernels": [{"name": "other", "binaries": {"sm_90a": {}}}]}"#;

        #[test]
        fn what_is_wrong_with_the_folder_is_said_with_the_flag() {
            let error = kernels("sm_90a", None).unwrap_err().to_string();
            assert!(error.contains("--kernels is absent") && error.contains("build-kernels"), "{error}");
            let dir = tempfile::tempdir().unwrap();
            let error = kernels("sm_90a", Some(dir.path())).unwrap_err().to_string();
            assert!(error.starts_with("--kernels is /") && error.contains("manifest.json"), "{error}");
            std::fs::write(dir.path().join("manifest.json"), EMPTY).unwrap();
            let error = kernels("gfx942", Some(dir.path())).unwrap_err().to_string();
            assert!(error.contains("no kernels for gfx942") && error.contains("sm_90a"), "{error}");
            std::fs::write(dir.path().join("manifest.json"), &EMPTY[..40]).unwrap();
            let error = kernels("sm_90a", Some(dir.path())).unwrap_err().to_string();
            assert!(error.contains("manifest.json: manifest: "), "{error}");
        }

        #[test]
        fn a_model_whose_kernels_were_not_built_is_refused_at_the_start() {
            let manifest = Manifest::parse(EMPTY, "gfx942").unwrap();
            let demo = crate::model_dir::default_model().unwrap();
            let error = complete((Some(Path::new("k")), &manifest), (&demo, Target::CUDA)).unwrap_err().to_string();
            assert!(error.contains("--kernels is k") && error.contains("--model"), "{error}");
            assert!(error.contains("config.json --out DIR"), "{error}");
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use crate::ServerError;
    use crate::backend::{BackendKind, DeviceOptions, Measured, WithBackend};

    struct Nothing;

    impl WithBackend for Nothing {
        type Output = ();
        fn run<B: Measured>(self, _: B) -> Result<(), ServerError> {
            Ok(())
        }
    }

    fn said(kind: BackendKind) -> String {
        let device = DeviceOptions { kernels: Some(Path::new("kernels")), ..DeviceOptions::default() };
        kind.with(device, Nothing).map_or_else(|error| error.to_string(), |()| String::new())
    }

    #[test]
    fn each_backend_says_in_a_sentence_what_it_lacks() {
        assert!(said(BackendKind::Cpu).contains("--kernels is kernels; --backend cpu has none to load"));
        for (kind, name, built) in
            [(BackendKind::Cuda, "cuda", cfg!(feature = "cuda")), (BackendKind::Hip, "hip", cfg!(feature = "hip"))]
        {
            let said = said(kind);
            // With a device in this machine it is the folder that is missing.
            let expected = if built { format!("--backend is {name}; ") } else { format!("--features {name}") };
            assert!(said.contains(&expected) || built && said.contains("--kernels is kernels"), "{said}");
        }
    }
}
