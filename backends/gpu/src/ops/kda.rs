//! Kimi Delta Attention.

use perilune_backend::{BackendError, Kda, KdaGate};
use perilune_kernels_dsl::kda::{KdaGateKind, KdaPlan, KdaProblem};
use perilune_kernels_dsl::{Scalar, Variant};

use super::buffer;
use crate::launcher::Arguments;
use crate::{Driver, Gpu, GpuTensor};

/// Short runs: decode and verification of known tokens.
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
    let (dims, state_at, tail_at) = (op.params.dims, op.state_at, op.conv_at);
    let (gate, lower_bound) = match op.params.gate {
        KdaGate::Bounded { lower_bound } => (KdaGateKind::Bounded, lower_bound),
        KdaGate::Softplus => (KdaGateKind::Softplus, 0.0),
    };
    let problem = KdaProblem {
        sequences: op.segments.count,
        heads: dims.num_heads,
        head_dim: dims.head_dim,
        taps: dims.conv_kernel,
        gate,
        // The lowest bit that is set in any of them.
        alignment: 1 << (state_at.offset | state_at.stride | 4).trailing_zeros(),
    };
    let plan = problem.plan(gpu.target());
    let vector = plan.variant.vector;
    let (segments, params) = (&op.segments, op.params);
    // Without snapshots these three are not read.
    let (count, snapshots) = op.snapshots.map_or((0, [segments.slot; 3]), |s| (s.count, [s.run, s.rows, s.slot]));
    let elements = [op.q, op.k, op.v, op.gate, op.out_gate, op.beta].into_iter().chain(&params.conv);
    let elements = elements.chain([&params.a_log, &params.dt_bias, &params.out_norm]);
    let elements = elements.chain([segments.start, segments.len, segments.slot]).chain(snapshots);
    let mut buffers: Vec<_> = elements.map(|t| buffer(t, 4)).collect();
    buffers.extend([buffer(op.arena, vector * 4), buffer(op.arena, 4), buffer(op.out, 4)]);
    let places = [state_at.offset / vector, state_at.stride / vector, tail_at.offset, tail_at.stride];
    let mut scalars: Vec<Scalar> = vec![dims.num_heads.into()];
    scalars.extend(places.map(Scalar::from));
    scalars.push(count.into());
    scalars.extend([params.eps, lower_bound].map(Scalar::from));
    gpu.launch(kernel(&plan), Arguments { cubes: plan.cubes, buffers: &buffers, scalars: &scalars, reach: &[] })
}
