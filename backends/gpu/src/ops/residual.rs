//! Attention residuals.

use perilune_backend::{AttnResidual, BackendError};
use perilune_kernels_dsl::attn_residual::AttnResidualProblem;

use super::buffer;
use crate::launcher::{Argument, Arguments};
use crate::tables::Spread;
use crate::{Driver, Gpu, GpuTensor, Region};

pub(crate) fn attn_residual<D: Driver>(gpu: &Gpu<D>, op: AttnResidual<'_, GpuTensor<D>>) -> Result<(), BackendError> {
    let width = op.dims()?;
    let count = op.sources.len();
    let plan = AttnResidualProblem { rows: op.rows, width, sources: count }.plan(gpu.target());
    if op.rows == 0 {
        return Ok(());
    }
    let bytes = plan.variant.vector * 4;
    let regions: Vec<Region> = op.sources.iter().map(|s| s.region()).collect();
    let spread = Spread::new(&regions, bytes)?;
    let table = gpu.table(spread.offsets)?;
    let arguments = Arguments {
        cubes: [plan.cubes, 1],
        buffers: &[
            Argument { region: spread.base, element_bytes: bytes },
            table.argument,
            buffer(op.score, bytes),
            buffer(op.out, bytes),
        ],
        scalars: &[plan.loads.into(), count.into(), (width as f32).into(), op.eps.into()],
        reach: &regions,
    };
    gpu.launch(plan.kernel(), arguments)
}
