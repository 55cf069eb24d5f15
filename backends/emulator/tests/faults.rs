//! The emulator finds what it is for: each fault is put into the text of a correct kernel and must be named.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // all of it is test code

mod rig;

use perilune_backend::{Backend, BackendError, RmsNorm};
use perilune_emulator::OnDemand;
use perilune_gpu::{Artifact, Gpu, Kernels};
use perilune_kernels_dsl::{Target, Variant};
use perilune_tensor::HostTensor;

/// A change to a kernel's text.
type Edit = fn(&str) -> String;

/// Kernels with a fault.
struct Edited(Edit);

impl Kernels for Edited {
    fn find(&self, variant: &Variant, target: Target) -> Result<Artifact, BackendError> {
        let mut artifact = OnDemand.find(variant, target)?;
        let text = std::str::from_utf8(&artifact.code).unwrap();
        let edited = (self.0)(text);
        artifact.code = edited.into_bytes().into();
        Ok(artifact)
    }
}

/// RMSNorm of 3 rows of 1024 with an edited kernel of 256 units: what the backend says, for several orders of units.
fn outcomes(plane: usize, edit: Edit) -> Option<Vec<Result<Vec<f32>, BackendError>>> {
    let run = |seed: u64| {
        let gpu = Gpu::new(rig::emulator(plane, seed)?, Edited(edit));
        let values: Vec<f32> = (0..3 * 1024).map(|i| (i % 17) as f32).collect();
        let x = gpu.upload(&HostTensor::from_f32([3, 1024], &values).unwrap()).unwrap();
        let weight = gpu.upload(&HostTensor::from_f32([1024], &[1.0; 1024]).unwrap()).unwrap();
        let mut out = gpu.alloc(&perilune_tensor::TensorSpec::f32([3, 1024])).unwrap();
        let op = RmsNorm { rows: 3, x: &x, weight: &weight, eps: 1e-5, out: &mut out };
        Some(gpu.rms_norm(op).map(|()| gpu.download(&out).unwrap().wait().unwrap().to_f32()))
    };
    (1..=4).map(run).collect()
}

fn must_fail(edit: Edit, with: &str) {
    for plane in [32, 64] {
        let Some(outcomes) = outcomes(plane, edit) else { return };
        for outcome in outcomes {
            let error = outcome.expect_err(with).to_string();
            assert!(error.contains(with), "expected `{with}` in: {error}");
        }
    }
}

/// Replaces the first occurrence, which must exist.
fn replace(text: &str, from: &str, to: &str) -> String {
    assert!(text.contains(from), "`{from}` is not in the kernel:\n{text}");
    text.replacen(from, to, 1)
}

/// Appends to the index of the first load of a vector.
fn shift_first_load(text: &str, by: &str) -> String {
    let line = text.lines().find(|line| line.starts_with("float_4 const* const") && line.contains(" = &")).unwrap();
    replace(text, line, &line.replace("];", &format!(" + {by}];")))
}

#[test]
fn the_kernel_itself_gives_the_same_bits_in_every_order() {
    for plane in [32, 64] {
        let Some(outcomes) = outcomes(plane, str::to_owned) else { return };
        let first = outcomes[0].clone().unwrap();
        assert!(first.iter().any(|v| *v > 0.5));
        for outcome in outcomes {
            assert_eq!(outcome.unwrap(), first);
        }
    }
}

#[test]
fn a_removed_barrier() {
    must_fail(|text| replace(text, "__syncthreads();", ""), "since the last barrier");
}

#[test]
fn a_barrier_that_one_unit_skips() {
    // The last one, after which nothing is shared: only the meeting itself can show it.
    let edit = |text: &str| {
        let (before, after) = text.rsplit_once("__syncthreads();").unwrap();
        format!("{before}if (threadIdx.x != 3) __syncthreads();{after}")
    };
    must_fail(edit, "units diverge");
}

#[test]
fn a_wrong_shuffle_width() {
    must_fail(|text| replace(text, "= warpSize;", "= 2 * warpSize;"), "of a plane of");
}

#[test]
fn cubes_that_write_the_same_output() {
    // Every cube takes the first row.
    must_fail(|text| replace(text, "blockIdx.x", "0 * blockIdx.x"), "wrote without a barrier between");
}

#[test]
fn an_index_off_by_one() {
    must_fail(|text| shift_first_load(text, "1"), "past the end of buffer");
}

#[test]
fn a_kernel_for_another_plane_width() {
    let Some(driver) = rig::emulator(64, 1) else { return };
    struct Narrow;
    impl Kernels for Narrow {
        fn find(&self, variant: &Variant, _target: Target) -> Result<Artifact, BackendError> {
            let mut artifact = OnDemand.find(variant, Target::emulated(32))?;
            artifact.entry.plane = 32;
            Ok(artifact)
        }
    }
    let gpu = Gpu::new(driver, Narrow);
    let x = gpu.upload(&HostTensor::from_f32([1, 8], &[1.0; 8]).unwrap()).unwrap();
    let weight = gpu.upload(&HostTensor::from_f32([8], &[1.0; 8]).unwrap()).unwrap();
    let mut out = gpu.alloc(&perilune_tensor::TensorSpec::f32([1, 8])).unwrap();
    let op = RmsNorm { rows: 1, x: &x, weight: &weight, eps: 1e-5, out: &mut out };
    let error = gpu.rms_norm(op).unwrap_err().to_string();
    assert!(error.contains("planes of 32"), "{error}");
}
