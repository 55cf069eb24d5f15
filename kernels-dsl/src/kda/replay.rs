//! The kernels of speculation: verification, which stores the inputs of its steps, and their fold into the state.
//!
//! A row of replay inputs is `v k g`, then q, k and v before the convolution, `P` each, then β per head.
#![allow(clippy::too_many_arguments)] // one buffer per operand

use cubecl::prelude::*;

use super::prepare::{Place, convolve, learning_rates, log_decays, normalise, write_outputs, write_tail};
use super::state::{lane, load, read, store, update};
use super::{KdaVariant, MAX_SHORT_RUN};
use crate::compile::Builder;

/// Writes what a fold needs of `count` tokens; the norm of `k` comes later.
#[cube]
fn record(
    values: &[f32],
    keys: &[f32],
    decays: &[f32],
    q: &[f32],
    k: &[f32],
    value: &[f32],
    betas: &[f32],
    place: &Place,
    count: usize,
    replay: &mut [f32],
    #[comptime] v: KdaVariant,
) {
    let d = comptime!(v.head_dim);
    let width = place.heads * d;
    let stride = 6 * width + place.heads;
    let mut item = UNIT_POS as usize;
    while item < count * d {
        let t = item / d;
        let c = item % d;
        let at = t * comptime!(v.padded()) + c;
        let channel = place.head * d + c;
        let from = (place.row + t) * width + channel;
        let to = (place.row + t) * stride + channel;
        replay[to] = values[at];
        replay[to + width] = keys[at];
        replay[to + 2 * width] = decays[at];
        replay[to + 3 * width] = q[from];
        replay[to + 4 * width] = k[from];
        replay[to + 5 * width] = value[from];
        item += comptime!(v.geometry.units);
    }
    let t = UNIT_POS as usize;
    if t < count {
        replay[(place.row + t) * stride + 6 * width + place.head] = betas[t];
    }
}

/// Reads part `part` of the replay inputs of `count` tokens into padded rows.
#[cube]
fn recall(
    replay: &[f32],
    place: &Place,
    count: usize,
    out: &mut [f32],
    #[comptime] part: usize,
    #[comptime] v: KdaVariant,
) {
    let d = comptime!(v.head_dim);
    let padded = comptime!(v.padded());
    let mut item = UNIT_POS as usize;
    while item < count * padded {
        let c = item % padded;
        let mut value = 0.0;
        if c < d {
            let row = (place.row + item / padded) * place.stride;
            value = replay[row + part * place.part + place.head * d + c];
        }
        out[item] = value;
        item += comptime!(v.geometry.units);
    }
}

/// One cube per head (x) and run (y); buffers as `kda_decode`, with replay inputs in place of snapshots and tails only
/// read.
#[cube(launch_unchecked)]
pub fn kda_verify<N: Size>(
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
    arena: &[Vector<f32, N>],
    tails: &[f32],
    replay: &mut [f32],
    out: &mut [f32],
    heads: usize,
    state_offset: usize,
    state_stride: usize,
    tail_offset: usize,
    tail_stride: usize,
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

    let mut qs = Shared::<[f32]>::new_slice(comptime!(MAX_SHORT_RUN * v.padded()));
    let mut ks = Shared::<[f32]>::new_slice(comptime!(MAX_SHORT_RUN * v.padded()));
    let mut vs = Shared::<[f32]>::new_slice(comptime!(MAX_SHORT_RUN * v.padded()));
    let mut gs = Shared::<[f32]>::new_slice(comptime!(MAX_SHORT_RUN * v.padded()));
    let mut os = Shared::<[f32]>::new_slice(comptime!(MAX_SHORT_RUN * v.padded()));
    let mut betas = Shared::<[f32]>::new_slice(MAX_SHORT_RUN);
    convolve(q, taps_q, tails, &place, 0, tokens, &mut qs, 0usize, v);
    convolve(k, taps_k, tails, &place, 0, tokens, &mut ks, 1usize, v);
    convolve(value, taps_v, tails, &place, 0, tokens, &mut vs, 2usize, v);
    log_decays(gate, dt_bias, a_log, lower_bound, &place, 0, tokens, &mut gs, v);
    learning_rates(beta, &place, 0, tokens, &mut betas);
    sync_cube();
    record(&vs, &ks, &gs, q, k, value, &betas, &place, tokens, replay, v);
    sync_cube();
    normalise(&mut qs, tokens, comptime!((v.head_dim as f32).powf(-0.5)), v);
    normalise(&mut ks, tokens, 1.0, v);
    sync_cube();

    for number in 0..comptime!(v.head_dim.div_ceil(v.block())) {
        let lane = lane(number, v);
        let mut block = Array::<Vector<f32, N>>::new(comptime!(v.rows()));
        let base = state_offset + own * state_stride + head * comptime!(d * d / v.vector);
        load(arena, base, &lane, &mut block, v);
        for t in 0..tokens {
            let at = t * padded;
            update(&mut block, &ks, &vs, &gs, betas[t], at, &lane, v);
            read(&block, &qs, at, &lane, &mut os, v);
        }
    }
    sync_cube();
    write_outputs(&os, out_gate, out_norm, eps, &place, 0, tokens, out, v);
}

