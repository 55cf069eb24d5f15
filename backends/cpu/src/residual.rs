//! Attention residual: the mixture of earlier block sums and the running prefix.

use perilune_backend::{AttnResidual, BackendError};

use crate::CpuBackend;
use crate::norm::inverse_rms;
use crate::simd::{Kernel, Simd, dot};
use crate::tensor::CpuTensor;

/// `out = Σ_i softmax(s)_i v_i` per row.
pub(crate) fn attn_residual(cpu: &CpuBackend, op: AttnResidual<'_, CpuTensor>) -> Result<(), BackendError> {
    let width = op.dims()?;
    let mut sources = Vec::with_capacity(op.sources.len());
    for source in op.sources {
        sources.push(source.f32()?);
    }
    let (score, eps) = (op.score.f32()?, op.eps);
    let out = op.out.parted()?;
    let work = op.rows * width * sources.len() * 3;
    cpu.parallel(op.rows, work, |_, i| {
        // SAFETY: each task has a row of its own.
        let out = unsafe { out.row(i, width) };
        cpu.level().run(MixRow { sources: &sources, row: i, score, eps, out });
    })
}

/// One row.
struct MixRow<'a> {
    sources: &'a [&'a [f32]],
    row: usize,
    score: &'a [f32],
    eps: f32,
    out: &'a mut [f32],
}

impl Kernel for MixRow<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let width = self.out.len();
        let source = |i: usize| &self.sources[i][self.row * width..(self.row + 1) * width];
        let count = self.sources.len();
        let mut weights: Vec<f32> = Vec::with_capacity(count);
        for i in 0..count {
            weights.push(inverse_rms(s, source(i), self.eps) * dot(s, source(i), self.score));
        }
        softmax(&mut weights);
        self.out.fill(0.0);
        for (i, weight) in weights.iter().enumerate() {
            let (values, weight) = (source(i), s.splat(*weight));
            for c in (0..width).step_by(S::LANES) {
                let sum = s.fma(weight, s.load(values, c), s.load(self.out, c));
                s.store(self.out, c, sum);
            }
        }
    }
}

/// In place; a NaN makes all weights NaN.
fn softmax(x: &mut [f32]) {
    let max = x.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    x.iter_mut().for_each(|v| *v = (*v - max).exp());
    let sum: f32 = x.iter().sum();
    x.iter_mut().for_each(|v| *v /= sum);
}
