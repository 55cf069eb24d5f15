//! Routed experts: `out = Σ_j weight_j · down_e(act(gate_e x, up_e x))` over the chosen experts `e`, in the order of `j`.
//!
//! A *pair* is a row with one of its choices. Pairs are computed alone or, where many rows share experts, in tiles of pairs
//! of one expert, so that its weights are read once for all of them. Each pair's result is the same either way, and a last
//! kernel adds up the pairs of a row in the order of the choices.

#[cfg(feature = "compile")]
mod group;
#[cfg(feature = "compile")]
mod kernel;

use crate::gated_act::Act;
use crate::linear::{Tile, load_width, split, tile_shape};
use crate::{Geometry, Target, Variant, Weights};

/// Words per expert of the kernels' tables: where weights and scales of gate and up begin, or of down and twice 0.
pub const EXPERT_WORDS: usize = 4;
/// Words per tile of pairs: expert, first place in the list of pairs, number of pairs.
pub const TILE_WORDS: usize = 3;

/// Sizes of one call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MoeExpertsProblem {
    /// Rows of the input.
    pub rows: usize,
    /// Experts per row.
    pub choices: usize,
    /// Experts of the layer.
    pub experts: usize,
    /// Width of input and output.
    pub width: usize,
    /// Inner width of an expert.
    pub inner: usize,
    /// How the experts are stored.
    pub weights: Weights,
    /// Activation between the products.
    pub act: Act,
}

/// Which products a kernel computes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Stage {
    /// Gate and up, and the activation of both.
    GateUp(Act),
    /// Down.
    Down,
}

/// How the pairs of a tile are found.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Pairs {
    /// One pair per tile, in the order of rows.
    Alone,
    /// Several pairs of one expert per tile, from a list that two kernels make.
    Grouped,
}

/// Compile-time choices of a product kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct MoeProductVariant {
    /// Which products.
    pub stage: Stage,
    /// How weights are stored.
    pub weights: Weights,
    /// Weights that one load takes; 32 for MXFP4.
    pub vector: usize,
    /// Tile of a plane, its rows being pairs.
    pub tile: Tile,
    /// How pairs are found.
    pub pairs: Pairs,
    /// Cube geometry.
    pub geometry: Geometry,
}

impl MoeProductVariant {
    pub(crate) fn name(&self) -> String {
        let stage = match self.stage {
            Stage::GateUp(act) => format!("gate_up_{act}"),
            Stage::Down => "down".into(),
        };
        let pairs = if self.pairs == Pairs::Alone { "alone" } else { "grouped" };
        format!("moe_{stage}_{pairs}_{}_v{}_{}_{}", self.weights, self.vector, self.tile, self.geometry)
    }

    /// Tiles that a cube computes.
    pub fn tiles_per_cube(&self) -> usize {
        self.geometry.planes() / self.tile.split
    }
}

/// The kernels around the products.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum MoeStep {
    /// Pairs of each expert.
    Count,
    /// The list of pairs by expert, and its tiles.
    Place,
    /// The weighted sum of a row's pairs.
    Combine,
}

/// Compile-time choices of a kernel around the products.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct MoeStepVariant {
    /// Which.
    pub step: MoeStep,
    /// Cube geometry.
    pub geometry: Geometry,
}

impl MoeStepVariant {
    pub(crate) fn name(&self) -> String {
        let step = match self.step {
            MoeStep::Count => "count",
            MoeStep::Place => "place",
            MoeStep::Combine => "combine",
        };
        format!("moe_{step}_{}", self.geometry)
    }
}

/// One product kernel of a call.
///
/// Buffers: input `f32` (`x [rows, width]` or the inner activations `[pairs, inner]`), weights, scales (MXFP4 only),
/// `table u64 [experts, 4]`, `ids u32 [pairs]`, `tiles u32 [slots, 3]`, `list u32 [pairs]` (the ids again where pairs are
/// alone), output `f32 [pairs, outs]`. Scalars: pairs that share a row of the input, loads of a row, outputs, and the two
/// caps of the activation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MoeProductPlan {
    /// The kernel.
    pub variant: MoeProductVariant,
    /// Cubes along the outputs and along the tiles of pairs.
    pub cubes: [usize; 2],
    /// Loads of a weight's row.
    pub loads: usize,
}

impl MoeProductPlan {
    /// The kernel by name.
    pub fn kernel(&self) -> Variant {
        Variant::MoeProduct(self.variant)
    }
}

