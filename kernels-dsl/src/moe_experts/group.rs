//! The kernels around the products: pairs by expert, and the weighted sum of a row's pairs.

use cubecl::prelude::*;

use super::{MoeStep, MoeStepVariant, TILE_WORDS};
use crate::Geometry;
use crate::compile::Builder;
use crate::reduce::{cube_scan, cube_sum_u32};

/// One cube per expert: how many pairs chose it.
#[cube(launch_unchecked)]
pub fn moe_count(ids: &[u32], counts: &mut [u32], pairs: usize, #[comptime] geometry: Geometry) {
    let expert = CUBE_POS as u32;
    let mut mine = 0u32;
    let mut i = UNIT_POS as usize;
    while i < pairs {
        if ids[i] == expert {
            mine += 1;
        }
        i += comptime!(geometry.units);
    }
    let total = cube_sum_u32(mine, geometry);
    if UNIT_POS == 0 {
        counts[CUBE_POS] = total;
    }
}

/// One cube per expert: its pairs in rising order, behind those of the experts before it, and its tiles.
#[cube(launch_unchecked)]
pub fn moe_place(
    ids: &[u32],
    counts: &[u32],
    tiles: &mut [u32],
    list: &mut [u32],
    pairs: usize,
    experts: usize,
    slots: usize,
    tile_rows: usize,
    #[comptime] geometry: Geometry,
) {
    let units = comptime!(geometry.units);
    let unit = UNIT_POS as usize;
    let expert = CUBE_POS;
    // Pairs and tiles of the experts before this one.
    let mut pairs_before = 0u32;
    let mut tiles_before = 0u32;
    let mut e = unit;
    while e < expert {
        pairs_before += counts[e];
        tiles_before += (counts[e] + tile_rows as u32 - 1) / tile_rows as u32;
        e += units;
    }
    let first = cube_sum_u32(pairs_before, geometry) as usize;
    let first_tile = cube_sum_u32(tiles_before, geometry) as usize;
    // Each unit takes a stretch of the pairs, so that the list keeps their order.
    let stretch = (pairs + units - 1) / units;
    let end = min((unit + 1) * stretch, pairs);
    let mut mine = 0u32;
    let mut i = unit * stretch;
    while i < end {
        if ids[i] == expert as u32 {
            mine += 1;
        }
        i += 1;
    }
    let mut at = first + cube_scan(mine, geometry) as usize;
    let mut j = unit * stretch;
    while j < end {
        if ids[j] == expert as u32 {
            list[at] = j as u32;
            at += 1;
        }
        j += 1;
    }
    let count = counts[expert] as usize;
    let own = (count + tile_rows - 1) / tile_rows;
    let mut t = unit;
    while t < own {
        let slot = (first_tile + t) * TILE_WORDS;
        tiles[slot] = expert as u32;
        tiles[slot + 1] = (first + t * tile_rows) as u32;
        tiles[slot + 2] = min(count - t * tile_rows, tile_rows) as u32;
        t += units;
    }
    if expert == experts - 1 {
        let mut rest = first_tile + own + unit;
        while rest < slots {
            tiles[rest * TILE_WORDS + 2] = 0;
            rest += units;
        }
    }
}

/// One output element per unit: `out = Σ_j weights_j · products_j`, or that added to `out`.
#[cube(launch_unchecked)]
pub fn moe_combine(
    products: &[f32],
    weights: &[f32],
    out: &mut [f32],
    elements: usize,
    width: usize,
    choices: usize,
    add: u32,
) {
    let i = ABSOLUTE_POS;
    if i < elements {
        let first = i / width * choices;
        let column = i % width;
        let mut total = 0.0f32;
        for j in 0..choices {
            total = fma(weights[first + j], products[(first + j) * width + column], total);
        }
        if add == 1 {
            out[i] += total;
        } else {
            out[i] = total;
        }
    }
}

impl MoeStepVariant {
    pub(crate) fn define(&self, b: &Builder) -> KernelDefinition {
        let (settings, properties, target) = b.parts(self.geometry);
        let buffer = Builder::buffer;
        let geometry = self.geometry;
        match self.step {
            MoeStep::Count => {
                moe_count::MoeCount::new(settings, properties, target, buffer(), buffer(), (), geometry).define()
            }
            MoeStep::Place => {
                let buffers = (buffer(), buffer(), buffer(), buffer());
                let (ids, counts, tiles, list) = buffers;
                let kernel = moe_place::MoePlace::new(
                    settings,
                    properties,
                    target,
                    ids,
                    counts,
                    tiles,
                    list,
                    (),
                    (),
                    (),
                    (),
                    geometry,
                );
                kernel.define()
            }
            MoeStep::Combine => {
                let (products, weights, out) = (buffer(), buffer(), buffer());
                let kernel =
                    moe_combine::MoeCombine::new(settings, properties, target, products, weights, out, (), (), (), ());
                kernel.define()
            }
        }
    }
}
