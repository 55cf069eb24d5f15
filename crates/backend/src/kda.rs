//! Kimi Delta Attention: one fused operation from projections to gated output (`kimi-k3.md` 3.3, steps 2 to 7).

use perilune_tensor::{DType, TensorSpec};

use crate::check::Checker;
use crate::{BackendError, DeviceTensor, Segments, Snapshots, UnitLayout};

/// Sizes of a KDA layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KdaDims {
    /// Heads.
    pub num_heads: usize,
    /// Key and value width of a head, `D`.
    pub head_dim: usize,
    /// Taps of the short convolution, the current token included.
    pub conv_kernel: usize,
}

impl KdaDims {
    /// `P = num_heads * head_dim`.
    pub fn width(&self) -> usize {
        self.num_heads * self.head_dim
    }

    /// Elements of the convolution tail of one slot: `(conv_kernel - 1) * 3 P`.
    pub fn conv_state_len(&self) -> usize {
        (self.conv_kernel - 1) * 3 * self.width()
    }

    /// Elements of the recurrent state of one slot: `num_heads * D * D`.
    pub fn state_len(&self) -> usize {
        self.num_heads * self.head_dim * self.head_dim
    }
}

/// How the log decay follows from its pre-activation `a = z + dt_bias` and `A = exp(a_log)`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum KdaGate {
    /// `g = lower_bound * sigmoid(A a)`, `lower_bound < 0` (K3).
    Bounded {
        /// The most negative log decay per token.
        lower_bound: f32,
    },
    /// `g = -A softplus(a)` (Kimi-Linear).
    Softplus,
}

/// Small parameters of a KDA layer, all `F32`.
#[derive(Debug)]
pub struct KdaParams<T> {
    /// Sizes.
    pub dims: KdaDims,
    /// Kind of gate.
    pub gate: KdaGate,
    /// `[P, conv_kernel]` taps of q, k and v; the last tap multiplies the current token.
    pub conv: [T; 3],
    /// `[num_heads]`.
    pub a_log: T,
    /// `[P]`.
    pub dt_bias: T,
    /// `[D]`, shared by the heads.
    pub out_norm: T,
    /// Epsilon of the output norm.
    pub eps: f32,
}

/// Convolution, SiLU, L2 norms, gates, recurrence and gated RMSNorm over the runs of a step.
///
/// Used by both [`crate::Backend::kda_decode`] (all runs short) and [`crate::Backend::kda_prefill`].
#[derive(Debug)]
pub struct Kda<'a, T> {
    /// Parameters of the layer.
    pub params: &'a KdaParams<T>,
    /// Runs of rows and their slots.
    pub segments: Segments<'a, T>,
    /// `[N, P]`: q projection before the convolution.
    pub q: &'a T,
    /// `[N, P]`: k projection before the convolution.
    pub k: &'a T,
    /// `[N, P]`: v projection before the convolution.
    pub v: &'a T,
    /// `[N, P]`: decay pre-activation `z`, without `dt_bias`.
    pub gate: &'a T,
    /// `[N, num_heads]`: logits of the learning rate β.
    pub beta: &'a T,
    /// `[N, P]`: output gate γ before the sigmoid.
    pub out_gate: &'a T,
    /// `F32 [n]`: where the slots lie. Slots of the runs are read and written, those of snapshots written.
    pub arena: &'a mut T,
    /// Per slot `[3, conv_kernel - 1, P]`: last pre-convolution rows of q, k and v, oldest first.
    pub conv_at: UnitLayout,
    /// Per slot `[num_heads, D, D]`: recurrent state, key dimension first.
    pub state_at: UnitLayout,
    /// Copies of states to take on the way.
    pub snapshots: Option<Snapshots<'a, T>>,
    /// `[N, P]`: gated output, before the output projection. Only rows of the runs are written.
    pub out: &'a mut T,
}

impl<T: DeviceTensor> Kda<'_, T> {
    /// Checks every shape; returns the number of slots.
    ///
    /// # Errors
    /// `Mismatch`.
    pub fn dims(&self) -> Result<usize, BackendError> {
        let c = Checker { op: "kda" };
        let d = self.params.dims;
        let (p, heads) = (d.width(), d.num_heads);
        for taps in &self.params.conv {
            c.exact("params.conv", taps, TensorSpec::f32([p, d.conv_kernel]))?;
        }
        c.exact("params.a_log", &self.params.a_log, TensorSpec::f32([heads]))?;
        c.exact("params.dt_bias", &self.params.dt_bias, TensorSpec::f32([p]))?;
        c.exact("params.out_norm", &self.params.out_norm, TensorSpec::f32([d.head_dim]))?;
        let rows = self.q.spec().shape.rows();
        for (name, t) in [("k", self.k), ("v", self.v), ("gate", self.gate), ("out_gate", self.out_gate)] {
            c.rows(name, t, (DType::F32, rows, p))?;
        }
        c.rows("q", self.q, (DType::F32, rows, p))?;
        c.rows("beta", self.beta, (DType::F32, rows, heads))?;
        c.rows("out", self.out, (DType::F32, rows, p))?;
        self.state_at.check(c, ("state_at", &*self.arena), d.state_len())?;
        self.conv_at.check(c, ("conv_at", &*self.arena), d.conv_state_len())?;
        c.equal("conv_at.count", self.conv_at.count, self.state_at.count)?;
        self.segments.check(c)?;
        self.snapshots.as_ref().map_or(Ok(()), |snapshots| snapshots.check(c))?;
        Ok(self.state_at.count)
    }
}

impl<T: DeviceTensor> Segments<'_, T> {
    /// Checks that every index tensor has `count` entries.
    pub(crate) fn check(&self, c: Checker) -> Result<(), BackendError> {
        for (name, t) in [
            ("segments.start", self.start),
            ("segments.len", self.len),
            ("segments.position", self.position),
            ("segments.slot", self.slot),
        ] {
            c.at_least(name, t, (DType::U32, self.count))?;
        }
        Ok(())
    }
}
