//! The kernel of long runs: chunkwise, a few tokens at once against a state that stays in registers.
//!
//! With `G` the cumulative log decays of a chunk and `S` the state before it, the corrected values are
//! `u_i = β_i (v_i - (k_i e^(G_i)) S - Σ_{j<i} A_ij u_j)`, the outputs `(q_i e^(G_i)) S + Σ_{j≤i} P_ij u_j`, and the state
//! becomes `e^(G_n) S + Σ_j (k_j e^(G_n - G_j)) u_j`, where `A_ij` and `P_ij` are the products of `k_i` and of `q_i` with
//! `k_j` under `e^(G_i - G_j)`. No exponent is ever positive.
#![allow(clippy::too_many_arguments)] // one buffer per operand

use cubecl::prelude::*;

use super::KdaVariant;
use super::prepare::{Place, convolve, learning_rates, log_decays, normalise, write_outputs, write_tail};
use super::state::{Lane, lane, load, store, sum_rows};
use crate::compile::Builder;

/// Sums the log decays of a chunk along its tokens, in place.
#[cube]
fn accumulate(g: &mut [f32], count: usize, #[comptime] v: KdaVariant) {
    let padded = comptime!(v.padded());
    let mut c = UNIT_POS as usize;
    while c < padded {
        let mut sum = 0.0;
        for t in 0..count {
            sum += g[t * padded + c];
            g[t * padded + c] = sum;
        }
        c += comptime!(v.geometry.units);
    }
}

/// `A` and `P` of a chunk, rows of [`KdaVariant::chunk`] values; what lies above the diagonal is not written.
#[cube]
fn pairs(
    q: &[f32],
    k: &[f32],
    g: &[f32],
    count: usize,
    key_pairs: &mut [f32],
    query_pairs: &mut [f32],
    #[comptime] v: KdaVariant,
) {
    let padded = comptime!(v.padded());
    let chunk = comptime!(v.chunk());
    let mut item = UNIT_POS as usize;
    while item < comptime!(v.chunk() * v.chunk()) {
        let i = item / chunk;
        let j = item % chunk;
        if i < count && j <= i {
            let mut with_key = 0.0;
            let mut with_query = 0.0;
            // Each unit begins at a channel of its own, so that units read from different banks.
            let mut c = j % padded;
            for _ in 0..padded {
                let weight = k[j * padded + c] * (g[i * padded + c] - g[j * padded + c]).exp();
                with_key = fma(k[i * padded + c], weight, with_key);
                with_query = fma(q[i * padded + c], weight, with_query);
                c += 1;
                if c == padded {
                    c = 0;
                }
            }
            key_pairs[item] = with_key;
            query_pairs[item] = with_query;
        }
        item += comptime!(v.geometry.units);
    }
}

/// `q_i e^(G_i)` in place of `q`, `k_i e^(G_i)` in place of `k`, `k_i e^(G_n - G_i)` into `to_end`, `e^(G_n)` into `decay`.
#[cube]
fn apply_decays(
    q: &mut [f32],
    k: &mut [f32],
    g: &[f32],
    count: usize,
    to_end: &mut [f32],
    decay: &mut [f32],
    #[comptime] v: KdaVariant,
) {
    let padded = comptime!(v.padded());
    let mut c = UNIT_POS as usize;
    while c < padded {
        let last = g[(count - 1) * padded + c];
        decay[c] = last.exp();
        for t in 0..count {
            let at = t * padded + c;
            let from_start = g[at].exp();
            to_end[at] = k[at] * (last - g[at]).exp();
            q[at] *= from_start;
            k[at] *= from_start;
        }
        c += comptime!(v.geometry.units);
    }
}

