//! Gated activations: `out = act(gate, up)` elementwise.

#[cfg(feature = "compile")]
pub(crate) mod kernel;

use crate::element::widest_vector;
use crate::{Geometry, Target, Variant};

/// Which activation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Act {
    /// `g σ(g) u`.
    Silu,
    /// `b tanh(g / b) σ(g) u`.
    Situ,
    /// `b tanh(g / b) σ(g) · c tanh(u / c)`.
    SituCapped,
}

impl std::fmt::Display for Act {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Act::Silu => "silu",
            Act::Situ => "situ",
            Act::SituCapped => "situ2",
        })
    }
}

/// Sizes of one call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GatedActProblem {
    /// Elements, all rows together.
    pub elements: usize,
    /// Which activation.
    pub act: Act,
}

/// Compile-time choices.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct GatedActVariant {
    /// Which activation.
    pub act: Act,
    /// Elements that one load takes: 4, 2 or 1.
    pub vector: usize,
    /// Cube geometry.
    pub geometry: Geometry,
}

impl GatedActVariant {
    pub(crate) fn name(&self) -> String {
        format!("gated_act_{}_v{}_{}", self.act, self.vector, self.geometry)
    }
}

/// How a [`GatedActProblem`] is laid out on a target: one load per unit.
///
/// Buffers: `gate`, `up`, `out`, all `f32 [elements]`; scalars: loads in all, `b`, `c`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GatedActPlan {
    /// The kernel.
    pub variant: GatedActVariant,
    /// Cubes to launch.
    pub cubes: usize,
    /// Loads in all.
    pub loads: usize,
}

impl GatedActPlan {
    /// The kernel by name.
    pub fn kernel(&self) -> Variant {
        Variant::GatedAct(self.variant)
    }
}

impl GatedActProblem {
    /// The widest loads that divide all elements.
    pub fn plan(self, target: Target) -> GatedActPlan {
        let vector = widest_vector(self.elements, 4);
        let loads = self.elements / vector;
        let geometry = Geometry { units: 256.min(target.max_units), plane: target.plane };
        let variant = GatedActVariant { act: self.act, vector, geometry };
        GatedActPlan { variant, cubes: loads.div_ceil(geometry.units), loads }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_element_has_a_unit() {
        for elements in [0, 1, 6, 255, 1024, 1025, 3072 * 7] {
            let plan = GatedActProblem { elements, act: Act::Silu }.plan(Target::CUDA);
            assert_eq!(plan.loads * plan.variant.vector, elements);
            assert!(plan.cubes * 256 >= plan.loads && plan.cubes * 256 < plan.loads + 256);
        }
    }
}
