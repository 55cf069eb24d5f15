//! The kernel of expert choice.

use cubecl::prelude::*;

use super::MoeRouteVariant;
use crate::Geometry;
use crate::compile::Builder;
use crate::math::sigmoid;
use crate::reduce::cube_best;

/// Index of a unit that has seen no value.
const NOBODY: u32 = u32::MAX;

/// One cube per row.
#[cube(launch_unchecked)]
pub fn moe_route(
    logits: &[f32],
    bias: &[f32],
    ids: &mut [u32],
    weights: &mut [f32],
    experts: usize,
    choices: usize,
    groups: usize,
    kept: usize,
    normalize: u32,
    factor: f32,
    #[comptime] variant: MoeRouteVariant,
) {
    let units = comptime!(variant.geometry.units);
    let unit = UNIT_POS as usize;
    let row = CUBE_POS;
    let mut scores = Shared::<[f32]>::new_slice(comptime!(variant.most_experts));
    let mut choice = Shared::<[f32]>::new_slice(comptime!(variant.most_experts));
    let mut e = unit;
    while e < experts {
        let score = sigmoid(logits[row * experts + e]);
        scores[e] = score;
        let biased = score + bias[e];
        // What is not a number loses against everything, so that a corrupt row still chooses experts that exist.
        choice[e] = select(biased > f32::NEG_INFINITY, biased, f32::new(f32::NEG_INFINITY));
        e += units;
    }
    sync_cube();
    if comptime!(variant.most_groups > 1) {
        mask_groups(&mut choice, experts, groups, kept, variant);
    }
    let mut sum = 0.0f32;
    for k in 0..choices {
        let best = best_of(&choice, experts, comptime!(variant.geometry));
        sum += scores[best as usize];
        if unit == 0 {
            ids[row * choices + k] = best;
            choice[best as usize] = f32::NEG_INFINITY;
        }
        sync_cube();
    }
    let mut divisor = 1.0f32;
    if normalize == 1 && choices > 1 {
        divisor = sum + 1e-20f32;
    }
    // Unit 0 wrote the ids, so it reads them.
    if unit == 0 {
        for k in 0..choices {
            weights[row * choices + k] = scores[ids[row * choices + k] as usize] / divisor * factor;
        }
    }
}

/// Index of the largest value of the first `count`, the lowest among equals; for every unit.
#[cube]
fn best_of(values: &Shared<[f32]>, count: usize, #[comptime] geometry: Geometry) -> u32 {
    let mut value = f32::new(f32::NEG_INFINITY);
    let mut index = NOBODY.runtime();
    let mut i = UNIT_POS as usize;
    while i < count {
        let candidate = values[i];
        if candidate > value || index == NOBODY {
            value = candidate;
            index = i as u32;
        }
        i += comptime!(geometry.units);
    }
    cube_best(value, index, geometry)
}

/// Leaves the `kept` groups with the largest sums of their two best choice scores; the others become `-inf`.
#[cube]
fn mask_groups(
    choice: &mut Shared<[f32]>,
    experts: usize,
    groups: usize,
    kept: usize,
    #[comptime] variant: MoeRouteVariant,
) {
    let units = comptime!(variant.geometry.units);
    let unit = UNIT_POS as usize;
    let size = experts / groups;
    let mut sums = Shared::<[f32]>::new_slice(comptime!(variant.most_groups));
    let mut g = unit;
    while g < groups {
        let mut first = f32::new(f32::NEG_INFINITY);
        let mut second = f32::new(f32::NEG_INFINITY);
        for i in 0..size {
            let value = choice[g * size + i];
            if value > first {
                second = first;
                first = value;
            } else if value > second {
                second = value;
            }
        }
        let mut pair = first;
        if size > 1 {
            pair += second;
        }
        sums[g] = pair;
        g += units;
    }
    sync_cube();
    let mut e = unit;
    while e < experts {
        // The group stays if fewer than `kept` others come before it.
        let group = e / size;
        let mine = sums[group];
        let mut before = 0usize;
        for other in 0..groups {
            let theirs = sums[other];
            if theirs > mine || (theirs == mine && other < group) {
                before += 1;
            }
        }
        if before >= kept {
            choice[e] = f32::NEG_INFINITY;
        }
        e += units;
    }
    sync_cube();
}

impl MoeRouteVariant {
    pub(crate) fn define(&self, b: &Builder) -> KernelDefinition {
        let (settings, properties, target) = b.parts(self.geometry);
        let buffer = Builder::buffer;
        moe_route::MoeRoute::new(
            settings,
            properties,
            target,
            buffer(),
            buffer(),
            buffer(),
            buffer(),
            (),
            (),
            (),
            (),
            (),
            (),
            *self,
        )
        .define()
    }
}
