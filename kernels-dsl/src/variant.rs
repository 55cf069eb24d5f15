//! One kernel with every compile-time choice made, and the name under which its binary is found.

use crate::Geometry;
use crate::gated_act::GatedActVariant;
use crate::gather::GatherVariant;
use crate::kda::KdaVariant;
use crate::mla::{MlaStage, MlaVariant};
use crate::norm::RmsNormVariant;

/// A kernel that can be compiled: an operation and its compile-time choices.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Variant {
    /// [`crate::gather`].
    Gather(GatherVariant),
    /// [`crate::gated_act`].
    GatedAct(GatedActVariant),
    /// [`crate::norm`].
    RmsNorm(RmsNormVariant),
    /// [`crate::kda`], short runs.
    KdaDecode(KdaVariant),
    /// [`crate::mla`].
    Mla(MlaVariant, MlaStage),
}

impl Variant {
    /// A stable, readable name: the operation, then its choices.
    pub fn name(&self) -> String {
        match self {
            Variant::Gather(v) => v.name(),
            Variant::GatedAct(v) => v.name(),
            Variant::RmsNorm(v) => v.name(),
            Variant::KdaDecode(v) => v.name("kda_decode"),
            Variant::Mla(v, stage) => v.name(*stage),
        }
    }

    /// Geometry that the kernel is compiled for.
    pub fn geometry(&self) -> Geometry {
        match self {
            Variant::Gather(v) => v.geometry,
            Variant::GatedAct(v) => v.geometry,
            Variant::RmsNorm(v) => v.geometry,
            Variant::KdaDecode(v) => v.geometry,
            Variant::Mla(v, stage) => v.geometry(*stage),
        }
    }
}

impl std::fmt::Display for Variant {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.name())
    }
}
