//! Operations on each token row alone.

use perilune_tensor::{DType, TensorSpec};

use crate::check::Checker;
use crate::{BackendError, DeviceTensor, Weight};

/// What happens to the values already in an output.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Write {
    /// They are overwritten.
    Replace,
    /// The result is added to them.
    Add,
}

/// `out[i] = table[ids[i]]`, widened to `F32`.
#[derive(Debug)]
pub struct Embed<'a, T> {
    /// Rows to look up.
    pub rows: usize,
    /// `[V, H]`, not MXFP4.
    pub table: &'a Weight<T>,
    /// `U32 [>= rows]`.
    pub ids: &'a T,
    /// `F32 [>= rows, H]`.
    pub out: &'a mut T,
}

impl<T: DeviceTensor> Embed<'_, T> {
    /// Checks every shape; returns `(V, H)`.
    ///
    /// # Errors
    /// `Mismatch`.
    pub fn dims(&self) -> Result<(usize, usize), BackendError> {
        let c = Checker { op: "embed" };
        self.table.check("embed")?;
        let (v, h) = (self.table.out_features(), self.table.in_features());
        c.at_least("ids", self.ids, (DType::U32, self.rows))?;
        c.rows("out", self.out, (DType::F32, self.rows, h))?;
        Ok((v, h))
    }
}

/// `out[i] = x[index[i]]`.
#[derive(Debug)]
pub struct SelectRows<'a, T> {
    /// Rows to copy.
    pub rows: usize,
    /// `F32 [N, W]`.
    pub x: &'a T,
    /// `U32 [>= rows]`: rows of `x`.
    pub index: &'a T,
    /// `F32 [>= rows, W]`.
    pub out: &'a mut T,
}

impl<T: DeviceTensor> SelectRows<'_, T> {
    /// Checks every shape; returns the rows of `x` and their width.
    ///
    /// # Errors
    /// `Mismatch`.
    pub fn dims(&self) -> Result<(usize, usize), BackendError> {
        let c = Checker { op: "select_rows" };
        let (n, w) = (self.x.spec().shape.rows(), self.x.spec().shape.width());
        c.rows("x", self.x, (DType::F32, n, w))?;
        c.at_least("index", self.index, (DType::U32, self.rows))?;
        c.rows("out", self.out, (DType::F32, self.rows, w))?;
        Ok((n, w))
    }
}

/// One output of a [`Linear`].
#[derive(Debug)]
pub struct LinearPart<'a, T> {
    /// `[out, in]`.
    pub weight: &'a Weight<T>,
    /// `F32 [>= rows, out]`.
    pub out: &'a mut T,
    /// Overwrite, or add (for example onto the residual).
    pub write: Write,
}

impl<'a, T> LinearPart<'a, T> {
    /// A part that overwrites its output.
    pub fn replace(weight: &'a Weight<T>, out: &'a mut T) -> Self {
        LinearPart { weight, out, write: Write::Replace }
    }
}

/// `y = x Wᵀ` for several weights of one input, in one pass. Accumulates in `F32`.
///
/// The result of a row must not depend on how many rows there are or where it stands (`docs/adr`: batch invariance).
#[derive(Debug)]
pub struct Linear<'a, 'p, T> {
    /// Rows of `x` that count.
    pub rows: usize,
    /// `F32 [>= rows, in]`.
    pub x: &'a T,
    /// The weights and where their products go.
    pub parts: &'p mut [LinearPart<'a, T>],
}

/// Sizes of a [`Linear`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LinearDims {
    /// Input features.
    pub in_features: usize,
    /// Sum of the parts' output features.
    pub total_out: usize,
}

impl<T: DeviceTensor> Linear<'_, '_, T> {
    /// Checks every shape.
    ///
    /// # Errors
    /// `Mismatch`.
    pub fn dims(&self) -> Result<LinearDims, BackendError> {
        let c = Checker { op: "linear" };
        let in_features = self.x.spec().shape.width();
        c.rows("x", self.x, (DType::F32, self.rows, in_features))?;
        let mut total_out = 0;
        for part in self.parts.iter() {
            part.weight.check("linear")?;
            c.equal("weight.in", part.weight.in_features(), in_features)?;
            c.rows("out", part.out, (DType::F32, self.rows, part.weight.out_features()))?;
            total_out += part.weight.out_features();
        }
        Ok(LinearDims { in_features, total_out })
    }
}

