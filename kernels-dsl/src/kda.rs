//! Kimi Delta Attention: from projections to gated outputs in one kernel, one cube per head and sequence.
//!
//! A head's state is `[D, D]`, key channels first; its columns do not depend on each other. A unit keeps `vector` columns
//! of every `row_lanes`-th row in registers while all tokens of the run go through them; sums over key channels are
//! butterflies within a plane, in the same order whatever the run's length, so that equal tokens give equal bits.

#[cfg(feature = "compile")]
mod decode;
#[cfg(feature = "compile")]
mod prefill;
#[cfg(feature = "compile")]
mod prepare;
#[cfg(feature = "compile")]
mod replay;
#[cfg(feature = "compile")]
mod state;

use crate::element::widest_vector;
use crate::{Geometry, Target, Variant};

/// Most tokens of a run of [`KdaProblem`].
pub const MAX_SHORT_RUN: usize = 8;

/// How the log decay follows from its pre-activation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum KdaGateKind {
    /// `lower_bound σ(A a)`.
    Bounded,
    /// `-A softplus(a)`.
    Softplus,
}

/// Sizes of one call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KdaProblem {
    /// Runs of at most [`MAX_SHORT_RUN`] tokens.
    pub sequences: usize,
    /// Heads.
    pub heads: usize,
    /// Key and value width of a head.
    pub head_dim: usize,
    /// Taps of the convolution.
    pub taps: usize,
    /// Kind of gate.
    pub gate: KdaGateKind,
    /// A number of elements that divides the place of every state in the arena.
    pub alignment: usize,
}

/// Compile-time choices.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct KdaVariant {
    /// Key and value width of a head.
    pub head_dim: usize,
    /// Taps of the convolution.
    pub taps: usize,
    /// Kind of gate.
    pub gate: KdaGateKind,
    /// Columns of a unit, the width of a load: 4, 2 or 1.
    pub vector: usize,
    /// Units of a plane that share the rows of a column.
    pub row_lanes: usize,
    /// Cube geometry.
    pub geometry: Geometry,
}

/// How a [`KdaProblem`] is laid out on a target: a cube per head and sequence.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KdaPlan {
    /// Choices.
    pub variant: KdaVariant,
    /// Cubes along both axes: heads, sequences.
    pub cubes: [usize; 2],
}

impl KdaProblem {
    /// At most 16 values of 4 columns per unit in registers, the widest loads that fit, no more units than columns need.
    pub fn plan(self, target: Target) -> KdaPlan {
        let vector = widest_vector(self.head_dim, widest_vector(self.alignment, 4));
        let row_lanes = (self.head_dim.div_ceil(16)).next_power_of_two().clamp(1, 16);
        let units = (self.head_dim / vector * row_lanes).next_power_of_two().clamp(target.plane, 256);
        let geometry = Geometry { units, plane: target.plane };
        let KdaProblem { head_dim, taps, gate, .. } = self;
        let variant = KdaVariant { head_dim, taps, gate, vector, row_lanes, geometry };
        KdaPlan { variant, cubes: [self.heads, self.sequences] }
    }
}

impl KdaPlan {
    /// One decode step, or several whose tokens are known.
    ///
    /// Buffers: `q k v gate out_gate [N, P]`, `beta [N, heads]`, taps of q, k and v `[P, taps]`, `a_log [heads]`,
    /// `dt_bias [P]`, `out_norm [D]`, `start len slot [S]`, run, rows and slot of snapshots, arena in vectors, arena in
    /// elements, `out [N, P]`. Scalars: heads, offset and stride of states in vectors, offset and stride of tails in
    /// elements, number of snapshots, `eps`, lower bound.
    pub fn decode(&self) -> Variant {
        Variant::KdaDecode(self.variant)
    }

    /// Short runs without an effect on the state.
    ///
    /// Buffers as [`KdaPlan::decode`] up to `slot`, then arena in vectors, arena in elements, replay inputs, `out`. Scalars
    /// as there, without the number of snapshots.
    pub fn verify(&self) -> Variant {
        Variant::KdaVerify(self.variant)
    }

    /// Replay of short runs.
    ///
    /// Buffers: replay inputs, `start len slot [S]`, run, rows and slot of snapshots, arena in vectors, arena in elements.
    /// Scalars as [`KdaPlan::decode`] up to the number of snapshots.
    pub fn fold(&self) -> Variant {
        // The kind of gate plays no part.
        Variant::KdaFold(KdaVariant { gate: KdaGateKind::Bounded, ..self.variant })
    }

    /// Runs of any length, chunkwise; buffers and scalars as [`KdaPlan::decode`].
    pub fn prefill(&self) -> Variant {
        Variant::KdaPrefill(self.variant)
    }
}

impl KdaVariant {
    /// Rows of a unit.
    pub fn rows(&self) -> usize {
        self.head_dim.div_ceil(self.row_lanes)
    }

    /// Values of a row of key channels in shared memory: padded with zeros, so that every unit has all its rows.
    pub fn padded(&self) -> usize {
        self.rows() * self.row_lanes
    }

    /// Tokens that the chunkwise form takes at once: what shared memory holds.
    pub fn chunk(&self) -> usize {
        if self.padded() <= 128 { 16 } else { 8 }
    }

    /// Columns that the cube has in registers at once.
    pub fn block(&self) -> usize {
        self.geometry.units / self.row_lanes * self.vector
    }

    pub(crate) fn name(&self, kernel: &str) -> String {
        let KdaVariant { head_dim, taps, vector, row_lanes, geometry, .. } = self;
        let gate = match self.gate {
            KdaGateKind::Bounded => "bounded",
            KdaGateKind::Softplus => "softplus",
        };
        format!("{kernel}_{gate}_d{head_dim}_t{taps}_v{vector}_r{row_lanes}_{geometry}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan(head_dim: usize, alignment: usize, target: Target) -> KdaVariant {
        let gate = KdaGateKind::Bounded;
        KdaProblem { sequences: 1, heads: 2, head_dim, taps: 4, gate, alignment }.plan(target).variant
    }

    #[test]
    fn every_width_is_covered_within_registers() {
        for target in [Target::CUDA, Target::HIP] {
            for head_dim in 1..=256 {
                for alignment in [1, 2, 4, 5, 64] {
                    let v = plan(head_dim, alignment, target);
                    assert!(head_dim % v.vector == 0 && alignment % v.vector == 0, "{v:?}");
                    assert!(v.padded() >= head_dim && v.rows() * v.vector <= 64, "{v:?}");
                    assert!(v.row_lanes.is_power_of_two() && v.row_lanes <= target.plane, "{v:?}");
                    assert!(v.geometry.units.is_multiple_of(target.plane) && v.geometry.units <= 256, "{v:?}");
                }
            }
        }
    }

    #[test]
    fn the_models_head_is_one_block_of_wide_loads() {
        for target in [Target::CUDA, Target::HIP] {
            let v = plan(128, 64, target);
            assert_eq!((v.vector, v.row_lanes, v.rows(), v.geometry.units, v.block()), (4, 8, 16, 256, 128));
        }
    }
}
