//! One kernel with every compile-time choice made, and the name under which its binary is found.

use crate::Geometry;
use crate::attn_residual::AttnResidualVariant;
use crate::gated_act::GatedActVariant;
use crate::gather::GatherVariant;
use crate::kda::KdaVariant;
use crate::linear::LinearVariant;
use crate::mla::{MlaStage, MlaVariant};
use crate::moe_experts::{MoeProductVariant, MoeStepVariant};
use crate::moe_route::MoeRouteVariant;
use crate::norm::RmsNormVariant;

/// A kernel that can be compiled: an operation and its compile-time choices.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Variant {
    /// [`crate::attn_residual`].
    AttnResidual(AttnResidualVariant),
    /// [`crate::gather`].
    Gather(GatherVariant),
    /// [`crate::gated_act`].
    GatedAct(GatedActVariant),
    /// [`crate::linear`].
    Linear(LinearVariant),
    /// [`crate::moe_experts`]: gate and up, or down.
    MoeProduct(MoeProductVariant),
    /// [`crate::moe_experts`]: what goes before and after the products.
    MoeStep(MoeStepVariant),
    /// [`crate::moe_route`].
    MoeRoute(MoeRouteVariant),
    /// [`crate::norm`].
    RmsNorm(RmsNormVariant),
    /// [`crate::kda`], short runs.
    KdaDecode(KdaVariant),
    /// [`crate::kda`], runs of any length.
    KdaPrefill(KdaVariant),
    /// [`crate::kda`], short runs without an effect on the state.
    KdaVerify(KdaVariant),
    /// [`crate::kda`], replay of short runs.
    KdaFold(KdaVariant),
    /// [`crate::mla`].
    Mla(MlaVariant, MlaStage),
}

impl Variant {
    /// A stable, readable name: the operation, then its choices.
    pub fn name(&self) -> String {
        match self {
            Variant::AttnResidual(v) => v.name(),
            Variant::Gather(v) => v.name(),
            Variant::GatedAct(v) => v.name(),
            Variant::Linear(v) => v.name(),
            Variant::MoeProduct(v) => v.name(),
            Variant::MoeStep(v) => v.name(),
            Variant::MoeRoute(v) => v.name(),
            Variant::RmsNorm(v) => v.name(),
            Variant::KdaDecode(v) => v.name("kda_decode"),
            Variant::KdaPrefill(v) => v.name("kda_prefill"),
            Variant::KdaVerify(v) => v.name("kda_verify"),
            Variant::KdaFold(v) => v.name("kda_fold"),
            Variant::Mla(v, stage) => v.name(*stage),
        }
    }

    /// Geometry that the kernel is compiled for.
    pub fn geometry(&self) -> Geometry {
        match self {
            Variant::AttnResidual(v) => v.geometry,
            Variant::Gather(v) => v.geometry,
            Variant::GatedAct(v) => v.geometry,
            Variant::Linear(v) => v.geometry,
            Variant::MoeProduct(v) => v.geometry,
            Variant::MoeStep(v) => v.geometry,
            Variant::MoeRoute(v) => v.geometry,
            Variant::RmsNorm(v) => v.geometry,
            Variant::KdaDecode(v) | Variant::KdaPrefill(v) | Variant::KdaVerify(v) | Variant::KdaFold(v) => v.geometry,
            Variant::Mla(v, stage) => v.geometry(*stage),
        }
    }
}

impl std::fmt::Display for Variant {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.name())
    }
}
