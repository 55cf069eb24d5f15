//! RMS normalisation.

use perilune_backend::{BackendError, RmsNorm};
use perilune_kernels_dsl::norm::RmsNormProblem;

use super::buffer;
use crate::launcher::Arguments;
use crate::{Driver, Gpu, GpuTensor};

pub(crate) fn rms_norm<D: Driver>(gpu: &Gpu<D>, op: RmsNorm<'_, GpuTensor<D>>) -> Result<(), BackendError> {
    let width = op.dims()?;
    let plan = RmsNormProblem { rows: op.rows, width }.plan(gpu.target());
    let bytes = plan.variant.vector * 4;
    let arguments = Arguments {
        cubes: [plan.cubes, 1],
        buffers: &[buffer(op.x, bytes), buffer(op.weight, bytes), buffer(op.out, bytes)],
        scalars: &[plan.loads.into(), (width as f32).into(), op.eps.into()],
        reach: &[],
    };
    gpu.launch(plan.kernel(), arguments)
}
