//! Checks a backend against the reference, over random sizes.
//!
//! A backend is complete when [`conformance_tests!`] is green for it:
//!
//! ```ignore
//! perilune_conformance::conformance_tests!(MyBackend::new());
//! ```
//!
//! Sizes include 0 and 1 rows, odd ones, and ones that no tile divides. Outputs are poisoned with NaN before each
//! operation, and so are state slots and latent blocks that the operation must not read. [`bit_invariance_tests!`] is
//! for backends that promise equal bits whatever the batch and the chunking.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // every function here is the body of a test

mod attention;
mod batch;
mod draft;
mod invariance;
mod kda;
mod kda_replay;
mod linear;
mod memory;
mod moe;
mod rig;
mod sample;
mod token_wise;

pub use attention::check_mla;
pub use batch::{check_kda_batch, check_mla_splits};
pub use draft::check_draft_attention;
pub use invariance::{check_bits_kda, check_bits_linear, check_bits_mla, check_bits_moe};
pub use kda::check_kda;
pub use kda_replay::check_kda_replay;
pub use linear::check_linear;
pub use memory::check_memory;
pub use moe::{check_moe_experts, check_moe_route};
pub use sample::{check_sample_draws, check_sample_scores};
pub use token_wise::{check_attn_residual, check_embed, check_gated_act, check_rms_norm, check_select_rows};

/// One `#[test]` per operation for the backend that the expression makes.
#[macro_export]
macro_rules! conformance_tests {
    ($backend:expr) => {
        $crate::conformance_tests!(@each $backend;
            memory check_memory, embed check_embed, select_rows check_select_rows, linear check_linear,
            rms_norm check_rms_norm, gated_act check_gated_act, attn_residual check_attn_residual,
            kda check_kda, kda_batch check_kda_batch, kda_replay check_kda_replay, mla check_mla, draft_attention check_draft_attention,
            mla_splits check_mla_splits, moe_route check_moe_route, moe_experts check_moe_experts,
            sample_scores check_sample_scores, sample_draws check_sample_draws);
    };
    (@each $backend:expr; $($name:ident $check:ident),*) => {
        $(
            #[test]
            fn $name() {
                $crate::$check(&$backend);
            }
        )*
    };
}

/// One `#[test]` per law for a backend whose bits must not depend on batch and chunking.
#[macro_export]
macro_rules! bit_invariance_tests {
    ($backend:expr) => {
        $crate::conformance_tests!(@each $backend;
            bits_of_linear check_bits_linear, bits_of_kda check_bits_kda, bits_of_mla check_bits_mla,
            bits_of_moe check_bits_moe);
    };
}
