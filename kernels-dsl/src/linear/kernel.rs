//! The kernels of matrix products.

use cubecl::prelude::*;
use half::{bf16, f16};

use super::tile::{Share, accumulate, accumulate_mxfp4, combine};
use super::{LinearVariant, PART_WORDS, Tile};
use crate::compile::Builder;
use crate::{Element, Geometry, Weights};

/// What one plane of a launch works on.
#[derive(CubeType)]
struct Job {
    /// Entry of the part in the table.
    entry: usize,
    /// First output within the part.
    out: usize,
    /// Outputs of the part.
    outs: usize,
    /// First row.
    row: usize,
    share: Share,
}

/// The tile of this plane. Planes past the last tile repeat outputs of the last part, and write nothing.
#[cube]
fn job(table: &[u64], loads: usize, parts: usize, #[comptime] tile: Tile, #[comptime] geometry: Geometry) -> Job {
    let plane = PLANE_POS as usize;
    let index = CUBE_POS_X as usize * comptime!(geometry.planes() / tile.split) + plane / tile.split;
    let mut entry = 0usize;
    let mut part = 1usize;
    while part < parts {
        if index >= table[part * PART_WORDS] as usize {
            entry = part * PART_WORDS;
        }
        part += 1;
    }
    let lane = UNIT_POS_PLANE as usize;
    let start = (plane % tile.split) * comptime!(geometry.plane) + lane;
    let step = comptime!(geometry.plane * tile.split);
    Job {
        entry,
        out: (index - table[entry] as usize) * tile.outs,
        outs: table[entry + 4] as usize,
        row: CUBE_POS_Y as usize * tile.rows,
        share: Share { start, step, loads },
    }
}

/// First load of each row of the tile; rows past the end repeat the last.
#[cube]
fn row_starts(first: usize, rows: usize, loads: usize, #[comptime] count: usize) -> Array<usize> {
    let mut starts = Array::<usize>::new(count);
    #[unroll]
    for r in 0..count {
        starts[r] = min(first + r, rows - 1) * loads;
    }
    starts
}

/// Writes a tile, one lane per value.
#[cube]
fn store(sums: &Array<f32>, table: &[u64], out: &mut [f32], job: &Job, rows: usize, #[comptime] tile: Tile) {
    let writer = (PLANE_POS as usize) % tile.split == 0 && UNIT_POS_PLANE == 0;
    if writer {
        let base = table[job.entry + 3] as usize;
        let add = table[job.entry + 5] == 1;
        #[unroll]
        for r in 0..tile.rows {
            #[unroll]
            for o in 0..tile.outs {
                let (row, column) = (job.row + r, job.out + o);
                if row < rows && column < job.outs {
                    let at = base + row * job.outs + column;
                    let value = sums[r * tile.outs + o];
                    if add {
                        out[at] += value;
                    } else {
                        out[at] = value;
                    }
                }
            }
        }
    }
}

/// Weights of one element each. `x`: `[rows, loads]` and the weights in vectors of `N`.
#[cube(launch_unchecked)]
pub fn linear<W: Float, N: Size>(
    x: &[Vector<f32, N>],
    weights: &[Vector<W, N>],
    table: &[u64],
    out: &mut [f32],
    rows: usize,
    loads: usize,
    parts: usize,
    #[comptime] tile: Tile,
    #[comptime] geometry: Geometry,
) {
    let job = job(table, loads, parts, tile, geometry);
    let starts = row_starts(job.row, rows, loads, comptime!(tile.rows));
    let base = table[job.entry + 1] as usize;
    let mut columns = Array::<usize>::new(comptime!(tile.outs));
    #[unroll]
    for o in 0..tile.outs {
        columns[o] = base + min(job.out + o, job.outs - 1) * loads;
    }
    let acc = accumulate::<W, N>(x, weights, &starts, &columns, &job.share, tile);
    let sums = combine(&acc, tile, geometry);
    store(&sums, table, out, &job, rows, tile);
}

/// MXFP4 weights: `loads` groups of 32 per row.
#[cube(launch_unchecked)]
pub fn linear_mxfp4(
    x: &[Vector<f32, Const<4>>],
    weights: &[Vector<u32, Const<4>>],
    scales: &[u8],
    table: &[u64],
    out: &mut [f32],
    rows: usize,
    loads: usize,
    parts: usize,
    #[comptime] tile: Tile,
    #[comptime] geometry: Geometry,
) {
    let job = job(table, loads, parts, tile, geometry);
    let starts = row_starts(job.row, rows, loads * 8, comptime!(tile.rows));
    let column = min(job.out, job.outs - 1) * loads;
    let at = (table[job.entry + 1] as usize + column, table[job.entry + 2] as usize + column);
    let acc = accumulate_mxfp4(x, weights, scales, &starts, at, &job.share, tile);
    let sums = combine(&acc, tile, geometry);
    store(&sums, table, out, &job, rows, tile);
}

impl LinearVariant {
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
        linear::Linear::<W>::new(
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
            self.vector,
            self.tile,
            self.geometry,
        )
        .define()
    }

    fn define_mxfp4(&self, b: &Builder) -> KernelDefinition {
        let (settings, properties, target) = b.parts(self.geometry);
        let buffer = Builder::buffer;
        linear_mxfp4::LinearMxfp4::new(
            settings,
            properties,
            target,
            buffer(),
            buffer(),
            buffer(),
            buffer(),
            buffer(),
            (),
            (),
            (),
            self.tile,
            self.geometry,
        )
        .define()
    }
}