/// One cube per head (x) and run (y); a run of no rows changes nothing.
#[cube(launch_unchecked)]
pub fn kda_fold<N: Size>(
    replay: &[f32],
    start: &[u32],
    len: &[u32],
    slot: &[u32],
    snapshot_run: &[u32],
    snapshot_rows: &[u32],
    snapshot_slot: &[u32],
    arena: &mut [Vector<f32, N>],
    tails: &mut [f32],
    heads: usize,
    state_offset: usize,
    state_stride: usize,
    tail_offset: usize,
    tail_stride: usize,
    snapshots: usize,
    #[comptime] v: KdaVariant,
) {
    let d = comptime!(v.head_dim);
    let padded = comptime!(v.padded());
    let run = CUBE_POS_Y as usize;
    let head = CUBE_POS_X as usize;
    let own = slot[run] as usize;
    let tokens = len[run] as usize;
    let tail = tail_offset + own * tail_stride;
    let width = heads * d;
    let stride = 6 * width + heads;
    let place = Place { row: start[run] as usize, head, heads, tail, stride, lead: 3 * width, part: width };
    let head_state = head * comptime!(d * d / v.vector);

    let mut ks = Shared::<[f32]>::new_slice(comptime!(MAX_SHORT_RUN * v.padded()));
    let mut vs = Shared::<[f32]>::new_slice(comptime!(MAX_SHORT_RUN * v.padded()));
    let mut gs = Shared::<[f32]>::new_slice(comptime!(MAX_SHORT_RUN * v.padded()));
    let mut betas = Shared::<[f32]>::new_slice(MAX_SHORT_RUN);
    if tokens > 0 {
        recall(replay, &place, tokens, &mut vs, 0usize, v);
        recall(replay, &place, tokens, &mut ks, 1usize, v);
        recall(replay, &place, tokens, &mut gs, 2usize, v);
        let t = UNIT_POS as usize;
        if t < tokens {
            betas[t] = replay[(place.row + t) * stride + 6 * width + head];
        }
        sync_cube();
        normalise(&mut ks, tokens, 1.0, v);
        for m in 0..snapshots {
            if snapshot_run[m] as usize == run {
                let to = tail_offset + snapshot_slot[m] as usize * tail_stride;
                write_tail(replay, replay, replay, tails, &place, snapshot_rows[m] as usize, to, v);
            }
        }
        write_tail(replay, replay, replay, tails, &place, tokens, tail, v);
        sync_cube();
        for number in 0..comptime!(v.head_dim.div_ceil(v.block())) {
            let lane = lane(number, v);
            let mut block = Array::<Vector<f32, N>>::new(comptime!(v.rows()));
            let base = state_offset + own * state_stride + head_state;
            load(&*arena, base, &lane, &mut block, v);
            for t in 0..tokens {
                update(&mut block, &ks, &vs, &gs, betas[t], t * padded, &lane, v);
                for m in 0..snapshots {
                    if snapshot_run[m] as usize == run && snapshot_rows[m] as usize == t + 1 {
                        let to = state_offset + snapshot_slot[m] as usize * state_stride + head_state;
                        store(arena, to, &lane, &block, v);
                    }
                }
            }
            store(arena, base, &lane, &block, v);
        }
    }
}

impl KdaVariant {
    pub(crate) fn define_verify(&self, b: &Builder) -> KernelDefinition {
        let (settings, properties, target) = b.parts(self.geometry);
        let buffer = Builder::buffer;
        kda_verify::KdaVerify::new(
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

    pub(crate) fn define_fold(&self, b: &Builder) -> KernelDefinition {
        let (settings, properties, target) = b.parts(self.geometry);
        let buffer = Builder::buffer;
        kda_fold::KdaFold::new(
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
