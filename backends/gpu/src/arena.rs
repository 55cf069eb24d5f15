//! Copies between parts of a tensor, and between a part and the host.

use std::ops::Range;

use perilune_backend::{BackendError, DeviceTensor, Download, check_elements};

use crate::{Driver, Gpu, GpuTensor, Region};

/// The bytes of a range of elements, checked.
fn part<D: Driver>(op: &'static str, tensor: &GpuTensor<D>, range: &Range<usize>) -> Result<Region, BackendError> {
    let spec = tensor.spec();
    check_elements(op, spec, range)?;
    let size = spec.dtype.size_bytes();
    let region = tensor.region().part(range.start * size, range.len() * size);
    region.ok_or_else(|| BackendError::Device(format!("{op}: {range:?} leaves {spec}")))
}

pub(crate) fn copy_within<D: Driver>(
    gpu: &Gpu<D>,
    tensor: &mut GpuTensor<D>,
    (from, to): (Range<usize>, usize),
) -> Result<(), BackendError> {
    let target = to..to.saturating_add(from.len());
    let (src, dst) = (part("copy_within", tensor, &from)?, part("copy_within", tensor, &target)?);
    if from.start < target.end && target.start < from.end {
        let (found, expected) = (format!("{from:?} to {target:?}"), "ranges apart".into());
        return Err(BackendError::Mismatch { op: "copy_within", field: "to", found, expected });
    }
    gpu.recording.count_node();
    gpu.driver().copy(dst, src)
}

pub(crate) fn read_range<D: Driver>(
    gpu: &Gpu<D>,
    src: &GpuTensor<D>,
    elements: Range<usize>,
) -> Result<Download<Vec<u8>>, BackendError> {
    gpu.recording.refuse("read_range")?;
    gpu.driver().read(part("read_range", src, &elements)?)
}

pub(crate) fn write_range<D: Driver>(
    gpu: &Gpu<D>,
    dst: &mut GpuTensor<D>,
    (at, bytes): (usize, &[u8]),
) -> Result<(), BackendError> {
    gpu.recording.refuse("write_range")?;
    let size = dst.spec().dtype.size_bytes();
    if !bytes.len().is_multiple_of(size) {
        let (found, expected) = (format!("{} bytes", bytes.len()), format!("elements of {size} bytes"));
        return Err(BackendError::Mismatch { op: "write_range", field: "bytes", found, expected });
    }
    let range = at..at.saturating_add(bytes.len() / size);
    gpu.driver().write(part("write_range", dst, &range)?, bytes)
}
