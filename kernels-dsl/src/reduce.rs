//! Reductions over planes and cubes, in one place and for any plane width.
//!
//! Every unit of the cube must call them; they begin with the plane's barrier, because units may come from loops that
//! they left at different times.

use cubecl::prelude::*;

use crate::Geometry;

/// Sum of one value per unit over the plane; every unit gets the result.
#[cube]
pub(crate) fn plane_total(value: f32) -> f32 {
    sync_plane();
    plane_sum(value)
}

/// Sum of one value per unit over the cube; every unit gets the result.
#[cube]
pub(crate) fn cube_sum(value: f32, #[comptime] geometry: Geometry) -> f32 {
    let planes = comptime!(geometry.planes());
    let mut total = plane_total(value);
    if comptime!(planes > 1) {
        let mut partials = Shared::<[f32]>::new_slice(planes);
        if UNIT_POS_PLANE == 0 {
            partials[PLANE_POS as usize] = total;
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

/// Index of the largest value over the cube, the lowest index among equals; every unit gets the result.
///
/// A unit without a value gives `-inf` and `u32::MAX`.
#[cube]
pub(crate) fn cube_best(value: f32, index: u32, #[comptime] geometry: Geometry) -> u32 {
    let planes = comptime!(geometry.planes());
    let mut best = value;
    let mut place = index;
    sync_plane();
    let mut distance = 1u32;
    while distance < comptime!(geometry.plane as u32) {
        let other = plane_shuffle_xor(best, distance);
        let other_place = plane_shuffle_xor(place, distance);
        if other > best || (other == best && other_place < place) {
            best = other;
            place = other_place;
        }
        distance *= 2;
    }
    if comptime!(planes > 1) {
        let mut values = Shared::<[f32]>::new_slice(planes);
        let mut places = Shared::<[u32]>::new_slice(planes);
        if UNIT_POS_PLANE == 0 {
            values[PLANE_POS as usize] = best;
            places[PLANE_POS as usize] = place;
        }
        sync_cube();
        best = values[0];
        place = places[0];
        for i in 1..planes {
            let other = values[i];
            if other > best || (other == best && places[i] < place) {
                best = other;
                place = places[i];
            }
        }
        sync_cube();
    }
    place
}

/// As [`cube_sum()`] for integers.
#[cube]
pub(crate) fn cube_sum_u32(value: u32, #[comptime] geometry: Geometry) -> u32 {
    let planes = comptime!(geometry.planes());
    sync_plane();
    let mut total = plane_sum(value);
    if comptime!(planes > 1) {
        let mut partials = Shared::<[u32]>::new_slice(planes);
        if UNIT_POS_PLANE == 0 {
            partials[PLANE_POS as usize] = total;
        }
        sync_cube();
        total = 0;
        for i in 0..planes {
            total += partials[i];
        }
        sync_cube();
    }
    total
}

/// Sum of the values of the units before this one.
#[cube]
pub(crate) fn cube_scan(value: u32, #[comptime] geometry: Geometry) -> u32 {
    let planes = comptime!(geometry.planes());
    sync_plane();
    let mut before = plane_exclusive_sum(value);
    if comptime!(planes > 1) {
        let mut partials = Shared::<[u32]>::new_slice(planes);
        if UNIT_POS_PLANE == comptime!(geometry.plane as u32 - 1) {
            partials[PLANE_POS as usize] = before + value;
        }
        sync_cube();
        for i in 0..PLANE_POS as usize {
            before += partials[i];
        }
        sync_cube();
    }
    before
}
