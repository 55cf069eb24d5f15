//! Attention of absorbed queries over a part of each sequence, with an online softmax.
#![allow(clippy::too_many_arguments)] // one buffer per operand

use cubecl::prelude::*;

use super::{MlaStage, MlaVariant, TOKENS};
use crate::compile::Builder;

/// Where the latents of a run lie.
#[derive(CubeType, Clone, Copy)]
struct Cache {
    /// First entry of the run's block table.
    table: usize,
    /// Vector at which block 0 begins.
    offset: usize,
    /// Vectors from block to block.
    stride: usize,
    /// Tokens of a block.
    block_size: u32,
}

/// The vector at which the latent of a token begins.
#[cube]
fn latent_of(cache: &Cache, blocks: &[u32], token: u32, #[comptime] v: MlaVariant) -> usize {
    let block = blocks[cache.table + (token / cache.block_size) as usize] as usize;
    let within = (token % cache.block_size) as usize;
    cache.offset + block * cache.stride + within * comptime!(v.shape.width() / v.vector)
}

/// One cube per group of queries and split (x) and run (y).
///
/// `queries`: per slot and head `query_width` values; `mixtures`: per slot, head and split `mixture_width` values, the sum
/// of `e^(score - maximum)` times the latents; `stats`: the maximum and the sum of `e^(score - maximum)`, 0 where the part
/// of the sequence is empty.
#[cube(launch_unchecked)]
pub fn mla_attend<N: Size>(
    queries: &[Vector<f32, N>],
    arena: &[Vector<f32, N>],
    len: &[u32],
    position: &[u32],
    table_offset: &[u32],
    blocks: &[u32],
    mixtures: &mut [Vector<f32, N>],
    stats: &mut [f32],
    latent_offset: usize,
    latent_stride: usize,
    block_size: u32,
    rows: usize,
    first: usize,
    heads: usize,
    splits: usize,
    query_width: usize,
    mixture_width: usize,
    #[comptime] v: MlaVariant,
) {
    let plane = comptime!(v.plane);
    let mine = comptime!(v.queries_per_plane());
    let row_vectors = comptime!(v.shape.width() / v.vector);
    let latent_vectors = comptime!(v.shape.latent / v.vector);
    let key_parts = comptime!(v.shape.width().div_ceil(v.vector * v.plane));
    let value_parts = comptime!(v.shape.latent.div_ceil(v.vector * v.plane));
    let lane = UNIT_POS_PLANE as usize;
    let run = CUBE_POS_Y as usize;
    let group = CUBE_POS_X as usize / splits;
    let split = CUBE_POS_X as usize % splits;
    let cache = Cache { table: table_offset[run] as usize, offset: latent_offset, stride: latent_stride, block_size };

    let mut in_run = 0usize;
    if first < len[run] as usize {
        in_run = min(len[run] as usize - first, rows) * heads;
    }
    let base = group * comptime!(v.queries_per_cube());
    let own = base + PLANE_POS as usize * mine;
    if own < in_run {
        // The last query of the cube sees the most tokens; splits are equal for all queries of a cube.
        let last = min(base + comptime!(v.queries_per_cube()), in_run) - 1;
        let visible = position[run] + (first + last / heads) as u32 + 1;
        let part = (visible.div_ceil(splits as u32)).div_ceil(TOKENS as u32) * TOKENS as u32;
        let begin = split as u32 * part;
        let end = min(begin + part, visible);

        let mut q = Array::<Vector<f32, N>>::new(comptime!(mine * key_parts));
        let mut mixture = Array::<Vector<f32, N>>::new(comptime!(mine * value_parts));
        let mut maximum = Array::<f32>::new(mine);
        let mut sum = Array::<f32>::new(mine);
        let mut limit = Array::<u32>::new(mine);
        #[unroll]
        for m in 0..mine {
            // Queries beyond the last one repeat it and are not written.
            let index = min(own + m, in_run - 1);
            limit[m] = position[run] + (first + index / heads) as u32;
            maximum[m] = f32::MIN;
            sum[m] = 0.0;
            let from = (run * rows * heads + index) * query_width / comptime!(v.vector);
            #[unroll]
            for c in 0..key_parts {
                let at = c * plane + lane;
                q[m * key_parts + c] = Vector::new(0.0);
                if at < row_vectors {
                    q[m * key_parts + c] = queries[from + at];
                }
            }
        }

        let mut token = begin;
        while token < end {
            let mut latents = Array::<Vector<f32, N>>::new(comptime!(TOKENS * key_parts));
            #[unroll]
            for t in 0..TOKENS {
                // Tokens beyond the last one repeat it and count for nothing.
                let from = latent_of(&cache, blocks, min(token + t as u32, end - 1), v);
                #[unroll]
                for c in 0..key_parts {
                    let at = c * plane + lane;
                    latents[t * key_parts + c] = Vector::new(0.0);
                    if at < row_vectors {
                        latents[t * key_parts + c] = arena[from + at];
                    }
                }
            }
            #[unroll]
            for m in 0..mine {
                let mut scores = Array::<f32>::new(TOKENS);
                let mut highest = maximum[m];
                #[unroll]
                for t in 0..TOKENS {
                    let mut partial = Vector::<f32, N>::new(0.0);
                    #[unroll]
                    for c in 0..key_parts {
                        partial = fma(q[m * key_parts + c], latents[t * key_parts + c], partial);
                    }
                    scores[t] = plane_sum(partial.vector_sum());
                    let seen = token + t as u32 <= limit[m] && token + (t as u32) < end;
                    if !seen {
                        scores[t] = f32::MIN;
                    }
                    highest = max(highest, scores[t]);
                }
                let correction = (maximum[m] - highest).exp();
                maximum[m] = highest;
                sum[m] *= correction;
                #[unroll]
                for c in 0..value_parts {
                    mixture[m * value_parts + c] = mixture[m * value_parts + c] * Vector::new(correction);
                }
                #[unroll]
                for t in 0..TOKENS {
                    let mut weight = 0.0;
                    if scores[t] > f32::MIN {
                        weight = (scores[t] - highest).exp();
                    }
                    sum[m] += weight;
                    #[unroll]
                    for c in 0..value_parts {
                        let at = m * value_parts + c;
                        mixture[at] = fma(Vector::new(weight), latents[t * key_parts + c], mixture[at]);
                    }
                }
            }
            token += TOKENS as u32;
        }

        #[unroll]
        for m in 0..mine {
            if own + m < in_run {
                let to = (run * rows * heads + own + m) * splits + split;
                if lane == 0 {
                    stats[to * 2] = maximum[m];
                    stats[to * 2 + 1] = sum[m];
                }
                #[unroll]
                for c in 0..value_parts {
                    let at = c * plane + lane;
                    if at < latent_vectors {
                        mixtures[to * mixture_width / comptime!(v.vector) + at] = mixture[m * value_parts + c];
                    }
                }
            }
        }
    }
}

impl MlaVariant {
    pub(crate) fn define_attend(&self, b: &Builder) -> KernelDefinition {
        let (settings, properties, target) = b.parts(self.geometry(MlaStage::Attend));
        let buffer = Builder::buffer;
        mla_attend::MlaAttend::new(
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
            (),
            (),
            (),
            (),
            self.vector,
            *self,
        )
        .define()
    }
}
