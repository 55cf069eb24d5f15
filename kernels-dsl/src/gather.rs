//! Rows of a table by index, widened to `f32`: token embedding and row selection.

#[cfg(feature = "compile")]
mod kernel;

use crate::element::widest_vector;
use crate::{Element, Geometry, Target, Variant};

/// Sizes of one call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GatherProblem {
    /// Rows to fetch.
    pub rows: usize,
    /// Elements of a row.
    pub width: usize,
    /// How the table is stored.
    pub element: Element,
}

/// Compile-time choices.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct GatherVariant {
    /// How the table is stored.
    pub element: Element,
    /// Elements that one load takes: 4, 2 or 1.
    pub vector: usize,
    /// Cube geometry.
    pub geometry: Geometry,
}

impl GatherVariant {
    pub(crate) fn name(&self) -> String {
        format!("gather_{}_v{}_{}", self.element, self.vector, self.geometry)
    }
}

/// How a [`GatherProblem`] is laid out on a target: one cube per row.
///
/// Buffers: `table [V, width]`, `ids u32 [>= rows]`, `out f32 [>= rows, width]`; scalar: loads of a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GatherPlan {
    /// The kernel.
    pub variant: GatherVariant,
    /// Cubes to launch.
    pub cubes: usize,
    /// Loads of a row.
    pub loads: usize,
}

impl GatherPlan {
    /// The kernel by name.
    pub fn kernel(&self) -> Variant {
        Variant::Gather(self.variant)
    }
}

impl GatherProblem {
    /// The widest stores that divide the row, and no more units than a row has of them.
    pub fn plan(self, target: Target) -> GatherPlan {
        let vector = widest_vector(self.width, 4);
        let loads = self.width / vector;
        let geometry = Geometry::covering(loads, target);
        GatherPlan { variant: GatherVariant { element: self.element, vector, geometry }, cubes: self.rows, loads }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_is_covered_by_whole_loads() {
        for width in [1, 2, 6, 7, 64, 7168] {
            let plan = GatherProblem { rows: 5, width, element: Element::Bf16 }.plan(Target::HIP);
            assert_eq!((plan.loads * plan.variant.vector, plan.cubes), (width, 5));
        }
        let plan = GatherProblem { rows: 1, width: 7168, element: Element::Bf16 }.plan(Target::HIP);
        assert_eq!(plan.kernel().name(), "gather_bf16_v4_u256_p64");
    }
}
