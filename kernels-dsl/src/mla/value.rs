//! Merge of the splits, value matrix, output gate.
#![allow(clippy::too_many_arguments)] // one buffer per operand

use cubecl::prelude::*;
use half::{bf16, f16};

use super::slots::{Window, slot};
use super::{MAX_SPLITS, MlaStage, MlaVariant, OutGate, TILE};
use crate::Element;
use crate::compile::Builder;
use crate::math::sigmoid;

/// One cube per head (x) and tile (y). `mixtures` and `stats` as `mla_attend` leaves them, `kv_b [heads (n + v), C]` in
/// vectors, `gate`, `out`: `[N, heads v]`.
///
/// An empty split changes nothing; where all are empty the output is zero.
#[cube(launch_unchecked)]
pub fn mla_value<W: Float, N: Size>(
    mixtures: &[Vector<f32, N>],
    stats: &[f32],
    kv_b: &[Vector<W, N>],
    gate: &[f32],
    start: &[u32],
    len: &[u32],
    out: &mut [f32],
    runs: usize,
    rows: usize,
    first: usize,
    heads: usize,
    splits: usize,
    mixture_width: usize,
    #[comptime] v: MlaVariant,
) {
    let geometry = comptime!(v.geometry(MlaStage::Value));
    let units = comptime!(geometry.units);
    let plane = comptime!(v.plane);
    let vectors = comptime!(v.shape.latent / v.wide);
    let value = comptime!(v.shape.value);
    let head = CUBE_POS_X as usize;
    let tile = CUBE_POS_Y as usize;
    let window = Window { runs, rows, first };
    let mut weights = Shared::<[f32]>::new_slice(comptime!(TILE * MAX_SPLITS));
    let mut mixed = Shared::<[Vector<f32, N>]>::new_slice(comptime!(TILE * v.shape.latent / v.wide));
    let mut used = 0u32;
    for j in 0..TILE {
        if slot(start, len, &window, tile, j, v).valid {
            used += 1;
        }
    }
    if used > 0 {
        let mut item = UNIT_POS as usize;
        while item < TILE * splits {
            let place = slot(start, len, &window, tile, item / splits, v);
            let mut weight = 0.0;
            if place.valid {
                weight = split_weight(stats, (place.index * heads + head) * splits, item % splits, splits);
            }
            weights[(item / splits) * MAX_SPLITS + item % splits] = weight;
            item += units;
        }
        sync_cube();
        let mut item = UNIT_POS as usize;
        while item < TILE * vectors {
            let j = item / vectors;
            let place = slot(start, len, &window, tile, j, v);
            let mut sum = Vector::<f32, N>::new(0.0);
            if place.valid {
                for s in 0..splits {
                    let weight = weights[j * MAX_SPLITS + s];
                    let from = ((place.index * heads + head) * splits + s) * mixture_width / comptime!(v.wide);
                    sum = fma(Vector::new(weight), mixtures[from + item % vectors], sum);
                }
            }
            mixed[item] = sum;
            item += units;
        }
        sync_cube();
        let matrix = (head * comptime!(v.shape.nope + v.shape.value) + comptime!(v.shape.nope)) * vectors;
        let mut o = PLANE_POS as usize;
        while o < value {
            let mut sums = Array::<Vector<f32, N>>::new(TILE);
            let mut c = UNIT_POS_PLANE as usize;
            while c < vectors {
                let weight = Vector::<f32, N>::cast_from(kv_b[matrix + o * vectors + c]);
                #[unroll]
                for j in 0..TILE {
                    sums[j] = fma(mixed[j * vectors + c], weight, sums[j]);
                }
                c += plane;
            }
            #[unroll]
            for j in 0..TILE {
                let total = plane_sum(sums[j].vector_sum());
                let place = slot(start, len, &window, tile, j, v);
                if place.valid && UNIT_POS_PLANE == 0 {
                    let at = (place.row * heads + head) * value + o;
                    if comptime!(v.shape.gate == OutGate::Sigmoid) {
                        out[at] = total * sigmoid(gate[at]);
                    } else {
                        out[at] = total;
                    }
                }
            }
            o += comptime!(geometry.planes());
        }
    }
}

/// The factor of split `s` among the `splits` of a query whose statistics begin at `first`.
#[cube]
fn split_weight(stats: &[f32], first: usize, s: usize, splits: usize) -> f32 {
    let mut highest = f32::new(f32::MIN);
    for i in 0..splits {
        if stats[(first + i) * 2 + 1] > 0.0 {
            highest = max(highest, stats[(first + i) * 2]);
        }
    }
    let mut total = 0.0;
    for i in 0..splits {
        let sum = stats[(first + i) * 2 + 1];
        if sum > 0.0 {
            total += sum * (stats[(first + i) * 2] - highest).exp();
        }
    }
    let mut weight = 0.0;
    if stats[(first + s) * 2 + 1] > 0.0 {
        weight = (stats[(first + s) * 2] - highest).exp() / total;
    }
    weight
}

impl MlaVariant {
    pub(crate) fn define_value(&self, b: &Builder) -> KernelDefinition {
        match self.shape.element {
            Element::F32 => self.value_of::<f32>(b),
            Element::Bf16 => self.value_of::<bf16>(b),
            Element::F16 => self.value_of::<f16>(b),
        }
    }

    fn value_of<W: Float>(&self, b: &Builder) -> KernelDefinition {
        let (settings, properties, target) = b.parts(self.geometry(MlaStage::Value));
        let buffer = Builder::buffer;
        mla_value::MlaValue::<W>::new(
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
            (),
            self.wide,
            *self,
        )
        .define()
    }
}
