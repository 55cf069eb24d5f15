//! RMS normalisation of rows: `out = x (mean(x²) + eps)^(-1/2) w`.

use cubecl::prelude::*;

use crate::reduce::cube_sum;
use crate::{Geometry, Target};

/// Sizes of one call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RmsNormProblem {
    /// Rows, one cube each.
    pub rows: usize,
    /// Elements of a row.
    pub width: usize,
}

/// How a [`RmsNormProblem`] is laid out on a target.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RmsNormPlan {
    /// Elements that one load takes: 4, 2 or 1.
    pub vector: usize,
    /// Cube geometry.
    pub geometry: Geometry,
    /// Cubes to launch.
    pub cubes: usize,
}

impl RmsNormProblem {
    /// The widest loads that divide the row, and no more units than a row has loads (in whole planes, at most 256).
    pub fn plan(self, target: Target) -> RmsNormPlan {
        let vector = [4, 2, 1].into_iter().find(|v| self.width.is_multiple_of(*v)).unwrap_or(1);
        let loads = self.width / vector;
        let units = loads.next_multiple_of(target.plane).clamp(target.plane, target.max_units.min(256));
        RmsNormPlan { vector, geometry: Geometry { units, plane: target.plane }, cubes: self.rows }
    }
}

/// One cube per row. `x`, `out`: `[rows, width]`, `weight`: `[width]`, all in vectors of `N`; `loads = width / N`.
#[cube(launch_unchecked)]
pub fn rms_norm<N: Size>(
    x: &[Vector<f32, N>],
    weight: &[Vector<f32, N>],
    out: &mut [Vector<f32, N>],
    loads: usize,
    width: f32,
    eps: f32,
    #[comptime] geometry: Geometry,
) {
    let base = CUBE_POS * loads;
    let units = comptime!(geometry.units);
    let mut squares = Vector::<f32, N>::new(0.0);
    let mut i = UNIT_POS as usize;
    while i < loads {
        let value = x[base + i];
        squares = fma(value, value, squares);
        i += units;
    }
    let sum = cube_sum(squares.vector_sum(), geometry);
    let scale = Vector::<f32, N>::new(1.0 / (sum / width + eps).sqrt());
    let mut j = UNIT_POS as usize;
    while j < loads {
        out[base + j] = x[base + j] * scale * weight[j];
        j += units;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plans_cover_the_row_in_whole_planes() {
        for target in [Target::CUDA, Target::HIP] {
            for width in [1, 12, 16, 96, 128, 192, 512, 1536, 3584, 7168, 7169] {
                let plan = RmsNormProblem { rows: 3, width }.plan(target);
                assert_eq!(width % plan.vector, 0, "{width}");
                assert_eq!(plan.geometry.units % target.plane, 0, "{width}");
                assert!(plan.geometry.units <= 256 && plan.cubes == 3, "{width}");
                let idle = plan.geometry.units.saturating_sub(width / plan.vector);
                assert!(idle < target.plane, "{width}: {idle} units have nothing to do");
            }
        }
        let wide = RmsNormProblem { rows: 1, width: 7168 }.plan(Target::CUDA);
        assert_eq!((wide.vector, wide.geometry.units), (4, 256));
    }
}
