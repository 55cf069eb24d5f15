//! Multi-head latent attention in its absorbed form: four kernels, for short runs and long ones alike.
//!
//! *Append* norms the latents of the new rows and writes them to their blocks. *Absorb* multiplies queries into the latent
//! space. *Attend* goes over the latents of a run once per group of queries, its part of the sequence given by the split:
//! a plane holds a few queries and their mixtures in registers, its lanes share the channels of a latent, and a latent
//! that was loaded serves as key and as value. *Value* merges the splits by their log-sum-exp, applies the value matrix
//! and the output gate.
//!
//! A *slot* is one row of one run in the scratch buffers between the kernels.

#[cfg(feature = "compile")]
mod absorb;
#[cfg(feature = "compile")]
mod append;
#[cfg(feature = "compile")]
mod attend;
#[cfg(feature = "compile")]
mod slots;
#[cfg(feature = "compile")]
mod value;

use crate::element::widest_vector;
use crate::{Element, Geometry, Target, Variant};

/// Slots that share one pass over a head's weights.
pub const TILE: usize = 8;
/// Most parts that a sequence is split into.
pub const MAX_SPLITS: usize = 64;
/// Tokens that a plane takes at once.
pub(crate) const TOKENS: usize = 4;
/// Cubes that keep a large device busy.
const BUSY_CUBES: usize = 512;

/// Which slots share a tile.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Tiles {
    /// The same row of different runs: for runs of at most [`TILE`] rows.
    Across,
    /// Consecutive rows of one run.
    Along,
}

/// Whether there is an output gate.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum OutGate {
    /// `o ⊙ σ(γ)`.
    Sigmoid,
    /// None.
    Absent,
}

/// Sizes of a head and how the weights are stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct MlaShape {
    /// Key width from the latent, `n`.
    pub nope: usize,
    /// Shared key width, `r`.
    pub rope: usize,
    /// Value width, `v`.
    pub value: usize,
    /// Latent width, `C`.
    pub latent: usize,
    /// How key and value matrices are stored.
    pub element: Element,
    /// Output gate.
    pub gate: OutGate,
}

impl MlaShape {
    /// Width of a cache row.
    pub fn width(&self) -> usize {
        self.latent + self.rope
    }
}

/// Sizes of one call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MlaProblem {
    /// Of a head.
    pub shape: MlaShape,
    /// Heads.
    pub heads: usize,
    /// Runs.
    pub runs: usize,
    /// Most rows of a run that are computed at once.
    pub rows: usize,
    /// Most tokens that a sequence can have.
    pub tokens: usize,
    /// Order of slots.
    pub tiles: Tiles,
    /// A number of elements that divides the place of every latent in the arena.
    pub alignment: usize,
}

/// Compile-time choices.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct MlaVariant {
    /// Of a head.
    pub shape: MlaShape,
    /// Order of slots.
    pub tiles: Tiles,
    /// Channels of a latent that one load takes.
    pub vector: usize,
    /// Elements of a weight row that one load takes.
    pub wide: usize,
    /// Units of a plane.
    pub plane: usize,
}

/// One of the four kernels.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum MlaStage {
    /// Latent norm, writing of cache rows.
    Append,
    /// Queries into the latent space.
    Absorb,
    /// Attention over a part of each sequence.
    Attend,
    /// Merge, value matrix, gate.
    Value,
}

/// How a [`MlaProblem`] is laid out on a target.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MlaPlan {
    /// Choices.
    pub variant: MlaVariant,
    /// Parts of a sequence.
    pub splits: usize,
    /// Rows of a run in the scratch buffers, a multiple of [`TILE`].
    pub rows: usize,
    /// Values of a query in the latent space, padded.
    pub query_width: usize,
    /// Values of a mixture, padded.
    pub mixture_width: usize,
    /// Slots times heads.
    pub queries: usize,
    problem: MlaProblem,
}

impl MlaProblem {
    /// Wide loads; as many splits as keep the device busy when every short run has one row and every long one is full.
    pub fn plan(self, target: Target) -> MlaPlan {
        let shape = self.shape;
        let vector = widest_vector(shape.latent, widest_vector(shape.rope, widest_vector(self.alignment, 4)));
        let wide = widest_vector(shape.latent, 16 / shape.element.size_bytes());
        let variant = MlaVariant { shape, tiles: self.tiles, vector, wide, plane: target.plane };
        let rows = self.rows.next_multiple_of(TILE);
        let busy_rows = if self.tiles == Tiles::Across { 1 } else { rows };
        let cubes = self.runs * (busy_rows * self.heads).div_ceil(variant.queries_per_cube());
        let useful = self.tokens.div_ceil(TOKENS * 4).max(1);
        let splits = (BUSY_CUBES / cubes.max(1)).clamp(1, MAX_SPLITS.min(useful));
        let query_width = shape.width().next_multiple_of(8);
        let mixture_width = shape.latent.next_multiple_of(8);
        let queries = self.runs * rows * self.heads;
        MlaPlan { variant, splits, rows, query_width, mixture_width, queries, problem: self }
    }
}

