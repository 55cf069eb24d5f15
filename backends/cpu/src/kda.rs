//! Kimi Delta Attention: checks, and one task per run and head.

use perilune_backend::{BackendError, DeviceTensor, Kda, KdaDims, KdaGate, UnitLayout};

use crate::kda_chunk::ChunkHead;
use crate::kda_head::HeadRun;
use crate::runs::{Run, check_distinct, runs, take_snapshots};
use crate::tensor::{CpuTensor, Parted};
use crate::{CpuBackend, KdaPrefill};

/// A layer and the rows of a step, as slices.
pub(crate) struct Layer<'a> {
    pub(crate) dims: KdaDims,
    pub(crate) gate_kind: KdaGate,
    /// q, k, v.
    pub(crate) conv: [&'a [f32]; 3],
    pub(crate) a_log: &'a [f32],
    pub(crate) dt_bias: &'a [f32],
    pub(crate) out_norm: &'a [f32],
    pub(crate) eps: f32,
    /// q, k, v before the convolution.
    pub(crate) inputs: [&'a [f32]; 3],
    pub(crate) gate: &'a [f32],
    pub(crate) beta: &'a [f32],
    pub(crate) out_gate: &'a [f32],
    pub(crate) arena: Parted<'a, f32>,
    pub(crate) conv_at: UnitLayout,
    pub(crate) state_at: UnitLayout,
    pub(crate) out: Parted<'a, f32>,
}

/// All runs of a step.
pub(crate) fn kda(cpu: &CpuBackend, op: Kda<'_, CpuTensor>, form: KdaPrefill) -> Result<(), BackendError> {
    let slots = op.dims()?;
    let mut runs = runs("kda", &op.segments, op.q.spec().shape.rows())?;
    if let Some(snapshots) = &op.snapshots {
        take_snapshots("kda", snapshots, &mut runs)?;
    }
    let written = runs.iter().flat_map(|run| run.snapshots.iter().map(|s| s.slot).chain([run.slot]));
    check_distinct(("kda", "segments.slot"), written.collect(), slots)?;
    let dims = op.params.dims;
    let layer = layer(op)?;
    let tokens: usize = runs.iter().map(|run| run.rows.len()).sum();
    let scratch_len = HeadRun::scratch_len(dims).max(ChunkHead::scratch_len(dims));
    let mut scratch = cpu.scratch().take(scratch_len * cpu.num_threads())?;
    let scratch = Parted::new(&mut scratch);
    // Longest runs first, so that the last tasks are short ones.
    let mut order: Vec<&Run> = runs.iter().collect();
    order.sort_by_key(|run| std::cmp::Reverse(run.rows.len()));
    cpu.parallel(runs.len() * dims.num_heads, tokens * dims.width() * dims.head_dim * 4, |thread, task| {
        let (run, head) = (order[task / dims.num_heads], task % dims.num_heads);
        // SAFETY: each thread has scratch of its own.
        let scratch = unsafe { scratch.row(thread, scratch_len) };
        cpu.level().run(HeadRun { layer: &layer, run, head, form, scratch });
    })
}

/// The slices of an operation whose shapes were checked.
pub(crate) fn layer<'a>(op: Kda<'a, CpuTensor>) -> Result<Layer<'a>, BackendError> {
    let params = op.params;
    Ok(Layer {
        dims: params.dims,
        gate_kind: params.gate,
        conv: [params.conv[0].f32()?, params.conv[1].f32()?, params.conv[2].f32()?],
        a_log: params.a_log.f32()?,
        dt_bias: params.dt_bias.f32()?,
        out_norm: params.out_norm.f32()?,
        eps: params.eps,
        inputs: [op.q.f32()?, op.k.f32()?, op.v.f32()?],
        gate: op.gate.f32()?,
        beta: op.beta.f32()?,
        out_gate: op.out_gate.f32()?,
        arena: op.arena.parted()?,
        conv_at: op.conv_at,
        state_at: op.state_at,
        out: op.out.parted()?,
    })
}
