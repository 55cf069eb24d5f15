//! Tensors: allocation, copies, clearing.

use std::ops::Range;
use std::sync::Arc;

use perilune_backend::{BackendError, DeviceTensor, Download};
use perilune_tensor::{DType, HostTensor, TensorSpec};

use crate::{Driver, Gpu, GpuTensor};

fn mismatch(op: &'static str, field: &'static str, (found, expected): (String, String)) -> BackendError {
    BackendError::Mismatch { op, field, found, expected }
}

/// Memory for a tensor, its contents undefined.
pub(crate) fn reserve<D: Driver>(gpu: &Gpu<D>, spec: &TensorSpec) -> Result<GpuTensor<D>, BackendError> {
    let bytes = spec.size_bytes();
    gpu.recording.refuse("alloc")?;
    let memory = gpu.driver().alloc(bytes.max(1))?;
    let region = gpu.driver().region(&memory);
    let Some(region) = region.part(0, bytes) else {
        return Err(BackendError::Device(format!("{bytes} bytes asked for, {} allocated", region.bytes)));
    };
    Ok(GpuTensor::new(spec.clone(), Arc::new(memory), region))
}

pub(crate) fn alloc<D: Driver>(gpu: &Gpu<D>, spec: &TensorSpec) -> Result<GpuTensor<D>, BackendError> {
    let tensor = reserve(gpu, spec)?;
    gpu.driver().zero(tensor.region())?;
    Ok(tensor)
}

pub(crate) fn upload<D: Driver>(gpu: &Gpu<D>, host: &HostTensor) -> Result<GpuTensor<D>, BackendError> {
    let tensor = reserve(gpu, host.spec())?;
    gpu.driver().write(tensor.region(), host.bytes())?;
    Ok(tensor)
}

pub(crate) fn write_u32<D: Driver>(gpu: &Gpu<D>, dst: &mut GpuTensor<D>, values: &[u32]) -> Result<(), BackendError> {
    gpu.recording.refuse("write_u32")?;
    let bytes = bytemuck::cast_slice(values);
    match dst.region().part(0, bytes.len()) {
        Some(region) if dst.spec().dtype == DType::U32 => gpu.driver().write(region, bytes),
        _ => {
            let expected = format!("U32 with at least {} elements", values.len());
            Err(mismatch("write_u32", "dst", (dst.spec().to_string(), expected)))
        }
    }
}

pub(crate) fn zero<D: Driver>(gpu: &Gpu<D>, dst: &mut GpuTensor<D>, rows: Range<usize>) -> Result<(), BackendError> {
    let count = dst.spec().shape.dims().first().copied().unwrap_or(1);
    if rows.start > rows.end || rows.end > count {
        return Err(mismatch("zero", "rows", (format!("{rows:?}"), format!("within 0..{count}"))));
    }
    let row_bytes = dst.spec().size_bytes() / count.max(1);
    match dst.region().part(rows.start * row_bytes, rows.len() * row_bytes) {
        Some(region) => {
            gpu.recording.count_node();
            gpu.driver().zero(region)
        }
        None => Err(mismatch("zero", "rows", (format!("{rows:?}"), format!("within {}", dst.spec())))),
    }
}

pub(crate) fn download<D: Driver>(gpu: &Gpu<D>, src: &GpuTensor<D>) -> Result<Download<HostTensor>, BackendError> {
    gpu.recording.refuse("download")?;
    let (spec, bytes) = (src.spec().clone(), gpu.driver().read(src.region())?);
    Ok(Download::pending(move || {
        let bytes = bytes.wait()?;
        let what = format!("{} bytes arrived for {spec}", bytes.len());
        HostTensor::from_vec(spec, bytes).ok_or(BackendError::Device(what))
    }))
}