impl MlaPlan {
    /// The kernel of a stage.
    pub fn kernel(&self, stage: MlaStage) -> Variant {
        Variant::Mla(self.variant, stage)
    }

    /// Tiles of a run that [`Tiles::Along`] counts.
    pub fn tiles_per_run(&self) -> usize {
        self.rows / TILE
    }

    /// Cubes of a stage along both axes.
    pub fn cubes(&self, stage: MlaStage) -> [usize; 2] {
        let MlaProblem { heads, runs, .. } = self.problem;
        let tiles = match self.variant.tiles {
            Tiles::Across => runs.div_ceil(TILE) * self.rows,
            Tiles::Along => runs * self.tiles_per_run(),
        };
        match stage {
            MlaStage::Append => [self.rows, runs],
            MlaStage::Absorb | MlaStage::Value => [heads, tiles],
            MlaStage::Attend => [(self.rows * heads).div_ceil(self.variant.queries_per_cube()) * self.splits, runs],
        }
    }

    /// Elements of the scratch buffers: queries, mixtures, maximum and sum of each mixture.
    pub fn scratch(&self) -> [usize; 3] {
        let parts = self.queries * self.splits;
        [self.queries * self.query_width, parts * self.mixture_width, parts * 2]
    }
}

impl MlaVariant {
    /// Queries of a plane: what registers hold beside four latents.
    pub fn queries_per_plane(&self) -> usize {
        if self.plane > 32 { 4 } else { 2 }
    }

    /// Queries of a cube.
    pub fn queries_per_cube(&self) -> usize {
        self.queries_per_plane() * self.geometry(MlaStage::Attend).planes()
    }

    /// Geometry of a stage.
    pub fn geometry(&self, stage: MlaStage) -> Geometry {
        let covering =
            |items: usize| Geometry { units: items.next_power_of_two().clamp(self.plane, 256), plane: self.plane };
        match stage {
            MlaStage::Append => covering(self.shape.latent),
            MlaStage::Absorb => covering(self.shape.latent / self.wide),
            MlaStage::Attend | MlaStage::Value => Geometry { units: 256, plane: self.plane },
        }
    }

    pub(crate) fn name(&self, stage: MlaStage) -> String {
        let MlaShape { nope, rope, value, latent, element, gate } = self.shape;
        let geometry = self.geometry(stage);
        let tiles = if self.tiles == Tiles::Across { "across" } else { "along" };
        match stage {
            MlaStage::Append => format!("mla_append_c{latent}_r{rope}_{geometry}"),
            MlaStage::Absorb => {
                format!("mla_absorb_{tiles}_{element}_n{nope}_r{rope}_c{latent}_w{}_{geometry}", self.wide)
            }
            MlaStage::Attend => format!("mla_attend_c{latent}_r{rope}_v{}_{geometry}", self.vector),
            MlaStage::Value => {
                let gate = if gate == OutGate::Sigmoid { "gated" } else { "plain" };
                format!("mla_value_{tiles}_{gate}_{element}_n{nope}_o{value}_c{latent}_w{}_{geometry}", self.wide)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn problem(runs: usize, rows: usize, tokens: usize) -> MlaProblem {
        let element = Element::Bf16;
        let shape = MlaShape { nope: 128, rope: 64, value: 128, latent: 512, element, gate: OutGate::Sigmoid };
        MlaProblem { shape, heads: 96, runs, rows, tokens, tiles: Tiles::Across, alignment: 64 }
    }

    #[test]
    fn few_long_sequences_are_split_and_many_are_not() {
        for target in [Target::CUDA, Target::HIP] {
            assert_eq!(problem(1, 1, 1 << 18).plan(target).splits, 64);
            assert_eq!(problem(256, 1, 1 << 18).plan(target).splits, 1);
            assert_eq!(problem(1, 1, 16).plan(target).splits, 1);
            let wide = problem(1, 8, 4096).plan(target).variant;
            assert_eq!((wide.vector, wide.wide), (4, 8));
        }
    }

    #[test]
    fn every_query_has_a_cube() {
        for target in [Target::CUDA, Target::HIP] {
            for runs in [1, 7, 8, 9] {
                let plan = problem(runs, 8, 100).plan(target);
                let [x, y] = plan.cubes(MlaStage::Attend);
                assert!(x / plan.splits * plan.variant.queries_per_cube() >= 8 * 96 && y == runs);
                assert_eq!(plan.cubes(MlaStage::Value), [96, runs.div_ceil(8) * 8]);
                assert_eq!(plan.scratch()[2], 2 * runs * 8 * 96 * plan.splits);
            }
        }
    }
}