/// How a [`MoeExpertsProblem`] is laid out on a target.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MoeExpertsPlan {
    /// Gate and up.
    pub gate_up: MoeProductPlan,
    /// Down.
    pub down: MoeProductPlan,
    /// How pairs are found.
    pub pairs: Pairs,
    /// Places for tiles; more than there can be.
    pub slots: usize,
    /// Pairs of a tile.
    pub tile_rows: usize,
    target: Target,
}

impl MoeExpertsPlan {
    /// A kernel around the products.
    pub fn step(&self, step: MoeStep) -> Variant {
        let geometry = Geometry { units: 256.min(self.target.max_units), plane: self.target.plane };
        Variant::MoeStep(MoeStepVariant { step, geometry })
    }
}

impl MoeExpertsProblem {
    /// Rows that one pass may take: as many as keep the activations between the kernels within a budget of bytes and
    /// the pairs within a grid. Each row's result is its own, so the passes do not change it.
    pub fn rows_per_pass(&self, budget: usize) -> usize {
        let of_row = self.choices * (self.inner + self.width) * 4;
        (budget / of_row.max(1)).min(65535 / self.choices.max(1)).clamp(1, self.rows.max(1))
    }

    /// Tiles as tall as an expert has pairs on average; the order of summation depends on the layer's sizes alone.
    pub fn plan(&self, target: Target) -> MoeExpertsPlan {
        let pairs = self.rows * self.choices;
        let (rows, _) = tile_shape(self.weights, pairs / self.experts.max(1));
        let found = if rows == 1 { Pairs::Alone } else { Pairs::Grouped };
        let slots = if rows == 1 { pairs } else { pairs / rows + self.experts.min(pairs) };
        let product = |stage, inputs, outs| self.product((stage, found), (inputs, outs), (rows, slots), target);
        MoeExpertsPlan {
            gate_up: product(Stage::GateUp(self.act), self.width, self.inner),
            down: product(Stage::Down, self.inner, self.width),
            pairs: found,
            slots,
            tile_rows: rows,
            target,
        }
    }

    fn product(
        &self,
        (stage, pairs): (Stage, Pairs),
        (inputs, outs): (usize, usize),
        (rows, slots): (usize, usize),
        target: Target,
    ) -> MoeProductPlan {
        let vector = load_width(self.weights, inputs);
        let loads = inputs / vector;
        // Two products at once need twice the registers, so a tile is half as wide.
        let wide = tile_shape(self.weights, rows).1;
        let wide = if stage == Stage::Down { wide } else { wide.div_ceil(2) };
        let tile = Tile { rows, outs: wide, split: split(outs * self.choices, loads, target) };
        let geometry = Geometry { units: 256.min(target.max_units), plane: target.plane };
        let variant = MoeProductVariant { stage, weights: self.weights, vector, tile, pairs, geometry };
        let cubes = [outs.div_ceil(wide).div_ceil(variant.tiles_per_cube()), slots];
        MoeProductPlan { variant, cubes, loads }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn problem(rows: usize) -> MoeExpertsProblem {
        let (choices, experts, width, inner) = (16, 896, 3584, 3072);
        MoeExpertsProblem { rows, choices, experts, width, inner, weights: Weights::Mxfp4, act: Act::SituCapped }
    }

    #[test]
    fn the_order_of_summation_does_not_depend_on_the_rows() {
        for target in [Target::CUDA, Target::HIP] {
            let order = |rows: usize| {
                let plan = problem(rows).plan(target);
                [plan.gate_up, plan.down].map(|p| (p.variant.vector, p.variant.tile.split, p.variant.geometry, p.loads))
            };
            for rows in [2, 8, 64, 1000] {
                assert_eq!(order(rows), order(1));
            }
        }
    }

    #[test]
    fn there_is_a_slot_for_every_tile() {
        for (rows, tile_rows) in [(1, 1), (8, 1), (112, 2), (400, 8), (4000, 8)] {
            let plan = problem(rows).plan(Target::CUDA);
            let pairs = rows * 16;
            assert_eq!(plan.tile_rows, tile_rows, "{rows}");
            // The worst case: every expert that can have a pair wastes most of a tile.
            let worst = if tile_rows == 1 { pairs } else { 896.min(pairs) + (pairs - 896.min(pairs)) / tile_rows };
            assert!(plan.slots >= worst && plan.slots <= 65535, "{rows}");
        }
    }

    #[test]
    fn passes_stay_within_their_budget() {
        let all = problem(10_000);
        let rows = all.rows_per_pass(256 << 20);
        assert!(rows * 16 * (3584 + 3072) * 4 <= 256 << 20 && rows * 16 <= 65535 && rows > 500);
        assert_eq!(problem(3).rows_per_pass(256 << 20), 3);
        assert_eq!(problem(3).rows_per_pass(0), 1);
    }
}
