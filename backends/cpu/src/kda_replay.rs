//! Speculation on KDA: verification on a copy of the state, and the fold of committed steps.
//!
//! Both take the recurrence and the norms of decode, over the same values in the same order, and so give its bits.

use std::ops::Range;

use perilune_backend::{BackendError, DeviceTensor, KdaDims, KdaFold, KdaVerify, UnitLayout};

use crate::CpuBackend;
use crate::kda::{Layer, layer};
use crate::kda_head::{HeadRun, Prepare, TOKENS, Tokens, padded};
use crate::kda_recurrence::Recurrence;
use crate::runs::{Run, check_distinct, fault, runs, runs_or_empty, take_snapshots};
use crate::simd::{Kernel, MAX_LANES, Simd};
use crate::tensor::{CpuTensor, Parted};

/// Most rows of a run.
const MAX_ROWS: usize = 8;

/// Outputs of all runs, and what a fold needs.
pub(crate) fn verify(cpu: &CpuBackend, op: KdaVerify<'_, CpuTensor>) -> Result<(), BackendError> {
    let slots = op.dims()?;
    let kda = op.kda;
    let dims = kda.params.dims;
    let rows = kda.q.spec().shape.rows().min(op.replay.spec().shape.rows());
    let runs = runs("kda_verify", &kda.segments, rows)?;
    check_lengths("kda_verify", &runs)?;
    check_distinct(("kda_verify", "segments.slot"), runs.iter().map(|run| run.slot).collect(), slots)?;
    let (layer, replay) = (layer(kda)?, op.replay.parted()?);
    let scratch_len = HeadRun::scratch_len(dims) + dims.head_dim * dims.head_dim;
    let mut scratch = cpu.scratch().take(scratch_len * cpu.num_threads())?;
    let scratch = Parted::new(&mut scratch);
    cpu.parallel(runs.len() * dims.num_heads, work(dims, &runs), |thread, task| {
        let (run, head) = (&runs[task / dims.num_heads], task % dims.num_heads);
        // SAFETY: each thread has scratch of its own.
        let scratch = unsafe { scratch.row(thread, scratch_len) };
        cpu.level().run(HeadVerify { layer: &layer, replay: &replay, run, head, scratch });
    })
}

/// Replays all runs.
pub(crate) fn fold(cpu: &CpuBackend, op: KdaFold<'_, CpuTensor>) -> Result<(), BackendError> {
    let slots = op.check()?;
    let dims = op.dims;
    let mut runs = runs_or_empty("kda_fold", &op.segments, op.replay.spec().shape.rows())?;
    check_lengths("kda_fold", &runs)?;
    if let Some(snapshots) = &op.snapshots {
        take_snapshots("kda_fold", snapshots, &mut runs)?;
    }
    let written = runs.iter().flat_map(|run| run.snapshots.iter().map(|s| s.slot).chain([run.slot]));
    check_distinct(("kda_fold", "segments.slot"), written.collect(), slots)?;
    let stored = Stored {
        dims,
        replay: op.replay.f32()?,
        arena: op.arena.parted()?,
        conv_at: op.conv_at,
        state_at: op.state_at,
    };
    let scratch_len = Tokens::len(dims, TOKENS) + HeadRun::scratch_len(dims);
    let mut scratch = cpu.scratch().take(scratch_len * cpu.num_threads())?;
    let scratch = Parted::new(&mut scratch);
    cpu.parallel(runs.len() * dims.num_heads, work(dims, &runs), |thread, task| {
        let (run, head) = (&runs[task / dims.num_heads], task % dims.num_heads);
        // SAFETY: each thread has scratch of its own.
        let scratch = unsafe { scratch.row(thread, scratch_len) };
        cpu.level().run(HeadFold { stored: &stored, run, head, scratch });
    })
}

fn check_lengths(op: &'static str, runs: &[Run]) -> Result<(), BackendError> {
    match runs.iter().find(|run| run.rows.len() > MAX_ROWS) {
        Some(run) => Err(fault(op, "segments.len", run.rows.len().to_string(), format!("at most {MAX_ROWS}"))),
        None => Ok(()),
    }
}

fn work(dims: KdaDims, runs: &[Run]) -> usize {
    runs.iter().map(|run| run.rows.len()).sum::<usize>() * dims.width() * dims.head_dim * 4
}

/// Where a head's parts of a row of replay inputs lie.
struct Parts {
    dims: KdaDims,
    row: usize,
    head: usize,
}

impl Parts {
    /// Part 0 to 5: v, k, g, then q, k and v before the convolution.
    fn wide(&self, part: usize) -> Range<usize> {
        let (d, p) = (self.dims.head_dim, self.dims.width());
        let first = self.row * self.dims.replay_width() + part * p + self.head * d;
        first..first + d
    }

    fn beta(&self) -> Range<usize> {
        let at = self.row * self.dims.replay_width() + 6 * self.dims.width() + self.head;
        at..at + 1
    }
}

/// One task of a verification.
struct HeadVerify<'a> {
    layer: &'a Layer<'a>,
    replay: &'a Parted<'a, f32>,
    run: &'a Run,
    head: usize,
    scratch: &'a mut [f32],
}

