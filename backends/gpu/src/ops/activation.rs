//! Gated activations.

use perilune_backend::{Activation, BackendError, GatedAct};
use perilune_kernels_dsl::gated_act::{Act, GatedActProblem};

use super::buffer;
use crate::launcher::Arguments;
use crate::{Driver, Gpu, GpuTensor};

pub(crate) fn gated_act<D: Driver>(gpu: &Gpu<D>, op: GatedAct<'_, GpuTensor<D>>) -> Result<(), BackendError> {
    let width = op.dims()?;
    let (act, b, c) = parameters(op.act);
    let plan = GatedActProblem { elements: op.rows * width, act }.plan(gpu.target());
    let bytes = plan.variant.vector * 4;
    let arguments = Arguments {
        cubes: [plan.cubes, 1],
        buffers: &[buffer(op.gate, bytes), buffer(op.up, bytes), buffer(op.out, bytes)],
        scalars: &[plan.loads.into(), b.into(), c.into()],
        reach: &[],
    };
    gpu.launch(plan.kernel(), arguments)
}

/// The kernel's activation with its two caps; 1 where it has none.
pub(crate) fn parameters(act: Activation) -> (Act, f32, f32) {
    match act {
        Activation::Silu => (Act::Silu, 1.0, 1.0),
        Activation::Situ { beta, linear_beta: None } => (Act::Situ, beta, 1.0),
        Activation::Situ { beta, linear_beta: Some(cap) } => (Act::SituCapped, beta, cap),
    }
}
