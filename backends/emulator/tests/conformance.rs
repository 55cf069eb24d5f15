//! Every operation against the reference, in the text that a GPU's compiler gets, at plane width 32 and 64.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // all of it is test code

mod rig;

macro_rules! at_plane_width {
    ($name:ident, $plane:expr) => {
        mod $name {
            perilune_conformance::conformance_tests!(@each
                match crate::rig::gpu($plane) { Some(gpu) => gpu, None => return };
                memory check_memory, embed check_embed, select_rows check_select_rows, linear check_linear, rms_norm check_rms_norm,
                gated_act check_gated_act, attn_residual check_attn_residual, moe_route check_moe_route,
                moe_experts check_moe_experts, bits_of_moe check_bits_moe, sample_scores check_sample_scores,
                sample_draws check_sample_draws, bits_of_linear check_bits_linear,
                kda check_kda, kda_replay check_kda_replay, mla check_mla);
        }
    };
}

at_plane_width!(plane_32, 32);
at_plane_width!(plane_64, 64);
