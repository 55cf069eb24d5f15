//! Routing and routed experts (`kimi-k3.md` 3.6).

use perilune_tensor::{DType, TensorSpec};

use crate::check::Checker;
use crate::{Activation, BackendError, DeviceTensor, Weight, Write};

/// Chooses experts: `s = σ(logits)`, choice by `s + bias` (after the group step), weights from the unbiased `s`.
///
/// Ties go to the lower expert id. Chosen experts are written in falling order of their choice score.
#[derive(Debug)]
pub struct MoeRoute<'a, T> {
    /// Rows that count.
    pub rows: usize,
    /// `F32 [>= rows, E]`: router logits.
    pub logits: &'a T,
    /// `F32 [E]`: correction bias, for the choice only.
    pub bias: &'a T,
    /// Number of expert groups; 0 or 1 turns the group step off (then `topk_groups` is 1).
    pub num_groups: usize,
    /// Groups that stay eligible (those with the largest sum of their two best choice scores).
    pub topk_groups: usize,
    /// Divide the weights by `Σ + 1e-20` where more than one expert is chosen.
    pub renormalize: Renormalize,
    /// Factor on the weights.
    pub scale: f32,
    /// `U32 [>= rows, K]`.
    pub ids: &'a mut T,
    /// `F32 [>= rows, K]`.
    pub weights: &'a mut T,
}

/// Whether routing weights are normalised to sum 1 before scaling.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Renormalize {
    /// `w / (Σ w + 1e-20)`.
    Sum,
    /// As they are.
    Off,
}

/// Sizes of a [`MoeRoute`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MoeRouteDims {
    /// Experts `E`.
    pub num_experts: usize,
    /// Experts per token `K`.
    pub top_k: usize,
}

impl<T: DeviceTensor> MoeRoute<'_, T> {
    /// Checks every shape.
    ///
    /// # Errors
    /// `Mismatch`.
    pub fn dims(&self) -> Result<MoeRouteDims, BackendError> {
        let c = Checker { op: "moe_route" };
        let num_experts = self.bias.spec().shape.numel();
        let top_k = self.ids.spec().shape.width();
        c.exact("bias", self.bias, TensorSpec::f32([num_experts]))?;
        c.rows("logits", self.logits, (DType::F32, self.rows, num_experts))?;
        c.rows("ids", self.ids, (DType::U32, self.rows, top_k))?;
        c.rows("weights", self.weights, (DType::F32, self.rows, top_k))?;
        let groups = self.num_groups.max(1);
        let eligible = self.topk_groups.min(groups) * (num_experts / groups);
        if top_k == 0 || top_k > eligible || !num_experts.is_multiple_of(groups) {
            return Err(c.fail("ids", top_k, format!("1 to {eligible} of {num_experts} experts")));
        }
        Ok(MoeRouteDims { num_experts, top_k })
    }
}

/// The three matrices of one routed expert.
#[derive(Debug)]
pub struct Expert<T> {
    /// `[I, L]` gate projection (`w1`).
    pub gate: Weight<T>,
    /// `[I, L]` up projection (`w3`).
    pub up: Weight<T>,
    /// `[L, I]` down projection (`w2`).
    pub down: Weight<T>,
}

/// `out = Σ_j weights_j · down_e(act(gate_e x, up_e x))` over the chosen experts `e = ids_j`, in the order of `j`.
#[derive(Debug)]
pub struct MoeExperts<'a, T> {
    /// Rows that count.
    pub rows: usize,
    /// `F32 [>= rows, L]`.
    pub x: &'a T,
    /// `U32 [>= rows, K]`.
    pub ids: &'a T,
    /// `F32 [>= rows, K]`.
    pub weights: &'a T,
    /// All experts of the layer, by id; equal shapes.
    pub experts: &'a [Expert<T>],
    /// Activation.
    pub act: Activation,
    /// `F32 [>= rows, L]`.
    pub out: &'a mut T,
    /// Overwrite or add.
    pub write: Write,
}

/// Sizes of a [`MoeExperts`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MoeExpertsDims {
    /// Width `L` the experts work on.
    pub width: usize,
    /// Inner width `I`.
    pub inner: usize,
    /// Experts per token `K`.
    pub top_k: usize,
}

impl<T: DeviceTensor> MoeExperts<'_, T> {
    /// Checks every shape.
    ///
    /// # Errors
    /// `Mismatch`.
    pub fn dims(&self) -> Result<MoeExpertsDims, BackendError> {
        let c = Checker { op: "moe_experts" };
        let width = self.x.spec().shape.width();
        let top_k = self.ids.spec().shape.width();
        let Some(first) = self.experts.first() else {
            return Err(c.fail("experts", "empty", "at least one expert".into()));
        };
        let inner = first.gate.out_features();
        for e in self.experts {
            for (w, out, inp) in [(&e.gate, inner, width), (&e.up, inner, width), (&e.down, width, inner)] {
                w.check("moe_experts")?;
                c.equal("experts.out", w.out_features(), out)?;
                c.equal("experts.in", w.in_features(), inp)?;
            }
        }
        c.rows("x", self.x, (DType::F32, self.rows, width))?;
        c.rows("ids", self.ids, (DType::U32, self.rows, top_k))?;
        c.rows("weights", self.weights, (DType::F32, self.rows, top_k))?;
        c.rows("out", self.out, (DType::F32, self.rows, width))?;
        Ok(MoeExpertsDims { width, inner, top_k })
    }
}
