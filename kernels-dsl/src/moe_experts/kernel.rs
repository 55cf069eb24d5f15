//! The product kernels of routed experts.

use cubecl::prelude::*;
use half::{bf16, f16};

use super::{EXPERT_WORDS, MoeProductVariant, Pairs, Stage, TILE_WORDS};
use crate::compile::Builder;
use crate::gated_act::kernel::activate;
use crate::linear::Tile;
use crate::linear::tile::{Share, accumulate, accumulate_mxfp4, combine};
use crate::{Element, Weights};

/// What a cube works on.
#[derive(CubeType)]
struct Job {
    /// Entry of the expert in the table.
    entry: usize,
    /// First place of the pairs in the list, or the pair itself.
    first: usize,
    /// Pairs; 0 where the slot has no tile.
    count: usize,
    /// First output of this plane.
    out: usize,
    share: Share,
}

/// Expert, first place of its pairs and their number.
#[cube]
fn tile_of(ids: &[u32], tiles: &[u32], slot: usize, #[comptime] variant: MoeProductVariant) -> (usize, usize, usize) {
    if comptime!(variant.pairs == Pairs::Grouped) {
        let at = slot * TILE_WORDS;
        (tiles[at] as usize, tiles[at + 1] as usize, tiles[at + 2] as usize)
    } else {
        (ids[slot] as usize, slot, 1usize.runtime())
    }
}

#[cube]
fn job(ids: &[u32], tiles: &[u32], loads: usize, #[comptime] variant: MoeProductVariant) -> Job {
    let slot = CUBE_POS_Y as usize;
    let tile = tile_of(ids, tiles, slot, variant);
    let plane = PLANE_POS as usize;
    let split = comptime!(variant.tile.split);
    let index = CUBE_POS_X as usize * comptime!(variant.tiles_per_cube()) + plane / split;
    let start = (plane % split) * comptime!(variant.geometry.plane) + UNIT_POS_PLANE as usize;
    let step = comptime!(variant.geometry.plane * split);
    let out = index * comptime!(variant.tile.outs);
    let share = Share { start, step, loads };
    Job { entry: tile.0 * EXPERT_WORDS, first: tile.1, count: tile.2, out, share }
}

/// The pairs of a tile; places past its end repeat the last.
#[cube]
fn pairs_of(job: &Job, list: &[u32], #[comptime] variant: MoeProductVariant) -> Array<usize> {
    let mut pairs = Array::<usize>::new(comptime!(variant.tile.rows));
    #[unroll]
    for r in 0..variant.tile.rows {
        if comptime!(variant.pairs == Pairs::Grouped) {
            pairs[r] = list[job.first + min(r, job.count - 1)] as usize;
        } else {
            pairs[r] = job.first;
        }
    }
    pairs
}

/// First load of each pair's input row.
#[cube]
fn row_starts(pairs: &Array<usize>, sharing: usize, loads: usize, #[comptime] count: usize) -> Array<usize> {
    let mut starts = Array::<usize>::new(count);
    #[unroll]
    for r in 0..count {
        starts[r] = pairs[r] / sharing * loads;
    }
    starts
}

/// First load of each output's weights; outputs past the end repeat the last.
#[cube]
fn columns(base: usize, out: usize, outs: usize, loads: usize, #[comptime] count: usize) -> Array<usize> {
    let mut columns = Array::<usize>::new(count);
    #[unroll]
    for o in 0..count {
        columns[o] = base + min(out + o, outs - 1) * loads;
    }
    columns
}

/// Writes a tile.
#[cube]
fn store(values: &Array<f32>, out: &mut [f32], job: &Job, pairs: &Array<usize>, outs: usize, #[comptime] tile: Tile) {
    if (PLANE_POS as usize) % tile.split == 0 && UNIT_POS_PLANE == 0 {
        #[unroll]
        for r in 0..tile.rows {
            #[unroll]
            for o in 0..tile.outs {
                if r < job.count && job.out + o < outs {
                    out[pairs[r] * outs + job.out + o] = values[r * tile.outs + o];
                }
            }
        }
    }
}

/// `values = act(values, up)`.
#[cube]
fn activate_all(values: &mut Array<f32>, up: &Array<f32>, b: f32, c: f32, #[comptime] variant: MoeProductVariant) {
    #[unroll]
    for i in 0..comptime!(variant.tile.rows * variant.tile.outs) {
        if let Stage::GateUp(act) = comptime!(variant.stage) {
            values[i] = activate(values[i], up[i], b, c, act);
        }
    }
}

