//! The two tiny models end to end on the GPU backend, in the text that a GPU's compiler gets: logits, states and latents
//! against the float64 oracle, in one piece, in chunks, and token by token.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // all of it is test code

mod rig;

use perilune_tests::Golden;

/// Largest difference of a logit.
const LOGIT_TOLERANCE: f64 = 1e-4;

fn check(plane: usize, tag: &str) {
    let Some(gpu) = rig::gpu(plane) else { return };
    let mut golden = Golden::on(gpu, tag);
    let ids = golden.ids.clone();
    for lengths in [&[24][..], &[7, 1, 16], &[1; 24]] {
        let rows = golden.bench.chunked(0, &ids, lengths);
        let how = format!("{tag}, planes of {plane}, {lengths:?}");
        golden.check_logits(&rows, (&how, LOGIT_TOLERANCE));
        golden.check_state(&how);
    }
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