impl Kernel for HeadVerify<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let HeadVerify { layer, replay, run, head, scratch } = self;
        let (dims, count) = (layer.dims, run.rows.len());
        let (taps, rest) = scratch.split_at_mut(3 * dims.conv_kernel * padded(dims.head_dim));
        let mut prepare = Prepare { layer, run, head, taps };
        prepare.transpose_taps();
        let (mut tokens, rest) = Tokens::cut(dims, TOKENS, rest);
        let (state, copy) = rest.split_at_mut(dims.head_dim * dims.head_dim);
        // SAFETY: nobody writes to the arena during a verification.
        state.copy_from_slice(unsafe { layer.arena.part(prepare.state(run.slot)) });
        prepare.mixed_tokens(s, &mut tokens, 0..count);
        for t in 0..count {
            let parts = Parts { dims, row: run.rows.start + t, head };
            let at = t * tokens.stride..t * tokens.stride + dims.head_dim;
            let sources = [&tokens.v[at.clone()], &tokens.k[at.clone()], &tokens.g[at]];
            let rows = layer.inputs.map(|input| prepare.row(input, t));
            for (part, source) in sources.into_iter().chain(rows).enumerate() {
                // SAFETY: this head of this row belongs to this task alone.
                unsafe { replay.part(parts.wide(part)) }.copy_from_slice(source);
            }
            // SAFETY: as above.
            unsafe { replay.part(parts.beta()) }.fill(tokens.beta[t * MAX_LANES]);
        }
        tokens.normalise(s, dims, count);
        Recurrence { d: dims.head_dim, count, state, copy }.run(s, &mut tokens);
        prepare.outputs(s, &tokens, 0..count);
    }
}

/// Replay inputs, and where they go.
struct Stored<'a> {
    dims: KdaDims,
    replay: &'a [f32],
    arena: Parted<'a, f32>,
    conv_at: UnitLayout,
    state_at: UnitLayout,
}

/// One task of a fold.
struct HeadFold<'a> {
    stored: &'a Stored<'a>,
    run: &'a Run,
    head: usize,
    scratch: &'a mut [f32],
}

impl Kernel for HeadFold<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let HeadFold { stored, run, head, scratch } = self;
        let dims = stored.dims;
        let len = dims.head_dim * dims.head_dim;
        let part = |slot: usize| {
            let first = stored.state_at.start(slot) + head * len;
            first..first + len
        };
        let (mut tokens, copy) = Tokens::cut(dims, TOKENS, scratch);
        // SAFETY: slots are distinct, so this head of this slot belongs to this task alone.
        let state = unsafe { stored.arena.part(part(run.slot)) };
        let mut snapshots = run.snapshots.iter().peekable();
        let mut first = 0;
        while first < run.rows.len() {
            let end = snapshots.peek().map_or(run.rows.len(), |next| next.rows);
            let count = end - first;
            stored.take(s, &mut tokens, (run.rows.start + first..run.rows.start + end, head));
            tokens.normalise(s, dims, count);
            Recurrence { d: dims.head_dim, count, state, copy }.run(s, &mut tokens);
            first = end;
            if let Some(snapshot) = snapshots.next_if(|next| next.rows == first) {
                // SAFETY: slots of snapshots are distinct from all others.
                unsafe { stored.arena.part(part(snapshot.slot)) }.copy_from_slice(state);
                stored.move_tail((run, head), (first, snapshot.slot));
            }
        }
        if !run.rows.is_empty() {
            stored.move_tail((run, head), (run.rows.len(), run.slot));
        }
    }
}

impl Stored<'_> {
    /// Reads the inputs of some rows; queries are zero, as nobody reads the outputs.
    #[inline(always)]
    fn take<S: Simd>(&self, s: S, tokens: &mut Tokens<'_>, (rows, head): (Range<usize>, usize)) {
        let d = self.dims.head_dim;
        for (t, row) in rows.enumerate() {
            let parts = Parts { dims: self.dims, row, head };
            let at = t * tokens.stride..(t + 1) * tokens.stride;
            tokens.q[at.clone()].fill(0.0);
            let targets = [&mut *tokens.v, &mut *tokens.k, &mut *tokens.g].map(|all| &mut all[at.clone()]);
            for (part, target) in targets.into_iter().enumerate() {
                target[..d].copy_from_slice(&self.replay[parts.wide(part)]);
                target[d..].fill(0.0);
            }
            s.store(&mut tokens.beta[t * MAX_LANES..], 0, s.splat(self.replay[parts.beta()][0]));
        }
    }

    /// The tail after the first `tokens` rows of the run, in a slot. The run's own slot comes last.
    fn move_tail(&self, (run, head): (&Run, usize), (tokens, slot): (usize, usize)) {
        let (d, history) = (self.dims.head_dim, self.dims.conv_kernel - 1);
        let place = |slot: usize, which: usize, j: usize| {
            let first = self.conv_at.start(slot) + (which * history + j) * self.dims.width() + head * d;
            first..first + d
        };
        for which in 0..3 {
            for j in 0..history {
                // SAFETY: this head of this slot belongs to this task alone; one part at a time is written.
                let to = unsafe { self.arena.part(place(slot, which, j)) };
                if tokens + j < history {
                    // SAFETY: another row than `to`, as there is at least one token.
                    to.copy_from_slice(unsafe { self.arena.part(place(run.slot, which, tokens + j)) });
                } else {
                    let parts = Parts { dims: self.dims, row: run.rows.start + tokens + j - history, head };
                    to.copy_from_slice(&self.replay[parts.wide(3 + which)]);
                }
            }
        }
    }
}
