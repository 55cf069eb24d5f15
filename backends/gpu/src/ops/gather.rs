//! Token embedding and row selection: one kernel.

use perilune_backend::{BackendError, Embed, SelectRows};
use perilune_kernels_dsl::Element;
use perilune_kernels_dsl::gather::GatherProblem;

use super::{buffer, element};
use crate::launcher::Arguments;
use crate::{Driver, Gpu, GpuTensor};

pub(crate) fn embed<D: Driver>(gpu: &Gpu<D>, op: Embed<'_, GpuTensor<D>>) -> Result<(), BackendError> {
    let (_, width) = op.dims()?;
    let element = element("embed", op.table.format)?;
    gather(gpu, GatherProblem { rows: op.rows, width, element }, [&op.table.data, op.ids, op.out])
}

pub(crate) fn select_rows<D: Driver>(gpu: &Gpu<D>, op: SelectRows<'_, GpuTensor<D>>) -> Result<(), BackendError> {
    let (_, width) = op.dims()?;
    gather(gpu, GatherProblem { rows: op.rows, width, element: Element::F32 }, [op.x, op.index, op.out])
}

/// `tensors`: table, indices, output.
fn gather<D: Driver>(gpu: &Gpu<D>, problem: GatherProblem, tensors: [&GpuTensor<D>; 3]) -> Result<(), BackendError> {
    let plan = problem.plan(gpu.target());
    let [table, ids, out] = tensors;
    let vector = plan.variant.vector;
    let buffers = [buffer(table, vector * problem.element.size_bytes()), buffer(ids, 4), buffer(out, vector * 4)];
    let arguments = Arguments { cubes: [plan.cubes, 1], buffers: &buffers, scalars: &[plan.loads.into()], reach: &[] };
    gpu.launch(plan.kernel(), arguments)
}
