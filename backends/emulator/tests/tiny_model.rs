//! The two tiny models end to end on the GPU backend, in the text that a GPU's compiler gets: logits, states and latents
//! against the float64 oracle, in one piece, in chunks, and token by token.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // all of it is test code

mod rig;

use perilune_gpu::Gpu;
use perilune_kernels_dsl::Target;
use perilune_kernels_dsl::catalogue::{Shapes, variants};
use perilune_tests::Golden;
use rig::Asked;

/// Largest difference of a logit.
const LOGIT_TOLERANCE: f64 = 1e-4;

fn check(plane: usize, tag: &str) {
    let Some(emulator) = rig::emulator(plane, 3) else { return };
    let asked = Asked::default();
    let mut golden = Golden::on(Gpu::new(emulator, asked.clone()), tag);
    let ids = golden.ids.clone();
    for lengths in [&[24][..], &[7, 1, 16], &[1; 24]] {
        let rows = golden.bench.chunked(0, &ids, lengths);
        let how = format!("{tag}, planes of {plane}, {lengths:?}");
        golden.check_logits(&rows, (&how, LOGIT_TOLERANCE));
        golden.check_state(&how);
    }
    // What a build for this model has is what it launches.
    let shapes = Shapes::from_config(golden.config()).unwrap();
    let built: Vec<String> = variants(&[shapes], Target::emulated(plane)).iter().map(|v| v.name()).collect();
    let missing: Vec<String> = asked.names().into_iter().filter(|name| !built.contains(name)).collect();
    assert!(missing.is_empty(), "not in the catalogue: {missing:#?}");
}

#[test]
fn k3_at_plane_width_32() {
    check(32, "k3");
}

#[test]
fn k3_at_plane_width_64() {
    check(64, "k3");
}

#[test]
fn kimi_linear_at_plane_width_32() {
    check(32, "kl");
}

#[test]
fn kimi_linear_at_plane_width_64() {
    check(64, "kl");
}
