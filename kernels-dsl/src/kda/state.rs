//! A block of state columns in registers: loading, storing, one token's update.
//!
//! Unit `(r, c)` of the block has rows `r, r + row_lanes, ..` of the vector of columns `c`. The lanes of a plane are
//! rows by columns, so that the sum over rows is a butterfly within the plane.
#![allow(clippy::too_many_arguments)] // device code passes buffers one by one

use cubecl::prelude::*;

use super::KdaVariant;

/// A unit's part of a block.
#[derive(CubeType, Clone, Copy)]
pub(crate) struct Lane {
    /// First row.
    pub(crate) row: usize,
    /// First column, within the head; 0 where the unit has none.
    pub(crate) column: usize,
    /// Whether the unit has columns.
    pub(crate) active: bool,
}

/// The part of this unit in block number `block`.
#[cube]
pub(crate) fn lane(block: usize, #[comptime] v: KdaVariant) -> Lane {
    let column_lanes = comptime!(v.geometry.plane / v.row_lanes);
    let within = UNIT_POS_PLANE as usize;
    let vector = PLANE_POS as usize * column_lanes + within % column_lanes;
    let column = block * comptime!(v.block()) + vector * comptime!(v.vector);
    let active = column < comptime!(v.head_dim);
    let mut inside = 0usize;
    if active {
        inside = column;
    }
    Lane { row: within / column_lanes, column: inside, active }
}

/// Reads a block; `base` is the vector at which the head's state begins. A unit without columns reads nothing, as another
/// may already be writing.
#[cube]
pub(crate) fn load<N: Size>(
    arena: &[Vector<f32, N>],
    base: usize,
    lane: &Lane,
    block: &mut Array<Vector<f32, N>>,
    #[comptime] v: KdaVariant,
) {
    let d = comptime!(v.head_dim);
    let first = base + lane.column / comptime!(v.vector);
    #[unroll]
    for s in 0..comptime!(v.rows()) {
        let row = lane.row + comptime!(s * v.row_lanes);
        if comptime!((s + 1) * v.row_lanes <= d && d % v.block() == 0) {
            block[s] = arena[first + row * comptime!(d / v.vector)];
        } else {
            block[s] = Vector::new(0.0);
            if lane.active && row < d {
                block[s] = arena[first + row * comptime!(d / v.vector)];
            }
        }
    }
}

/// Writes a block; `base` is the vector at which the target head's state begins.
#[cube]
pub(crate) fn store<N: Size>(
    arena: &mut [Vector<f32, N>],
    base: usize,
    lane: &Lane,
    block: &Array<Vector<f32, N>>,
    #[comptime] v: KdaVariant,
) {
    let d = comptime!(v.head_dim);
    let first = base + lane.column / comptime!(v.vector);
    if lane.active {
        #[unroll]
        for s in 0..comptime!(v.rows()) {
            let row = lane.row + comptime!(s * v.row_lanes);
            if comptime!((s + 1) * v.row_lanes <= d) {
                arena[first + row * comptime!(d / v.vector)] = block[s];
            } else {
                if row < d {
                    arena[first + row * comptime!(d / v.vector)] = block[s];
                }
            }
        }
    }
}

/// Sum over the row lanes; every one of them gets it.
#[cube]
pub(crate) fn sum_rows<N: Size>(value: Vector<f32, N>, #[comptime] v: KdaVariant) -> Vector<f32, N> {
    let column_lanes = comptime!(v.geometry.plane / v.row_lanes);
    let steps = comptime!(v.row_lanes.trailing_zeros());
    let mut sum = value;
    #[unroll]
    for i in 0..steps {
        sum += plane_shuffle_xor(sum, comptime!((column_lanes << i) as u32));
    }
    sum
}

/// One token through a block: decay, delta rule. `at` is the token's first value in the shared rows.
#[cube]
pub(crate) fn update<N: Size>(
    block: &mut Array<Vector<f32, N>>,
    k: &[f32],
    value: &[f32],
    g: &[f32],
    beta: f32,
    at: usize,
    lane: &Lane,
    #[comptime] v: KdaVariant,
) {
    let rows = comptime!(v.rows());
    let mut sums = Vector::<f32, N>::new(0.0);
    #[unroll]
    for s in 0..rows {
        let i = at + lane.row + comptime!(s * v.row_lanes);
        block[s] = block[s] * Vector::new(g[i].exp());
        sums = fma(Vector::new(k[i]), block[s], sums);
    }
    let found = sum_rows(sums, v);
    let mut wanted = Vector::<f32, N>::new(0.0);
    #[unroll]
    for n in 0..comptime!(v.vector) {
        wanted.insert(n, value[at + lane.column + n]);
    }
    let delta = (wanted - found) * Vector::new(beta);
    #[unroll]
    for s in 0..rows {
        let i = at + lane.row + comptime!(s * v.row_lanes);
        block[s] = fma(Vector::new(k[i]), delta, block[s]);
    }
}

/// Output of one token from an updated block.
#[cube]
pub(crate) fn read<N: Size>(
    block: &Array<Vector<f32, N>>,
    q: &[f32],
    at: usize,
    lane: &Lane,
    o: &mut [f32],
    #[comptime] v: KdaVariant,
) {
    let mut sums = Vector::<f32, N>::new(0.0);
    #[unroll]
    for s in 0..comptime!(v.rows()) {
        let i = at + lane.row + comptime!(s * v.row_lanes);
        sums = fma(Vector::new(q[i]), block[s], sums);
    }
    let total = sum_rows(sums, v);
    if lane.active && lane.row == 0 {
        #[unroll]
        for n in 0..comptime!(v.vector) {
            o[at + lane.column + n] = total.extract(n);
        }
    }
}