/// Weights of one element each, in vectors of `N` as the input.
#[cube(launch_unchecked)]
pub fn moe_product<W: Float, N: Size>(
    input: &[Vector<f32, N>],
    weights: &[Vector<W, N>],
    table: &[u64],
    ids: &[u32],
    tiles: &[u32],
    list: &[u32],
    out: &mut [f32],
    sharing: usize,
    loads: usize,
    outs: usize,
    b: f32,
    c: f32,
    #[comptime] variant: MoeProductVariant,
) {
    let tile = comptime!(variant.tile);
    let job = job(ids, tiles, loads, variant);
    if job.count > 0 {
        let pairs = pairs_of(&job, list, variant);
        let starts = row_starts(&pairs, sharing, loads, comptime!(tile.rows));
        let first = columns(table[job.entry] as usize, job.out, outs, loads, comptime!(tile.outs));
        let acc = accumulate::<W, N>(input, weights, &starts, &first, &job.share, tile);
        let mut values = combine(&acc, tile, comptime!(variant.geometry));
        if comptime!(variant.stage != Stage::Down) {
            let second = columns(table[job.entry + 2] as usize, job.out, outs, loads, comptime!(tile.outs));
            let acc = accumulate::<W, N>(input, weights, &starts, &second, &job.share, tile);
            let up = combine(&acc, tile, comptime!(variant.geometry));
            activate_all(&mut values, &up, b, c, variant);
        }
        store(&values, out, &job, &pairs, outs, tile);
    }
}

/// MXFP4 weights: `loads` groups of 32 per row.
#[cube(launch_unchecked)]
pub fn moe_product_mxfp4(
    input: &[Vector<f32, Const<4>>],
    weights: &[Vector<u32, Const<4>>],
    scales: &[u8],
    table: &[u64],
    ids: &[u32],
    tiles: &[u32],
    list: &[u32],
    out: &mut [f32],
    sharing: usize,
    loads: usize,
    outs: usize,
    b: f32,
    c: f32,
    #[comptime] variant: MoeProductVariant,
) {
    let tile = comptime!(variant.tile);
    let job = job(ids, tiles, loads, variant);
    if job.count > 0 {
        let pairs = pairs_of(&job, list, variant);
        let starts = row_starts(&pairs, sharing, loads * 8, comptime!(tile.rows));
        let column = min(job.out, outs - 1) * loads;
        let at = (table[job.entry] as usize + column, table[job.entry + 1] as usize + column);
        let acc = accumulate_mxfp4(input, weights, scales, &starts, at, &job.share, tile);
        let mut values = combine(&acc, tile, comptime!(variant.geometry));
        if comptime!(variant.stage != Stage::Down) {
            let at = (table[job.entry + 2] as usize + column, table[job.entry + 3] as usize + column);
            let acc = accumulate_mxfp4(input, weights, scales, &starts, at, &job.share, tile);
            let up = combine(&acc, tile, comptime!(variant.geometry));
            activate_all(&mut values, &up, b, c, variant);
        }
        store(&values, out, &job, &pairs, outs, tile);
    }
}

impl MoeProductVariant {
    pub(crate) fn define(&self, b: &Builder) -> KernelDefinition {
        match self.weights {
            Weights::Plain(Element::F32) => self.define_for::<f32>(b),
            Weights::Plain(Element::Bf16) => self.define_for::<bf16>(b),
            Weights::Plain(Element::F16) => self.define_for::<f16>(b),
            Weights::Mxfp4 => self.define_mxfp4(b),
        }
    }

    fn define_for<W: Float>(&self, b: &Builder) -> KernelDefinition {
        let (settings, properties, target) = b.parts(self.geometry);
        let buffer = Builder::buffer;
        moe_product::MoeProduct::<W>::new(
            settings,
            properties,
            target,
            buffer(),
            buffer(),
            buffer(),
            buffer(),
            buffer(),
            buffer(),
            buffer(),
            (),
            (),
            (),
            (),
            (),
            self.vector,
            *self,
        )
        .define()
    }

    fn define_mxfp4(&self, b: &Builder) -> KernelDefinition {
        let (settings, properties, target) = b.parts(self.geometry);
        let buffer = Builder::buffer;
        moe_product_mxfp4::MoeProductMxfp4::new(
            settings,
            properties,
            target,
            buffer(),
            buffer(),
            buffer(),
            buffer(),
            buffer(),
            buffer(),
            buffer(),
            buffer(),
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