/// `out = x (mean(x²) + eps)^(-1/2) w` per row.
#[derive(Debug)]
pub struct RmsNorm<'a, T> {
    /// Rows that count.
    pub rows: usize,
    /// `F32 [>= rows, W]`.
    pub x: &'a T,
    /// `F32 [W]`.
    pub weight: &'a T,
    /// Added to the mean square.
    pub eps: f32,
    /// `F32 [>= rows, W]`.
    pub out: &'a mut T,
}

impl<T: DeviceTensor> RmsNorm<'_, T> {
    /// Checks every shape; returns the row width.
    ///
    /// # Errors
    /// `Mismatch`.
    pub fn dims(&self) -> Result<usize, BackendError> {
        let c = Checker { op: "rms_norm" };
        let w = self.weight.spec().shape.numel();
        c.exact("weight", self.weight, TensorSpec::f32([w]))?;
        c.rows("x", self.x, (DType::F32, self.rows, w))?;
        c.rows("out", self.out, (DType::F32, self.rows, w))?;
        Ok(w)
    }
}

/// The gated activation of a feed-forward network (`kimi-k3.md` 3.5).
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Activation {
    /// `g σ(g) u`.
    Silu,
    /// `beta tanh(g / beta) σ(g) · linear_beta tanh(u / linear_beta)`; without `linear_beta` the second factor is `u`.
    Situ {
        /// Soft cap of the gate.
        beta: f32,
        /// Soft cap of the linear part.
        linear_beta: Option<f32>,
    },
}

/// `out = act(gate, up)` elementwise.
#[derive(Debug)]
pub struct GatedAct<'a, T> {
    /// Rows that count.
    pub rows: usize,
    /// Which activation.
    pub act: Activation,
    /// `F32 [>= rows, W]`.
    pub gate: &'a T,
    /// `F32 [>= rows, W]`.
    pub up: &'a T,
    /// `F32 [>= rows, W]`.
    pub out: &'a mut T,
}

impl<T: DeviceTensor> GatedAct<'_, T> {
    /// Checks every shape; returns the row width.
    ///
    /// # Errors
    /// `Mismatch`.
    pub fn dims(&self) -> Result<usize, BackendError> {
        let c = Checker { op: "gated_act" };
        let w = self.gate.spec().shape.width();
        c.rows("gate", self.gate, (DType::F32, self.rows, w))?;
        c.rows("up", self.up, (DType::F32, self.rows, w))?;
        c.rows("out", self.out, (DType::F32, self.rows, w))?;
        Ok(w)
    }
}

/// Attention residual: a softmax-weighted mixture of earlier block sums and the running prefix (`kimi-k3.md` 3.2).
///
/// `s_i = (mean(v_i²) + eps)^(-1/2) Σ_d v_id score_d`, `out = Σ_i softmax(s)_i v_i` over the raw rows.
#[derive(Debug)]
pub struct AttnResidual<'a, T> {
    /// Rows that count.
    pub rows: usize,
    /// Bank rows, oldest first, then the running prefix: each `F32 [>= rows, H]`. At least one.
    pub sources: &'a [&'a T],
    /// `F32 [H]`: elementwise product of the norm weight and the projection.
    pub score: &'a T,
    /// Added to the mean square.
    pub eps: f32,
    /// `F32 [>= rows, H]`.
    pub out: &'a mut T,
}

impl<T: DeviceTensor> AttnResidual<'_, T> {
    /// Checks every shape; returns the row width.
    ///
    /// # Errors
    /// `Mismatch`.
    pub fn dims(&self) -> Result<usize, BackendError> {
        let c = Checker { op: "attn_residual" };
        let h = self.score.spec().shape.numel();
        c.exact("score", self.score, TensorSpec::f32([h]))?;
        if self.sources.is_empty() {
            return Err(c.fail("sources", "empty", "at least one row tensor".into()));
        }
        for source in self.sources {
            c.rows("sources", *source, (DType::F32, self.rows, h))?;
        }
        c.rows("out", self.out, (DType::F32, self.rows, h))?;
        Ok(h)
    }
}
