//! Matrix products: the parts of a call in one launch per storage format.

use perilune_backend::{BackendError, Linear, LinearPart, Write};
use perilune_kernels_dsl::Weights;
use perilune_kernels_dsl::linear::{self, LinearProblem};
use perilune_tensor::QuantFormat;

use super::{buffer, element};
use crate::launcher::{Argument, Arguments};
use crate::tables::Spread;
use crate::{Driver, Gpu, GpuTensor, Region};

pub(crate) fn linear<D: Driver>(gpu: &Gpu<D>, op: Linear<'_, '_, GpuTensor<D>>) -> Result<(), BackendError> {
    let inputs = op.dims()?.in_features;
    if op.rows == 0 {
        return Ok(());
    }
    let mut formats: Vec<QuantFormat> = Vec::new();
    for part in op.parts.iter() {
        if !formats.contains(&part.weight.format) {
            formats.push(part.weight.format);
        }
    }
    for format in formats {
        let parts: Vec<&LinearPart<'_, GpuTensor<D>>> =
            op.parts.iter().filter(|p| p.weight.format == format && p.weight.out_features() > 0).collect();
        if parts.is_empty() {
            continue;
        }
        let (rows, outs) = (op.rows, parts.iter().map(|p| p.weight.out_features()).collect());
        pass(gpu, op.x, (&LinearProblem { rows, inputs, outs, weights: weights("linear", format)? }, &parts))?;
    }
    Ok(())
}

/// How kernels call a format.
pub(crate) fn weights(op: &'static str, format: QuantFormat) -> Result<Weights, BackendError> {
    match format {
        QuantFormat::Mxfp4 => Ok(Weights::Mxfp4),
        plain => Ok(Weights::Plain(element(op, plain)?)),
    }
}

/// Bytes of a load of `x` that goes with a load of weights.
pub(crate) fn input_load_bytes(weights: Weights, vector: usize) -> usize {
    if weights == Weights::Mxfp4 { 16 } else { vector * 4 }
}

fn pass<D: Driver>(
    gpu: &Gpu<D>,
    x: &GpuTensor<D>,
    (problem, parts): (&LinearProblem, &[&LinearPart<'_, GpuTensor<D>>]),
) -> Result<(), BackendError> {
    let plan = problem.plan(gpu.target());
    let load_bytes = problem.weights.size_bytes(plan.variant.vector);
    let regions = |f: &dyn Fn(&LinearPart<'_, GpuTensor<D>>) -> Region| parts.iter().map(|p| f(p)).collect();
    let weight_regions: Vec<Region> = regions(&|p| p.weight.data.region());
    let out_regions: Vec<Region> = regions(&|p| p.out.region());
    let scale_regions: Vec<Region> =
        parts.iter().filter_map(|p| p.weight.scales.as_ref()).map(GpuTensor::region).collect();
    let (weights, outs) = (Spread::new(&weight_regions, load_bytes)?, Spread::new(&out_regions, 4)?);
    let scales = if scale_regions.is_empty() { None } else { Some(Spread::new(&scale_regions, 1)?) };
    let entry = |i: usize| linear::LinearPart {
        weight: weights.offsets[i],
        scales: scales.as_ref().map_or(0, |s| s.offsets[i]),
        out: outs.offsets[i],
        outs: problem.outs[i] as u64,
        add: u64::from(parts[i].write == Write::Add),
    };
    let table = gpu.table(plan.table(&(0..parts.len()).map(entry).collect::<Vec<_>>()))?;
    let mut buffers = vec![buffer(x, input_load_bytes(problem.weights, plan.variant.vector))];
    buffers.push(Argument { region: weights.base, element_bytes: load_bytes });
    buffers.extend(scales.map(|s| Argument { region: s.base, element_bytes: 1 }));
    buffers.extend([table.argument, Argument { region: outs.base, element_bytes: 4 }]);
    let reach = [weight_regions, out_regions, scale_regions].concat();
    let scalars = [problem.rows.into(), plan.loads.into(), parts.len().into()];
    gpu.launch(plan.kernel(), Arguments { cubes: plan.cubes, buffers: &buffers, scalars: &scalars, reach: &reach })
}
