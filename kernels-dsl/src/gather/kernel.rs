//! The kernel of row gathers.

use cubecl::prelude::*;
use half::{bf16, f16};

use super::GatherVariant;
use crate::compile::Builder;
use crate::{Element, Geometry};

/// One cube per row: `out[i] = table[ids[i]]`; `loads = width / N`.
#[cube(launch_unchecked)]
pub fn gather<W: Float, N: Size>(
    table: &[Vector<W, N>],
    ids: &[u32],
    out: &mut [Vector<f32, N>],
    loads: usize,
    #[comptime] geometry: Geometry,
) {
    let source = ids[CUBE_POS] as usize * loads;
    let target = CUBE_POS * loads;
    let units = comptime!(geometry.units);
    let mut i = UNIT_POS as usize;
    while i < loads {
        out[target + i] = Vector::<f32, N>::cast_from(table[source + i]);
        i += units;
    }
}

impl GatherVariant {
    pub(crate) fn define(&self, b: &Builder) -> KernelDefinition {
        match self.element {
            Element::F32 => self.define_for::<f32>(b),
            Element::Bf16 => self.define_for::<bf16>(b),
            Element::F16 => self.define_for::<f16>(b),
        }
    }

    fn define_for<W: Float>(&self, b: &Builder) -> KernelDefinition {
        let (settings, properties, target) = b.parts(self.geometry);
        let buffer = Builder::buffer;
        gather::Gather::<W>::new(
            settings,
            properties,
            target,
            buffer(),
            buffer(),
            buffer(),
            (),
            self.vector,
            self.geometry,
        )
        .define()
    }
}
