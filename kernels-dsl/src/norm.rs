//! RMS normalisation of rows: `out = x (mean(x²) + eps)^(-1/2) w`.

#[cfg(feature = "compile")]
mod kernel;

use crate::element::widest_vector;
use crate::{Geometry, Target, Variant};

/// Sizes of one call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RmsNormProblem {
    /// Rows, one cube each.
    pub rows: usize,
    /// Elements of a row.
    pub width: usize,
}

/// Compile-time choices.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct RmsNormVariant {
    /// Elements that one load takes: 4, 2 or 1.
    pub vector: usize,
    /// Cube geometry.
    pub geometry: Geometry,
}

impl RmsNormVariant {
    pub(crate) fn name(&self) -> String {
        format!("rms_norm_v{}_{}", self.vector, self.geometry)
    }
}

/// How a [`RmsNormProblem`] is laid out on a target.
///
/// Buffers of the kernel: `x [rows, width]`, `weight [width]`, `out [rows, width]`; scalars: loads of a row, `width` as a
/// float, `eps`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RmsNormPlan {
    /// The kernel.
    pub variant: RmsNormVariant,
    /// Cubes to launch.
    pub cubes: usize,
    /// Loads of a row.
    pub loads: usize,
}

impl RmsNormPlan {
    /// The kernel by name.
    pub fn kernel(&self) -> Variant {
        Variant::RmsNorm(self.variant)
    }
}

impl RmsNormProblem {
    /// The widest loads that divide the row, and no more units than a row has loads.
    pub fn plan(self, target: Target) -> RmsNormPlan {
        let vector = widest_vector(self.width, 4);
        let loads = self.width / vector;
        let geometry = Geometry::covering(loads, target);
        RmsNormPlan { variant: RmsNormVariant { vector, geometry }, cubes: self.rows, loads }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plans_cover_the_row() {
        for target in [Target::CUDA, Target::HIP] {
            for width in [1, 12, 16, 96, 128, 192, 512, 1536, 3584, 7168, 7169] {
                let plan = RmsNormProblem { rows: 3, width }.plan(target);
                assert_eq!(plan.loads * plan.variant.vector, width);
                assert_eq!(plan.cubes, 3);
            }
        }
        let wide = RmsNormProblem { rows: 1, width: 7168 }.plan(Target::CUDA);
        assert_eq!((wide.variant.vector, wide.variant.geometry.units, wide.loads), (4, 256, 1792));
        assert_eq!(wide.kernel().name(), "rms_norm_v4_u256_p32");
    }
}
