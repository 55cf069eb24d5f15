//! The fused kernel of short runs.
#![allow(clippy::too_many_arguments)] // one buffer per operand

use cubecl::prelude::*;

use super::prepare::{Place, convolve, learning_rates, log_decays, normalise, write_outputs, write_tail};
use super::state::{lane, load, read, store, update};
use super::{KdaVariant, MAX_SHORT_RUN};
use crate::compile::Builder;

/// One cube per head (x) and run (y); `crate::kda::KdaPlan::decode` has the shapes.
///
/// `arena` and `tails` are the same memory: states and convolution tails, which do not overlap.
#[cube(launch_unchecked)]
pub fn kda_decode<N: Size>(
    q: &[f32],
    k: &[f32],
    value: &[f32],
    gate: &[f32],
    out_gate: &[f32],
    beta: &[f32],
    taps_q: &[f32],
    taps_k: &[f32],
    taps_v: &[f32],
    a_log: &[f32],
    dt_bias: &[f32],
    out_norm: &[f32],
    start: &[u32],
    len: &[u32],
    slot: &[u32],
    snapshot_run: &[u32],
    snapshot_rows: &[u32],
    snapshot_slot: &[u32],
    arena: &mut [Vector<f32, N>],
    tails: &mut [f32],
    out: &mut [f32],
    heads: usize,
    state_offset: usize,
    state_stride: usize,
    tail_offset: usize,
    tail_stride: usize,
    snapshots: usize,
    eps: f32,
    lower_bound: f32,
    #[comptime] v: KdaVariant,
) {
    let d = comptime!(v.head_dim);
    let padded = comptime!(v.padded());
    let run = CUBE_POS_Y as usize;
    let head = CUBE_POS_X as usize;
    let own = slot[run] as usize;
    let tokens = len[run] as usize;
    let tail = tail_offset + own * tail_stride;
    let place = Place { row: start[run] as usize, head, heads, tail, stride: heads * d, lead: 0, part: 0 };
    let head_state = head * comptime!(d * d / v.vector);

    let mut qs = Shared::<[f32]>::new_slice(comptime!(MAX_SHORT_RUN * v.padded()));
    let mut ks = Shared::<[f32]>::new_slice(comptime!(MAX_SHORT_RUN * v.padded()));
    let mut vs = Shared::<[f32]>::new_slice(comptime!(MAX_SHORT_RUN * v.padded()));
    let mut gs = Shared::<[f32]>::new_slice(comptime!(MAX_SHORT_RUN * v.padded()));
    let mut os = Shared::<[f32]>::new_slice(comptime!(MAX_SHORT_RUN * v.padded()));
    let mut betas = Shared::<[f32]>::new_slice(MAX_SHORT_RUN);
    convolve(q, taps_q, &*tails, &place, 0, tokens, &mut qs, 0usize, v);
    convolve(k, taps_k, &*tails, &place, 0, tokens, &mut ks, 1usize, v);
    convolve(value, taps_v, &*tails, &place, 0, tokens, &mut vs, 2usize, v);
    log_decays(gate, dt_bias, a_log, lower_bound, &place, 0, tokens, &mut gs, v);
    learning_rates(beta, &place, 0, tokens, &mut betas);
    sync_cube();
    normalise(&mut qs, tokens, comptime!((v.head_dim as f32).powf(-0.5)), v);
    normalise(&mut ks, tokens, 1.0, v);
    for m in 0..snapshots {
        if snapshot_run[m] as usize == run {
            let to = tail_offset + snapshot_slot[m] as usize * tail_stride;
            write_tail(q, k, value, tails, &place, snapshot_rows[m] as usize, to, v);
        }
    }
    write_tail(q, k, value, tails, &place, tokens, place.tail, v);
    sync_cube();

    for number in 0..comptime!(v.head_dim.div_ceil(v.block())) {
        let lane = lane(number, v);
        let mut block = Array::<Vector<f32, N>>::new(comptime!(v.rows()));
        let base = state_offset + own * state_stride + head_state;
        load(&*arena, base, &lane, &mut block, v);
        for t in 0..tokens {
            let at = t * padded;
            update(&mut block, &ks, &vs, &gs, betas[t], at, &lane, v);
            read(&block, &qs, at, &lane, &mut os, v);
            for m in 0..snapshots {
                if snapshot_run[m] as usize == run && snapshot_rows[m] as usize == t + 1 {
                    let to = state_offset + snapshot_slot[m] as usize * state_stride + head_state;
                    store(arena, to, &lane, &block, v);
                }
            }
        }
        store(arena, base, &lane, &block, v);
    }
    sync_cube();
    write_outputs(&os, out_gate, out_norm, eps, &place, 0, tokens, out, v);
}

impl KdaVariant {
    pub(crate) fn define_decode(&self, b: &Builder) -> KernelDefinition {
        let (settings, properties, target) = b.parts(self.geometry);
        let buffer = Builder::buffer;
        kda_decode::KdaDecode::new(
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
            buffer(),
            buffer(),
            buffer(),
            buffer(),
            buffer(),
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
            self.vector,
            *self,
        )
        .define()
    }
}
