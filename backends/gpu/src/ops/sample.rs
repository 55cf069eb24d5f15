//! Sampling: the rows asked for are copied to the host, where [`crate::host_sample`] takes them when they are waited for.

use perilune_backend::{BackendError, DeviceTensor, Download, Sample, SampledRow};

use crate::host_sample::sample_row;
use crate::{Driver, Gpu, GpuTensor};

pub(crate) fn sample<D: Driver>(
    gpu: &Gpu<D>,
    op: Sample<'_, GpuTensor<D>>,
) -> Result<Download<Vec<SampledRow>>, BackendError> {
    gpu.recording.refuse("sample")?;
    let row_bytes = op.dims()? * 4;
    let mut rows: Vec<usize> = op.rows.iter().map(|r| r.row).collect();
    rows.sort_unstable();
    rows.dedup();
    let mut copies = Vec::with_capacity(rows.len());
    for row in &rows {
        let region = op.logits.region().part(row * row_bytes, row_bytes);
        let region = region.ok_or_else(|| BackendError::Device(format!("row {row} of {}", op.logits.spec())))?;
        copies.push(gpu.driver().read(region)?);
    }
    let asked = op.rows.to_vec();
    Ok(Download::pending(move || {
        let mut logits = Vec::with_capacity(copies.len());
        for copy in copies {
            let bytes = copy.wait()?;
            logits
                .push(bytes.chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect::<Vec<_>>());
        }
        let of = |row: usize| rows.binary_search(&row).map_or(&[][..], |i| logits[i].as_slice());
        Ok(asked.iter().map(|asked| sample_row(asked, of(asked.row))).collect())
    }))
}
