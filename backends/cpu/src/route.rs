//! Expert choice.

use perilune_backend::{BackendError, MoeRoute, Renormalize};

use crate::CpuBackend;
use crate::select::largest;
use crate::simd::{Kernel, Simd, sigmoid};
use crate::tensor::{CpuTensor, Parted};

/// Chooses experts for every row.
pub(crate) fn moe_route(cpu: &CpuBackend, op: MoeRoute<'_, CpuTensor>) -> Result<(), BackendError> {
    let dims = op.dims()?;
    let (num_experts, top_k) = (dims.num_experts, dims.top_k);
    let (logits, bias) = (op.logits.f32()?, op.bias.f32()?);
    let (ids, weights) = (Parted::new(op.ids.elements_mut::<u32>()?), op.weights.parted()?);
    let mut scratch = cpu.scratch().take(2 * num_experts * cpu.num_threads())?;
    let scratch = Parted::new(&mut scratch);
    let groups = Groups { count: op.num_groups.max(1), eligible: op.topk_groups };
    let divide = op.renormalize == Renormalize::Sum && top_k > 1;
    cpu.parallel(op.rows, op.rows * num_experts * 8, |thread, i| {
        // SAFETY: each thread has scratch of its own, each task rows of its own.
        let (scratch, ids, weights) =
            unsafe { (scratch.row(thread, 2 * num_experts), ids.row(i, top_k), weights.row(i, top_k)) };
        let (scores, choice) = scratch.split_at_mut(num_experts);
        cpu.level().run(Scores { logits: &logits[i * num_experts..(i + 1) * num_experts], bias, scores, choice });
        groups.mask(choice);
        ids.copy_from_slice(&largest(choice, top_k));
        let sum: f32 = ids.iter().map(|e| scores[*e as usize]).sum();
        let divisor = if divide { sum + 1e-20 } else { 1.0 };
        for (weight, e) in weights.iter_mut().zip(ids.iter()) {
            *weight = scores[*e as usize] / divisor * op.scale;
        }
    })
}

/// `σ(logits)` and the scores to choose by.
struct Scores<'a> {
    logits: &'a [f32],
    bias: &'a [f32],
    scores: &'a mut [f32],
    choice: &'a mut [f32],
}

impl Kernel for Scores<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        for i in (0..self.logits.len()).step_by(S::LANES) {
            let score = sigmoid(s, s.load(self.logits, i));
            s.store(self.scores, i, score);
            s.store(self.choice, i, s.add(score, s.load(self.bias, i)));
        }
    }
}

/// The group step.
#[derive(Clone, Copy)]
struct Groups {
    count: usize,
    eligible: usize,
}

impl Groups {
    /// Leaves the groups with the largest sums of their two best scores; the others become `-inf`, and what is not a
    /// number becomes the least number, so that a masked expert never wins.
    fn mask(self, choice: &mut [f32]) {
        if self.count <= 1 {
            return;
        }
        choice.iter_mut().filter(|c| c.is_nan()).for_each(|c| *c = f32::MIN);
        let size = choice.len() / self.count;
        let best_two = |group: &[f32]| largest(group, 2).iter().map(|e| group[*e as usize]).sum::<f32>();
        let sums: Vec<f32> = choice.chunks_exact(size).map(best_two).collect();
        let kept = largest(&sums, self.eligible);
        for (group, scores) in choice.chunks_exact_mut(size).enumerate() {
            if !kept.contains(&(group as u32)) {
                scores.fill(f32::NEG_INFINITY);
            }
        }
    }
}
