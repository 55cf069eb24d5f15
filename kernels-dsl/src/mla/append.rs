//! Latent norm, and the rows of the cache.
#![allow(clippy::too_many_arguments)] // one buffer per operand

use cubecl::prelude::*;

use super::{MlaStage, MlaVariant};
use crate::compile::Builder;
use crate::reduce::cube_sum;

/// One cube per row (x) of a run (y). `kv_a [N, C + r]`, `norm [C]`; block `b` of the arena begins at
/// `latent_offset + b * latent_stride`.
#[cube(launch_unchecked)]
pub fn mla_append(
    kv_a: &[f32],
    norm: &[f32],
    start: &[u32],
    len: &[u32],
    position: &[u32],
    table_offset: &[u32],
    blocks: &[u32],
    arena: &mut [f32],
    latent_offset: usize,
    latent_stride: usize,
    block_size: u32,
    first: usize,
    eps: f32,
    #[comptime] v: MlaVariant,
) {
    let geometry = comptime!(v.geometry(MlaStage::Append));
    let latent = comptime!(v.shape.latent);
    let width = comptime!(v.shape.width());
    let run = CUBE_POS_Y as usize;
    let within = first + CUBE_POS_X as usize;
    if within < len[run] as usize {
        let token = position[run] + within as u32;
        let block = blocks[table_offset[run] as usize + (token / block_size) as usize] as usize;
        let to = latent_offset + block * latent_stride + (token % block_size) as usize * width;
        let from = (start[run] as usize + within) * width;
        let mut squares = 0.0;
        let mut c = UNIT_POS as usize;
        while c < latent {
            let value = kv_a[from + c];
            squares = fma(value, value, squares);
            c += comptime!(geometry.units);
        }
        let mean = cube_sum(squares, geometry) / comptime!(v.shape.latent as f32);
        let factor = 1.0 / (mean + eps).sqrt();
        let mut c = UNIT_POS as usize;
        while c < width {
            let value = kv_a[from + c];
            if c < latent {
                arena[to + c] = value * factor * norm[c];
            } else {
                arena[to + c] = value;
            }
            c += comptime!(geometry.units);
        }
    }
}

impl MlaVariant {
    pub(crate) fn define_append(&self, b: &Builder) -> KernelDefinition {
        let (settings, properties, target) = b.parts(self.geometry(MlaStage::Append));
        let buffer = Builder::buffer;
        mla_append::MlaAppend::new(
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
