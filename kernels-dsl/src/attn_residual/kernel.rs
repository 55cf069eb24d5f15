//! The kernel of attention residuals.

use cubecl::prelude::*;

use super::AttnResidualVariant;
use crate::Geometry;
use crate::compile::Builder;
use crate::reduce::cube_sum;

/// One cube per row. Sources are read twice, the second time from cache.
#[cube(launch_unchecked)]
pub fn attn_residual<N: Size>(
    sources: &[Vector<f32, N>],
    table: &[u64],
    score: &[Vector<f32, N>],
    out: &mut [Vector<f32, N>],
    loads: usize,
    count: usize,
    width: f32,
    eps: f32,
    #[comptime] most_sources: usize,
    #[comptime] geometry: Geometry,
) {
    let row = CUBE_POS * loads;
    let units = comptime!(geometry.units);
    let unit = UNIT_POS as usize;
    let mut scores = Shared::<[f32]>::new_slice(most_sources);
    for s in 0..count {
        let base = table[s] as usize + row;
        let mut squares = Vector::<f32, N>::new(0.0);
        let mut products = Vector::<f32, N>::new(0.0);
        let mut i = unit;
        while i < loads {
            let value = sources[base + i];
            squares = fma(value, value, squares);
            products = fma(value, score[i], products);
            i += units;
        }
        let square = cube_sum(squares.vector_sum(), geometry);
        let product = cube_sum(products.vector_sum(), geometry);
        if unit == 0 {
            scores[s] = product / (square / width + eps).sqrt();
        }
    }
    sync_cube();
    let mut best = scores[0];
    for s in 1..count {
        best = max(best, scores[s]);
    }
    let mut total = 0.0f32;
    for s in 0..count {
        total += (scores[s] - best).exp();
    }
    let mut j = unit;
    while j < loads {
        let mut mixed = Vector::<f32, N>::new(0.0);
        for s in 0..count {
            let weight = (scores[s] - best).exp() / total;
            mixed = fma(Vector::<f32, N>::new(weight), sources[table[s] as usize + row + j], mixed);
        }
        out[row + j] = mixed;
        j += units;
    }
}

impl AttnResidualVariant {
    pub(crate) fn define(&self, b: &Builder) -> KernelDefinition {
        let (settings, properties, target) = b.parts(self.geometry);
        let buffer = Builder::buffer;
        attn_residual::AttnResidual::new(
            settings,
            properties,
            target,
            buffer(),
            buffer(),
            buffer(),
            buffer(),
            (),
            (),
            (),
            (),
            self.vector,
            self.most_sources,
            self.geometry,
        )
        .define()
    }
}