/// Corrected values and outputs of a chunk for this unit's columns; the state is that before the chunk.
///
/// `values` holds `v` and ends as `u`. A plane reads and writes only its own columns, so that it need not wait for others.
#[cube]
fn tokens<N: Size>(
    state: &Array<Vector<f32, N>>,
    q: &[f32],
    k: &[f32],
    betas: &[f32],
    key_pairs: &[f32],
    query_pairs: &[f32],
    count: usize,
    lane: &Lane,
    values: &mut [f32],
    o: &mut [f32],
    #[comptime] v: KdaVariant,
) {
    let padded = comptime!(v.padded());
    let chunk = comptime!(v.chunk());
    let row_lanes = comptime!(v.row_lanes);
    for i in 0..count {
        let mut found = Vector::<f32, N>::new(0.0);
        let mut read = Vector::<f32, N>::new(0.0);
        #[unroll]
        for s in 0..comptime!(v.rows()) {
            let at = i * padded + lane.row + comptime!(s * v.row_lanes);
            found = fma(Vector::new(k[at]), state[s], found);
            read = fma(Vector::new(q[at]), state[s], read);
        }
        let mut j = lane.row;
        while j < i {
            let u = columns::<N>(&*values, j, lane, v);
            found = fma(Vector::new(key_pairs[i * chunk + j]), u, found);
            read = fma(Vector::new(query_pairs[i * chunk + j]), u, read);
            j += row_lanes;
        }
        let corrected = (columns::<N>(&*values, i, lane, v) - sum_rows(found, v)) * Vector::new(betas[i]);
        let own = Vector::new(query_pairs[i * chunk + i]);
        let total = fma(own, corrected, sum_rows(read, v));
        sync_plane();
        if lane.active && lane.row == 0 {
            #[unroll]
            for n in 0..comptime!(v.vector) {
                values[i * padded + lane.column + n] = corrected.extract(n);
                o[i * padded + lane.column + n] = total.extract(n);
            }
        }
        sync_plane();
    }
}

/// This unit's columns of row `t` of values in shared memory; zeros where it has none, as another plane may write there.
#[cube]
fn columns<N: Size>(values: &[f32], t: usize, lane: &Lane, #[comptime] v: KdaVariant) -> Vector<f32, N> {
    let at = t * comptime!(v.padded()) + lane.column;
    let mut vector = Vector::<f32, N>::new(0.0);
    if lane.active {
        #[unroll]
        for n in 0..comptime!(v.vector) {
            vector.insert(n, values[at + n]);
        }
    }
    vector
}

/// The state after the chunk.
#[cube]
fn advance<N: Size>(
    state: &mut Array<Vector<f32, N>>,
    to_end: &[f32],
    decay: &[f32],
    values: &[f32],
    count: usize,
    lane: &Lane,
    #[comptime] v: KdaVariant,
) {
    let padded = comptime!(v.padded());
    #[unroll]
    for s in 0..comptime!(v.rows()) {
        state[s] = state[s] * Vector::new(decay[lane.row + comptime!(s * v.row_lanes)]);
    }
    for j in 0..count {
        let u = columns::<N>(values, j, lane, v);
        #[unroll]
        for s in 0..comptime!(v.rows()) {
            let key = to_end[j * padded + lane.row + comptime!(s * v.row_lanes)];
            state[s] = fma(Vector::new(key), u, state[s]);
        }
    }
}

