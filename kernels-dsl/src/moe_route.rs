//! Expert choice: sigmoid scores, a bias and a group step for the choice, the best few in falling order.

#[cfg(feature = "compile")]
mod kernel;

use crate::{Geometry, Target, Variant};

/// Sizes of one call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MoeRouteProblem {
    /// Rows, one cube each.
    pub rows: usize,
    /// Experts.
    pub experts: usize,
    /// Expert groups; 1 turns the group step off.
    pub groups: usize,
}

/// Compile-time choices.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct MoeRouteVariant {
    /// Room for this many experts.
    pub most_experts: usize,
    /// Room for this many groups; 1 without the group step.
    pub most_groups: usize,
    /// Cube geometry.
    pub geometry: Geometry,
}

impl MoeRouteVariant {
    pub(crate) fn name(&self) -> String {
        format!("moe_route_e{}_g{}_{}", self.most_experts, self.most_groups, self.geometry)
    }
}

/// How a [`MoeRouteProblem`] is laid out on a target.
///
/// Buffers: `logits f32 [rows, E]`, `bias f32 [E]`, `ids u32 [rows, K]`, `weights f32 [rows, K]`; scalars: experts,
/// choices, groups, groups kept, 1 to normalise the weights (`u32`), factor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MoeRoutePlan {
    /// The kernel.
    pub variant: MoeRouteVariant,
    /// Cubes to launch.
    pub cubes: usize,
}

impl MoeRoutePlan {
    /// The kernel by name.
    pub fn kernel(&self) -> Variant {
        Variant::MoeRoute(self.variant)
    }
}

impl MoeRouteProblem {
    /// Room for a power of two of experts, at least 64, in shared memory: 8 bytes each.
    pub fn plan(self, target: Target) -> MoeRoutePlan {
        let geometry = Geometry::covering(self.experts, target);
        let most_groups = if self.groups > 1 { self.groups.next_power_of_two().max(16) } else { 1 };
        let most_experts = self.experts.next_power_of_two().max(64);
        MoeRoutePlan { variant: MoeRouteVariant { most_experts, most_groups, geometry }, cubes: self.rows }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn room_for_every_expert_within_48_kib() {
        for (experts, groups) in [(1, 1), (12, 4), (256, 8), (896, 1)] {
            let variant = MoeRouteProblem { rows: 1, experts, groups }.plan(Target::HIP).variant;
            assert!(variant.most_experts >= experts && variant.most_groups >= groups);
            assert!(variant.most_experts * 8 + variant.most_groups * 4 <= 48 << 10);
        }
    }
}
