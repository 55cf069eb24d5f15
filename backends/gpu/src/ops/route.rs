//! Expert choice.

use perilune_backend::{BackendError, MoeRoute, Renormalize};
use perilune_kernels_dsl::moe_route::MoeRouteProblem;

use super::buffer;
use crate::launcher::Arguments;
use crate::{Driver, Gpu, GpuTensor};

pub(crate) fn moe_route<D: Driver>(gpu: &Gpu<D>, op: MoeRoute<'_, GpuTensor<D>>) -> Result<(), BackendError> {
    let dims = op.dims()?;
    let groups = op.num_groups.max(1);
    let plan = MoeRouteProblem { rows: op.rows, experts: dims.num_experts, groups }.plan(gpu.target());
    let normalize = u32::from(op.renormalize == Renormalize::Sum);
    let arguments = Arguments {
        cubes: [plan.cubes, 1],
        buffers: &[buffer(op.logits, 4), buffer(op.bias, 4), buffer(op.ids, 4), buffer(op.weights, 4)],
        scalars: &[
            dims.num_experts.into(),
            dims.top_k.into(),
            groups.into(),
            op.topk_groups.into(),
            normalize.into(),
            op.scale.into(),
        ],
        reach: &[],
    };
    gpu.launch(plan.kernel(), arguments)
}
