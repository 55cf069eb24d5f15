//! Every operation against the reference, in the text that a GPU's compiler gets, at plane width 32 and 64.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // all of it is test code

mod rig;

macro_rules! at_plane_width {
    ($name:ident, $plane:expr) => {
        mod $name {
            // Left out until their kernels exist: linear, attn_residual, moe_route, moe_experts,
            // sample_scores, sample_draws.
            perilune_conformance::conformance_tests!(@each
                match crate::rig::gpu($plane) { Some(gpu) => gpu, None => return };
                memory check_memory, embed check_embed, select_rows check_select_rows, rms_norm check_rms_norm,
                gated_act check_gated_act, kda check_kda, mla check_mla);
        }
    };
}

at_plane_width!(plane_32, 32);
at_plane_width!(plane_64, 64);
