//! Gated activations.

use perilune_backend::{Activation, BackendError, GatedAct};

use crate::CpuBackend;
use crate::simd::{Kernel, Simd, sigmoid, situ};
use crate::tensor::CpuTensor;

/// Values that one task takes.
const PIECE: usize = 4096;

/// `out = act(gate, up)`.
pub(crate) fn gated_act(cpu: &CpuBackend, op: GatedAct<'_, CpuTensor>) -> Result<(), BackendError> {
    let len = op.rows * op.dims()?;
    let (gate, up, act) = (op.gate.f32()?, op.up.f32()?, op.act);
    let out = op.out.parted()?;
    cpu.parallel(len.div_ceil(PIECE), len * 8, |_, task| {
        let range = task * PIECE..len.min((task + 1) * PIECE);
        // SAFETY: the ranges of tasks are disjoint.
        let out = unsafe { out.part(range.clone()) };
        out.copy_from_slice(&gate[range.clone()]);
        cpu.level().run(Activate { act, gate: out, up: &up[range] });
    })
}

/// `gate = act(gate, up)`.
pub(crate) struct Activate<'a> {
    pub(crate) act: Activation,
    pub(crate) gate: &'a mut [f32],
    pub(crate) up: &'a [f32],
}

impl Kernel for Activate<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        // Not a closure given to a loop: one that is not inlined loses the instructions of its level.
        for i in (0..self.gate.len()).step_by(S::LANES) {
            let (gate, up) = (s.load(self.gate, i), s.load(self.up, i));
            let value = match self.act {
                Activation::Silu => s.mul(s.mul(gate, sigmoid(s, gate)), up),
                Activation::Situ { beta, linear_beta } => situ(s, gate, up, (beta, linear_beta)),
            };
            s.store(self.gate, i, value);
        }
    }
}