/// One cube per head (x) and run (y); buffers and scalars as `kda_decode`.
#[cube(launch_unchecked)]
pub fn kda_prefill<N: Size>(
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
    let blocks = comptime!(v.head_dim.div_ceil(v.block()));
    let run = CUBE_POS_Y as usize;
    let head = CUBE_POS_X as usize;
    let own = slot[run] as usize;
    let total = len[run] as usize;
    let tail = tail_offset + own * tail_stride;
    let place = Place { row: start[run] as usize, head, heads, tail, stride: heads * d, lead: 0, part: 0 };
    let head_state = head * comptime!(d * d / v.vector);
    let base = state_offset + own * state_stride + head_state;

    let mut qs = Shared::<[f32]>::new_slice(comptime!(v.chunk() * v.padded()));
    let mut ks = Shared::<[f32]>::new_slice(comptime!(v.chunk() * v.padded()));
    let mut vs = Shared::<[f32]>::new_slice(comptime!(v.chunk() * v.padded()));
    let mut gs = Shared::<[f32]>::new_slice(comptime!(v.chunk() * v.padded()));
    let mut to_end = Shared::<[f32]>::new_slice(comptime!(v.chunk() * v.padded()));
    let mut decay = Shared::<[f32]>::new_slice(comptime!(v.padded()));
    let mut betas = Shared::<[f32]>::new_slice(comptime!(v.chunk()));
    let mut key_pairs = Shared::<[f32]>::new_slice(comptime!(v.chunk() * v.chunk()));
    let mut query_pairs = Shared::<[f32]>::new_slice(comptime!(v.chunk() * v.chunk()));

    let mut state = Array::<Vector<f32, N>>::new(comptime!(v.rows()));
    if comptime!(blocks == 1) {
        load(&*arena, base, &lane(0usize, v), &mut state, v);
    }
    let mut first = 0usize;
    while first < total {
        // A chunk ends where a snapshot is due.
        let mut count = min(comptime!(v.chunk()), total - first);
        for m in 0..snapshots {
            let rows = snapshot_rows[m] as usize;
            if snapshot_run[m] as usize == run && rows > first {
                count = min(count, rows - first);
            }
        }
        convolve(q, taps_q, &*tails, &place, first, count, &mut qs, 0usize, v);
        convolve(k, taps_k, &*tails, &place, first, count, &mut ks, 1usize, v);
        convolve(value, taps_v, &*tails, &place, first, count, &mut vs, 2usize, v);
        log_decays(gate, dt_bias, a_log, lower_bound, &place, first, count, &mut gs, v);
        learning_rates(beta, &place, first, count, &mut betas);
        sync_cube();
        normalise(&mut qs, count, comptime!((v.head_dim as f32).powf(-0.5)), v);
        normalise(&mut ks, count, 1.0, v);
        accumulate(&mut gs, count, v);
        sync_cube();
        pairs(&qs, &ks, &gs, count, &mut key_pairs, &mut query_pairs, v);
        sync_cube();
        apply_decays(&mut qs, &mut ks, &gs, count, &mut to_end, &mut decay, v);
        sync_cube();
        // The cumulative decays are used up: outputs take their place.
        for number in 0..blocks {
            let lane = lane(number, v);
            if comptime!(blocks > 1) {
                load(&*arena, base, &lane, &mut state, v);
            }
            tokens(&state, &qs, &ks, &betas, &key_pairs, &query_pairs, count, &lane, &mut vs, &mut gs, v);
            advance(&mut state, &to_end, &decay, &vs, count, &lane, v);
            for m in 0..snapshots {
                if snapshot_run[m] as usize == run && snapshot_rows[m] as usize == first + count {
                    let to = state_offset + snapshot_slot[m] as usize * state_stride + head_state;
                    store(arena, to, &lane, &state, v);
                }
            }
            if comptime!(blocks > 1) {
                store(arena, base, &lane, &state, v);
            }
        }
        sync_cube();
        write_outputs(&gs, out_gate, out_norm, eps, &place, first, count, out, v);
        sync_cube();
        first += count;
    }
    if comptime!(blocks == 1) {
        store(arena, base, &lane(0usize, v), &state, v);
    }
    for m in 0..snapshots {
        if snapshot_run[m] as usize == run {
            let to = tail_offset + snapshot_slot[m] as usize * tail_stride;
            write_tail(q, k, value, tails, &place, snapshot_rows[m] as usize, to, v);
        }
    }
    write_tail(q, k, value, tails, &place, total, place.tail, v);
}

impl KdaVariant {
    pub(crate) fn define_prefill(&self, b: &Builder) -> KernelDefinition {
        let (settings, properties, target) = b.parts(self.geometry);
        let buffer = Builder::buffer;
        kda_prefill::KdaPrefill::new(
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
