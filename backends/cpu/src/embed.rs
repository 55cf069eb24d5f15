//! Rows fetched by index: token embedding and row gather.

use perilune_backend::{BackendError, Embed, SelectRows};
use perilune_tensor::QuantFormat;

use crate::CpuBackend;
use crate::matrix::{Bf16, F16, F32, Format, Matrix, RowPtr};
use crate::runs::fault;
use crate::simd::{Kernel, Simd};
use crate::tensor::CpuTensor;

/// `out[i] = table[ids[i]]`.
pub(crate) fn embed(cpu: &CpuBackend, op: Embed<'_, CpuTensor>) -> Result<(), BackendError> {
    let (vocabulary, width) = op.dims()?;
    if !op.table.format.is_float() {
        return Err(BackendError::Unsupported { op: "embed", what: format!("a table in {:?}", op.table.format) });
    }
    let ids = &op.ids.u32()?[..op.rows];
    check_below(("embed", "ids"), ids, vocabulary)?;
    let table = Matrix::of(op.table);
    let out = op.out.parted()?;
    cpu.parallel(op.rows, op.rows * width, |_, i| {
        // SAFETY: each task has a row of its own.
        let out = unsafe { out.row(i, width) };
        cpu.level().run(Widen { format: table.format, row: table.row(ids[i] as usize), out });
    })
}

/// `out[i] = x[index[i]]`.
pub(crate) fn select_rows(cpu: &CpuBackend, op: SelectRows<'_, CpuTensor>) -> Result<(), BackendError> {
    let (rows, width) = op.dims()?;
    let index = &op.index.u32()?[..op.rows];
    check_below(("select_rows", "index"), index, rows)?;
    let x = op.x.f32()?;
    let out = op.out.parted()?;
    cpu.parallel(op.rows, op.rows * width, |_, i| {
        let from = index[i] as usize;
        // SAFETY: each task has a row of its own.
        unsafe { out.row(i, width) }.copy_from_slice(&x[from * width..(from + 1) * width]);
    })
}

fn check_below((op, field): (&'static str, &'static str), ids: &[u32], limit: usize) -> Result<(), BackendError> {
    match ids.iter().find(|id| **id as usize >= limit) {
        Some(bad) => Err(fault(op, field, bad.to_string(), format!("below {limit}"))),
        None => Ok(()),
    }
}

/// A stored row as `f32`.
struct Widen<'a> {
    format: QuantFormat,
    row: RowPtr,
    out: &'a mut [f32],
}

impl Kernel for Widen<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        match self.format {
            QuantFormat::Bf16 => self.widen::<S, Bf16>(s),
            QuantFormat::F16 => self.widen::<S, F16>(s),
            QuantFormat::F32 => self.widen::<S, F32>(s),
            // Refused by `embed`.
            QuantFormat::Mxfp4 | QuantFormat::Int8 | QuantFormat::Int4 => {}
        }
    }
}

impl Widen<'_> {
    #[inline(always)]
    fn widen<S: Simd, F: Format>(self, s: S) {
        let width = self.out.len();
        for i in (0..width).step_by(S::LANES) {
            // SAFETY: the row has as many columns as `out`.
            let value = unsafe {
                if i + S::LANES <= width { F::load(s, self.row, i) } else { F::load_tail(s, self.row, i, width - i) }
            };
            s.store(self.out, i, value);
        }
    }
}
