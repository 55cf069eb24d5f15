//! The kernel of gated activations.

use cubecl::prelude::*;

use super::{Act, GatedActVariant};
use crate::compile::Builder;
use crate::math::{sigmoid, tanh};

/// `b` and `c` as in [`Act`].
#[cube]
pub(crate) fn activate(gate: f32, up: f32, b: f32, c: f32, #[comptime] act: Act) -> f32 {
    let sigma = sigmoid(gate);
    match comptime!(act) {
        Act::Silu => gate * sigma * up,
        Act::Situ => b * tanh(gate / b) * sigma * up,
        Act::SituCapped => b * tanh(gate / b) * sigma * (c * tanh(up / c)),
    }
}

/// One vector per unit.
#[cube(launch_unchecked)]
pub fn gated_act<N: Size>(
    gate: &[Vector<f32, N>],
    up: &[Vector<f32, N>],
    out: &mut [Vector<f32, N>],
    loads: usize,
    b: f32,
    c: f32,
    #[comptime] act: Act,
) {
    let i = ABSOLUTE_POS;
    if i < loads {
        let (g, u) = (gate[i], up[i]);
        let mut y = Vector::<f32, N>::new(0.0);
        #[unroll]
        for e in 0..N::value() {
            y.insert(e, activate(g.extract(e), u.extract(e), b, c, act));
        }
        out[i] = y;
    }
}

impl GatedActVariant {
    pub(crate) fn define(&self, builder: &Builder) -> KernelDefinition {
        let (settings, properties, target) = builder.parts(self.geometry);
        let buffer = Builder::buffer;
        gated_act::GatedAct::new(
            settings,
            properties,
            target,
            buffer(),
            buffer(),
            buffer(),
            (),
            (),
            (),
            self.vector,
            self.act,
        )
        .define()
    }
}
