//! The kernel of RMS normalisation.

use cubecl::prelude::*;

use super::RmsNormVariant;
use crate::Geometry;
use crate::compile::Builder;
use crate::reduce::cube_sum;

/// One cube per row. `x`, `out`: `[rows, width]`, `weight`: `[width]`, all in vectors of `N`; `loads = width / N`.
#[cube(launch_unchecked)]
pub fn rms_norm<N: Size>(
    x: &[Vector<f32, N>],
    weight: &[Vector<f32, N>],
    out: &mut [Vector<f32, N>],
    loads: usize,
    width: f32,
    eps: f32,
    #[comptime] geometry: Geometry,
) {
    let base = CUBE_POS * loads;
    let units = comptime!(geometry.units);
    let mut squares = Vector::<f32, N>::new(0.0);
    let mut i = UNIT_POS as usize;
    while i < loads {
        let value = x[base + i];
        squares = fma(value, value, squares);
        i += units;
    }
    let sum = cube_sum(squares.vector_sum(), geometry);
    let scale = Vector::<f32, N>::new(1.0 / (sum / width + eps).sqrt());
    let mut j = UNIT_POS as usize;
    while j < loads {
        out[base + j] = x[base + j] * scale * weight[j];
        j += units;
    }
}

impl RmsNormVariant {
    pub(crate) fn define(&self, b: &Builder) -> KernelDefinition {
        let (settings, properties, target) = b.parts(self.geometry);
        let buffer = Builder::buffer;
        rms_norm::RmsNorm::new(
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
            self.geometry,
        )
        .define()
    }
}
