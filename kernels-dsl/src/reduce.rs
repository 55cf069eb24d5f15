//! Reductions over a cube, in one place and for any plane width.

use cubecl::prelude::*;

use crate::Geometry;

/// Sum of one value per unit over the cube; every unit gets the result.
#[cube]
pub(crate) fn cube_sum(value: f32, #[comptime] geometry: Geometry) -> f32 {
    let plane = comptime!(geometry.plane);
    let planes = comptime!(geometry.units / geometry.plane);
    let mut partial = value;
    if comptime!(plane > 1) {
        partial = plane_sum(partial);
    }
    let mut total = partial;
    if comptime!(planes > 1) {
        let mut partials = Shared::<[f32]>::new_slice(planes);
        if comptime!(plane > 1) {
            if UNIT_POS_PLANE == 0 {
                partials[PLANE_POS as usize] = partial;
            }
        } else {
            partials[UNIT_POS as usize] = partial;
        }
        sync_cube();
        total = 0.0;
        #[unroll(planes <= 32)]
        for i in 0..planes {
            total += partials[i];
        }
        sync_cube();
    }
    total
}
