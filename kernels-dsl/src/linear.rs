//! Matrix products `y = x Wᵀ` of several weights with one input, in one pass.
//!
//! A tile is a few outputs times a few rows; `split` planes share it, each lane of each takes every `split · plane`-th load
//! of the inner dimension, and the partial sums meet in one fixed order. That order follows from the plane's width and
//! `split` alone, so the result of a row does not depend on how many rows there are; `split` is chosen without looking
//! at the rows. Each weight is read once for all rows of a tile.

#[cfg(feature = "compile")]
mod kernel;
#[cfg(feature = "compile")]
pub(crate) mod tile;

use crate::element::widest_vector;
use crate::{Geometry, Target, Variant, Weights};

/// Words of one entry of the table of parts.
pub const PART_WORDS: usize = 6;

/// One weight of a call, as the kernel's table has it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LinearPart {
    /// Where the weight begins, in loads from the kernel's weight buffer.
    pub weight: u64,
    /// Where its scales begin, in bytes from the kernel's scale buffer; 0 without scales.
    pub scales: u64,
    /// Where its output begins, in elements from the kernel's output buffer.
    pub out: u64,
    /// Output features.
    pub outs: u64,
    /// 1 to add to what the output holds, 0 to overwrite it.
    pub add: u64,
}

/// Sizes of one call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LinearProblem {
    /// Rows of the input.
    pub rows: usize,
    /// Input features.
    pub inputs: usize,
    /// Output features of each weight.
    pub outs: Vec<usize>,
    /// How all of the weights are stored.
    pub weights: Weights,
}

/// Rows and outputs that a plane computes at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Tile {
    /// Rows.
    pub rows: usize,
    /// Outputs.
    pub outs: usize,
    /// Planes that share the inner dimension.
    pub split: usize,
}

impl std::fmt::Display for Tile {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "r{}_o{}_s{}", self.rows, self.outs, self.split)
    }
}

/// Compile-time choices.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct LinearVariant {
    /// How weights are stored.
    pub weights: Weights,
    /// Weights that one load takes; 32 for MXFP4.
    pub vector: usize,
    /// Tile of a plane.
    pub tile: Tile,
    /// Cube geometry.
    pub geometry: Geometry,
}

impl LinearVariant {
    pub(crate) fn name(&self) -> String {
        format!("linear_{}_v{}_{}_{}", self.weights, self.vector, self.tile, self.geometry)
    }

    /// Tiles that a cube computes.
    pub fn tiles_per_cube(&self) -> usize {
        self.geometry.planes() / self.tile.split
    }
}

/// How a [`LinearProblem`] is laid out on a target.
///
/// Buffers: `x f32 [rows, inputs]`, weights, scales (the weights again where there are none), `table u64`, output.
/// Scalars: rows, loads of a row, number of parts. The table has, for each part, the first tile and a [`LinearPart`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LinearPlan {
    /// The kernel.
    pub variant: LinearVariant,
    /// Cubes along the tiles and along the rows.
    pub cubes: [usize; 2],
    /// Loads of a weight's row.
    pub loads: usize,
}

impl LinearPlan {
    /// The kernel by name.
    pub fn kernel(&self) -> Variant {
        Variant::Linear(self.variant)
    }

    /// The table of parts.
    pub fn table(&self, parts: &[LinearPart]) -> Vec<u64> {
        let mut first = 0;
        let mut words = Vec::with_capacity(parts.len() * PART_WORDS);
        for part in parts {
            words.extend([first, part.weight, part.scales, part.out, part.outs, part.add]);
            first += part.outs.div_ceil(self.variant.tile.outs as u64);
        }
        words
    }
}

impl LinearProblem {
    /// The widest loads that divide a row, as many rows to a tile as there are up to 8, and enough planes to keep a
    /// device busy.
    pub fn plan(&self, target: Target) -> LinearPlan {
        let vector = load_width(self.weights, self.inputs);
        let loads = self.inputs / vector;
        let (rows, outs) = tile_shape(self.weights, self.rows);
        let split = split(self.outs.iter().sum(), loads, target);
        let tile = Tile { rows, outs, split };
        let geometry = Geometry { units: 256.min(target.max_units), plane: target.plane };
        let variant = LinearVariant { weights: self.weights, vector, tile, geometry };
        let tiles: usize = self.outs.iter().map(|n| n.div_ceil(outs)).sum();
        let cubes = [tiles.div_ceil(variant.tiles_per_cube()), self.rows.div_ceil(rows)];
        LinearPlan { variant, cubes, loads }
    }
}

