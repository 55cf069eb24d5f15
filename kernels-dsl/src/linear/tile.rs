//! The inner loops of all matrix products: a tile of rows times outputs, accumulated lane by lane, and its sum.

use cubecl::prelude::*;

use super::Tile;
use crate::Geometry;

/// Where a tile's data lie and which share of the inner dimension this lane takes.
#[derive(CubeType)]
pub(crate) struct Share {
    /// First load of the lane.
    pub start: usize,
    /// Distance between its loads.
    pub step: usize,
    /// Loads of a weight's row.
    pub loads: usize,
}

/// Products of a tile over this lane's share: `acc[r · outs + o]`.
///
/// `rows`: first load of each input row; `columns`: first load of each output's weights. All in vectors of `N`.
#[cube]
pub(crate) fn accumulate<W: Float, N: Size>(
    x: &[Vector<f32, N>],
    weights: &[Vector<W, N>],
    rows: &Array<usize>,
    columns: &Array<usize>,
    share: &Share,
    #[comptime] tile: Tile,
) -> Array<f32> {
    let mut acc = zeros(comptime!(tile.rows * tile.outs));
    let mut k = share.start;
    while k < share.loads {
        let mut w = Array::<Vector<f32, N>>::new(comptime!(tile.outs));
        #[unroll]
        for o in 0..tile.outs {
            w[o] = Vector::<f32, N>::cast_from(weights[columns[o] + k]);
        }
        #[unroll]
        for r in 0..tile.rows {
            let input = x[rows[r] + k];
            #[unroll]
            for o in 0..tile.outs {
                let mut sum = acc[r * tile.outs + o];
                #[unroll]
                for e in 0..N::value() {
                    sum = fma(w[o].extract(e), input.extract(e), sum);
                }
                acc[r * tile.outs + o] = sum;
            }
        }
        k += share.step;
    }
    acc
}

/// As [`accumulate()`] for one output in MXFP4: a load is 32 nibbles, 8 loads of `x` in vectors of 4. `rows` in vectors of
/// 4, `column` in loads of the weights, `scales` the first scale.
#[cube]
pub(crate) fn accumulate_mxfp4(
    x: &[Vector<f32, Const<4>>],
    weights: &[Vector<u32, Const<4>>],
    scales: &[u8],
    rows: &Array<usize>,
    column: (usize, usize),
    share: &Share,
    #[comptime] tile: Tile,
) -> Array<f32> {
    let mut acc = zeros(comptime!(tile.rows));
    let mut k = share.start;
    while k < share.loads {
        let packed = weights[column.0 + k];
        let scale = e8m0(scales[column.1 + k]);
        let mut w = Array::<f32>::new(32usize);
        #[unroll]
        for word in 0..4usize {
            let bits = packed.extract(word);
            #[unroll]
            for n in 0..8usize {
                w[word * 8 + n] = e2m1(bits >> comptime!(4 * n as u32));
            }
        }
        #[unroll]
        for r in 0..tile.rows {
            let mut sum = 0.0f32;
            #[unroll]
            for i in 0..8usize {
                let input = x[rows[r] + k * 8 + i];
                #[unroll]
                for e in 0..4usize {
                    sum = fma(w[i * 4 + e], input.extract(e), sum);
                }
            }
            acc[r] = fma(scale, sum, acc[r]);
        }
        k += share.step;
    }
    acc
}

/// Sums of all lanes of the planes that share a tile; every lane of the first of them gets the result.
///
/// All units of the cube must call it.
#[cube]
pub(crate) fn combine(acc: &Array<f32>, #[comptime] tile: Tile, #[comptime] geometry: Geometry) -> Array<f32> {
    let count = comptime!(tile.rows * tile.outs);
    let mut sums = Array::<f32>::new(count);
    // Lanes leave their loops at different times; once is enough for all sums.
    sync_plane();
    #[unroll]
    for i in 0..count {
        sums[i] = plane_sum(acc[i]);
    }
    if comptime!(tile.split > 1) {
        let mut partial = Shared::<[f32]>::new_slice(comptime!(geometry.planes() * count));
        let plane = PLANE_POS as usize;
        if UNIT_POS_PLANE == 0 {
            #[unroll]
            for i in 0..count {
                partial[plane * count + i] = sums[i];
            }
        }
        sync_cube();
        let first = plane - plane % tile.split;
        #[unroll]
        for i in 0..count {
            let mut total = 0.0f32;
            #[unroll]
            for s in 0..tile.split {
                total += partial[(first + s) * count + i];
            }
            sums[i] = total;
        }
    }
    sums
}

#[cube]
fn zeros(#[comptime] count: usize) -> Array<f32> {
    let mut acc = Array::<f32>::new(count);
    #[unroll]
    for i in 0..count {
        acc[i] = 0.0;
    }
    acc
}

/// Value of the lowest nibble: its three lower bits become exponent and mantissa of a tiny float, subnormals included,
/// which one exact product brings to its place.
#[cube]
fn e2m1(bits: u32) -> f32 {
    let tiny = ((bits & 7) << 22) | ((bits & 8) << 28);
    f32::reinterpret(tiny) * 8.507_059e37f32
}

/// `2^(s - 127)`; 255 is not a number.
#[cube]
fn e8m0(byte: u8) -> f32 {
    let s = byte as u32;
    let subnormal = select(s == 0, 0x0040_0000u32, s << 23);
    f32::reinterpret(select(s == 255, 0x7fc0_0000u32, subnormal))
}
