//! RMS normalisation.

use perilune_backend::{BackendError, RmsNorm};

use crate::CpuBackend;
use crate::simd::{Kernel, Simd, dot};
use crate::tensor::CpuTensor;

/// `out = x (mean(x²) + eps)^(-1/2) w` per row.
pub(crate) fn rms_norm(cpu: &CpuBackend, op: RmsNorm<'_, CpuTensor>) -> Result<(), BackendError> {
    let width = op.dims()?;
    let (x, weight, eps) = (op.x.f32()?, op.weight.f32()?, op.eps);
    let out = op.out.parted()?;
    cpu.parallel(op.rows, op.rows * width * 2, |_, i| {
        // SAFETY: each task has a row of its own.
        let out = unsafe { out.row(i, width) };
        cpu.level().run(NormRow { x: &x[i * width..(i + 1) * width], weight, eps, out });
    })
}

/// One row.
pub(crate) struct NormRow<'a> {
    pub(crate) x: &'a [f32],
    pub(crate) weight: &'a [f32],
    pub(crate) eps: f32,
    pub(crate) out: &'a mut [f32],
}

impl Kernel for NormRow<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let factor = s.splat(inverse_rms(s, self.x, self.eps));
        for i in (0..self.x.len()).step_by(S::LANES) {
            let value = s.mul(s.mul(s.load(self.x, i), factor), s.load(self.weight, i));
            s.store(self.out, i, value);
        }
    }
}

/// `(mean(x²) + eps)^(-1/2)`.
#[inline(always)]
pub(crate) fn inverse_rms<S: Simd>(s: S, x: &[f32], eps: f32) -> f32 {
    1.0 / (dot(s, x, x) / x.len() as f32 + eps).sqrt()
}