/// Weights of a load: 16 bytes where the row allows it.
pub(crate) fn load_width(weights: Weights, inputs: usize) -> usize {
    match weights {
        Weights::Plain(element) => widest_vector(inputs, 16 / element.size_bytes()),
        Weights::Mxfp4 => 32,
    }
}

/// Rows and outputs of a tile: more rows mean fewer reads of each weight, more outputs fewer of the input. Four outputs of
/// eight rows would not fit the registers of a full block.
pub(crate) fn tile_shape(weights: Weights, rows: usize) -> (usize, usize) {
    let tall = rows.next_power_of_two().clamp(1, 8);
    let wide = match (weights, tall) {
        (Weights::Mxfp4, _) | (_, 1) => 1,
        _ => 2,
    };
    (tall, wide)
}

/// Planes that share one output, a power of two up to 8: enough for about 4096 planes in all, while each lane has a load.
pub(crate) fn split(outs: usize, loads: usize, target: Target) -> usize {
    let mut split = 1;
    while split < 256 / target.plane && outs * split < 4096 && loads >= target.plane * split * 2 {
        split *= 2;
    }
    split
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Element;

    fn problem(rows: usize, inputs: usize, outs: &[usize], weights: Weights) -> LinearProblem {
        LinearProblem { rows, inputs, outs: outs.to_vec(), weights }
    }

    #[test]
    fn loads_are_16_bytes_wide_where_the_row_allows_it() {
        let vector = |inputs, weights| problem(1, inputs, &[64], weights).plan(Target::CUDA).variant.vector;
        assert_eq!(vector(7168, Weights::Plain(Element::F32)), 4);
        assert_eq!(vector(7168, Weights::Plain(Element::Bf16)), 8);
        assert_eq!(vector(7164, Weights::Plain(Element::Bf16)), 4);
        assert_eq!(vector(7163, Weights::Plain(Element::F16)), 1);
        assert_eq!(vector(7168, Weights::Mxfp4), 32);
    }

    #[test]
    fn the_order_of_summation_does_not_depend_on_the_rows() {
        for target in [Target::CUDA, Target::HIP] {
            for (inputs, outs) in [(7168, 576), (1536, 24576), (64, 5), (96, 4096)] {
                let of = |rows| {
                    let variant = problem(rows, inputs, &[outs], Weights::Plain(Element::Bf16)).plan(target).variant;
                    (variant.tile.split, variant.vector, variant.geometry)
                };
                for rows in [2, 3, 7, 8, 9, 64, 4096] {
                    assert_eq!(of(rows), of(1), "{inputs} -> {outs}, {rows} rows");
                }
            }
        }
    }

    #[test]
    fn every_output_of_every_row_has_a_tile() {
        for rows in [1, 2, 3, 5, 8, 9, 70] {
            let outs = [1, 40, 7, 300];
            let plan = problem(rows, 96, &outs, Weights::Plain(Element::F32)).plan(Target::HIP);
            let tile = plan.variant.tile;
            let parts = outs.map(|outs| LinearPart { weight: 0, scales: 0, out: 0, outs: outs as u64, add: 0 });
            let table = plan.table(&parts);
            assert_eq!(table.len(), 4 * PART_WORDS);
            let last = table[3 * PART_WORDS] as usize + 300_usize.div_ceil(tile.outs);
            assert!(plan.cubes[0] * plan.variant.tiles_per_cube() >= last);
            assert!(plan.cubes[1] * tile.rows >= rows && plan.cubes[1] * tile.rows < rows + tile.rows);
        }
    }

    #[test]
    fn few_outputs_are_split_among_planes() {
        let split = |outs, inputs| {
            problem(1, inputs, &[outs], Weights::Plain(Element::Bf16)).plan(Target::CUDA).variant.tile.split
        };
        assert_eq!([split(24576, 7168), split(576, 7168), split(576, 512)], [1, 8, 2]);
    }
}
