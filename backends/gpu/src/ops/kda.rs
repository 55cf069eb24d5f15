//! Kimi Delta Attention.

use perilune_backend::{
    BackendError, Kda, KdaDims, KdaFold, KdaGate, KdaParams, KdaVerify, Segments, Snapshots, UnitLayout,
};
use perilune_kernels_dsl::kda::{KdaGateKind, KdaPlan, KdaProblem};
use perilune_kernels_dsl::{Scalar, Variant};

use super::buffer;
use crate::launcher::{Argument, Arguments};
use crate::{Driver, Gpu, GpuTensor};

/// Short runs.
pub(crate) fn decode<D: Driver>(gpu: &Gpu<D>, op: Kda<'_, GpuTensor<D>>) -> Result<(), BackendError> {
    launch(gpu, op, KdaPlan::decode)
}

/// Runs of any length.
pub(crate) fn prefill<D: Driver>(gpu: &Gpu<D>, op: Kda<'_, GpuTensor<D>>) -> Result<(), BackendError> {
    launch(gpu, op, KdaPlan::prefill)
}

fn launch<D: Driver>(
    gpu: &Gpu<D>,
    op: Kda<'_, GpuTensor<D>>,
    kernel: fn(&KdaPlan) -> Variant,
) -> Result<(), BackendError> {
    op.dims()?;
    let plan = plan(gpu, (op.params.dims, gate(op.params)), (op.segments.count, op.state_at));
    let (count, snapshots) = indices(&op.segments, op.snapshots.as_ref());
    let mut buffers = inputs(&op);
    buffers.extend(snapshots);
    buffers.extend([buffer(op.arena, plan.variant.vector * 4), buffer(op.arena, 4), buffer(op.out, 4)]);
    let mut scalars = places(&plan, (op.params.dims, op.state_at, op.conv_at));
    scalars.push(count.into());
    scalars.extend([op.params.eps, lower_bound(op.params)].map(Scalar::from));
    gpu.launch(kernel(&plan), Arguments { cubes: plan.cubes, buffers: &buffers, scalars: &scalars, reach: &[] })
}

/// Short runs without an effect on the state.
pub(crate) fn verify<D: Driver>(gpu: &Gpu<D>, op: KdaVerify<'_, GpuTensor<D>>) -> Result<(), BackendError> {
    op.dims()?;
    let KdaVerify { kda, replay } = op;
    let plan = plan(gpu, (kda.params.dims, gate(kda.params)), (kda.segments.count, kda.state_at));
    let mut buffers = inputs(&kda);
    buffers.extend([buffer(kda.arena, plan.variant.vector * 4), buffer(kda.arena, 4)]);
    buffers.extend([buffer(replay, 4), buffer(kda.out, 4)]);
    let mut scalars = places(&plan, (kda.params.dims, kda.state_at, kda.conv_at));
    scalars.extend([kda.params.eps, lower_bound(kda.params)].map(Scalar::from));
    gpu.launch(plan.verify(), Arguments { cubes: plan.cubes, buffers: &buffers, scalars: &scalars, reach: &[] })
}

/// Replay of short runs.
pub(crate) fn fold<D: Driver>(gpu: &Gpu<D>, op: KdaFold<'_, GpuTensor<D>>) -> Result<(), BackendError> {
    op.check()?;
    // The stored decays are final: the kind of gate does not matter.
    let plan = plan(gpu, (op.dims, KdaGateKind::Bounded), (op.segments.count, op.state_at));
    let (count, snapshots) = indices(&op.segments, op.snapshots.as_ref());
    let mut buffers = vec![buffer(op.replay, 4)];
    buffers.extend([op.segments.start, op.segments.len, op.segments.slot].map(|t| buffer(t, 4)));
    buffers.extend(snapshots);
    buffers.extend([buffer(op.arena, plan.variant.vector * 4), buffer(op.arena, 4)]);
    let mut scalars = places(&plan, (op.dims, op.state_at, op.conv_at));
    scalars.push(count.into());
    gpu.launch(plan.fold(), Arguments { cubes: plan.cubes, buffers: &buffers, scalars: &scalars, reach: &[] })
}

fn plan<D: Driver>(
    gpu: &Gpu<D>,
    (dims, gate): (KdaDims, KdaGateKind),
    (sequences, state_at): (usize, UnitLayout),
) -> KdaPlan {
    let problem = KdaProblem {
        sequences,
        heads: dims.num_heads,
        head_dim: dims.head_dim,
        taps: dims.conv_kernel,
        gate,
        // The lowest bit that is set in any of them.
        alignment: 1 << (state_at.offset | state_at.stride | 4).trailing_zeros(),
    };
    problem.plan(gpu.target())
}

fn gate<T>(params: &KdaParams<T>) -> KdaGateKind {
    match params.gate {
        KdaGate::Bounded { .. } => KdaGateKind::Bounded,
        KdaGate::Softplus => KdaGateKind::Softplus,
    }
}

fn lower_bound<T>(params: &KdaParams<T>) -> f32 {
    match params.gate {
        KdaGate::Bounded { lower_bound } => lower_bound,
        KdaGate::Softplus => 0.0,
    }
}

/// The buffers that decode, prefill and verification begin with.
fn inputs<D: Driver>(op: &Kda<'_, GpuTensor<D>>) -> Vec<Argument> {
    let (params, segments) = (op.params, &op.segments);
    let rows = [op.q, op.k, op.v, op.gate, op.out_gate, op.beta].into_iter();
    let layer = params.conv.iter().chain([&params.a_log, &params.dt_bias, &params.out_norm]);
    let runs = [segments.start, segments.len, segments.slot];
    rows.chain(layer).chain(runs).map(|t| buffer(t, 4)).collect()
}

/// Number and indices of snapshots; without any, the indices are not read.
fn indices<D: Driver>(
    segments: &Segments<'_, GpuTensor<D>>,
    snapshots: Option<&Snapshots<'_, GpuTensor<D>>>,
) -> (usize, [Argument; 3]) {
    let (count, tensors) = snapshots.map_or((0, [segments.slot; 3]), |s| (s.count, [s.run, s.rows, s.slot]));
    (count, tensors.map(|t| buffer(t, 4)))
}

/// The scalars that every kernel begins with.
fn places(plan: &KdaPlan, (dims, state_at, tail_at): (KdaDims, UnitLayout, UnitLayout)) -> Vec<Scalar> {
    let vector = plan.variant.vector;
    let elements = [dims.num_heads, state_at.offset / vector, state_at.stride / vector, tail_at.offset, tail_at.stride];
    elements.map(Scalar::from).to_vec()
}
