//! Attention residual: a softmax-weighted mixture of rows of several tensors.
//!
//! `s_i = (mean(v_i²) + eps)^(-1/2) Σ_d v_id score_d`, `out = Σ_i softmax(s)_i v_i`.

#[cfg(feature = "compile")]
mod kernel;

use crate::element::widest_vector;
use crate::{Geometry, Target, Variant};

/// Sizes of one call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AttnResidualProblem {
    /// Rows, one cube each.
    pub rows: usize,
    /// Elements of a row.
    pub width: usize,
    /// Tensors that are mixed.
    pub sources: usize,
}

/// Compile-time choices.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct AttnResidualVariant {
    /// Elements that one load takes: 4, 2 or 1.
    pub vector: usize,
    /// Most tensors that are mixed.
    pub most_sources: usize,
    /// Cube geometry.
    pub geometry: Geometry,
}

impl AttnResidualVariant {
    pub(crate) fn name(&self) -> String {
        format!("attn_residual_v{}_n{}_{}", self.vector, self.most_sources, self.geometry)
    }
}

/// How an [`AttnResidualProblem`] is laid out on a target.
///
/// Buffers: `sources f32` (the lowest of them), `table u64 [sources]` (where each begins, in loads from the lowest),
/// `score f32 [width]`, `out f32 [rows, width]`; scalars: loads of a row, number of sources, `width` as a float, `eps`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AttnResidualPlan {
    /// The kernel.
    pub variant: AttnResidualVariant,
    /// Cubes to launch.
    pub cubes: usize,
    /// Loads of a row.
    pub loads: usize,
}

impl AttnResidualPlan {
    /// The kernel by name.
    pub fn kernel(&self) -> Variant {
        Variant::AttnResidual(self.variant)
    }
}

impl AttnResidualProblem {
    /// The widest loads that divide the row; room for a power of two of sources, at least 16.
    pub fn plan(self, target: Target) -> AttnResidualPlan {
        let vector = widest_vector(self.width, 4);
        let loads = self.width / vector;
        let geometry = Geometry::covering(loads, target);
        let most_sources = self.sources.next_power_of_two().max(16);
        AttnResidualPlan { variant: AttnResidualVariant { vector, most_sources, geometry }, cubes: self.rows, loads }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_source_has_room() {
        for sources in [1, 2, 9, 16, 17, 93] {
            let plan = AttnResidualProblem { rows: 2, width: 7168, sources }.plan(Target::CUDA);
            assert!(plan.variant.most_sources >= sources && plan.variant.most_sources < 2 * sources.max(9));
        }
    }
}
