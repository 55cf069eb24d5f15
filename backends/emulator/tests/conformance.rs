//! Every operation against the reference, in the text that a GPU's compiler gets, at plane width 32 and 64.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // all of it is test code

mod rig;

macro_rules! at_plane_width {
    ($name:ident, $plane:expr) => {
        mod $name {
            perilune_conformance::conformance_tests!(match crate::rig::gpu($plane) {
                Some(gpu) => gpu,
                None => return,
            });
            // Not of KDA and MLA: chunks and splits of a sequence depend on the step.
            perilune_conformance::conformance_tests!(@each
                match crate::rig::gpu($plane) { Some(gpu) => gpu, None => return };
                bits_of_linear check_bits_linear, bits_of_moe check_bits_moe);
        }
    };
}

at_plane_width!(plane_32, 32);
at_plane_width!(plane_64, 64);
