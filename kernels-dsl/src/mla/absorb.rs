//! Queries into the latent space: the key matrix moves from the keys to the queries.
#![allow(clippy::too_many_arguments)] // one buffer per operand

use cubecl::prelude::*;
use half::{bf16, f16};

use super::slots::{Window, slot};
use super::{MlaStage, MlaVariant, TILE};
use crate::Element;
use crate::compile::Builder;

/// One cube per head (x) and tile (y). `q [N, heads (n + r)]`, `kv_b [heads (n + v), C]` in vectors, `queries`: per slot and
/// head `query_width` values in vectors: the absorbed query, then its shared part, scaled.
#[cube(launch_unchecked)]
pub fn mla_absorb<W: Float, N: Size>(
    q: &[f32],
    kv_b: &[Vector<W, N>],
    start: &[u32],
    len: &[u32],
    queries: &mut [Vector<f32, N>],
    queries_shared: &mut [f32],
    runs: usize,
    rows: usize,
    first: usize,
    heads: usize,
    query_width: usize,
    scale: f32,
    #[comptime] v: MlaVariant,
) {
    let units = comptime!(v.geometry(MlaStage::Absorb).units);
    let nope = comptime!(v.shape.nope);
    let rope = comptime!(v.shape.rope);
    let vectors = comptime!(v.shape.latent / v.wide);
    let head = CUBE_POS_X as usize;
    let window = Window { runs, rows, first };
    let mut qs = Shared::<[f32]>::new_slice(comptime!(TILE * v.shape.nope));
    let mut used = 0u32;
    for j in 0..TILE {
        let place = slot(start, len, &window, CUBE_POS_Y as usize, j, v);
        let from = (place.row * heads + head) * comptime!(v.shape.nope + v.shape.rope);
        if place.valid {
            used += 1;
        }
        let mut c = UNIT_POS as usize;
        while c < nope {
            let mut value = 0.0;
            if place.valid {
                value = q[from + c] * scale;
            }
            qs[j * nope + c] = value;
            c += units;
        }
        let mut c = UNIT_POS as usize;
        while c < rope {
            if place.valid {
                let to = (place.index * heads + head) * query_width + comptime!(v.shape.latent);
                queries_shared[to + c] = q[from + nope + c] * scale;
            }
            c += units;
        }
    }
    sync_cube();
    if used > 0 {
        let matrix = head * comptime!((v.shape.nope + v.shape.value) * v.shape.latent / v.wide);
        let mut c = UNIT_POS as usize;
        while c < vectors {
            let mut sums = Array::<Vector<f32, N>>::new(TILE);
            for i in 0..nope {
                let weight = Vector::<f32, N>::cast_from(kv_b[matrix + i * vectors + c]);
                #[unroll]
                for j in 0..TILE {
                    sums[j] = fma(Vector::new(qs[j * nope + i]), weight, sums[j]);
                }
            }
            #[unroll]
            for j in 0..TILE {
                let place = slot(start, len, &window, CUBE_POS_Y as usize, j, v);
                if place.valid {
                    let to = (place.index * heads + head) * query_width / comptime!(v.wide);
                    queries[to + c] = sums[j];
                }
            }
            c += units;
        }
    }
}

impl MlaVariant {
    pub(crate) fn define_absorb(&self, b: &Builder) -> KernelDefinition {
        match self.shape.element {
            Element::F32 => self.absorb_of::<f32>(b),
            Element::Bf16 => self.absorb_of::<bf16>(b),
            Element::F16 => self.absorb_of::<f16>(b),
        }
    }

    fn absorb_of<W: Float>(&self, b: &Builder) -> KernelDefinition {
        let (settings, properties, target) = b.parts(self.geometry(MlaStage::Absorb));
        let buffer = Builder::buffer;
        mla_absorb::MlaAbsorb::<W>::new(
            settings,
            properties,
            target,
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
