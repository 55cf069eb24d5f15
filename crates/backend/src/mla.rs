//! Multi-head latent attention without positions, absorbed form over paged latents (`kimi-k3.md` 3.4).

use perilune_tensor::DType;

use crate::check::Checker;
use crate::{BackendError, BlockTables, DeviceTensor, Segments, UnitLayout, Weight};

/// Sizes of an MLA layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MlaDims {
    /// Heads `A`.
    pub num_heads: usize,
    /// Key width of a head that comes from the latent, `n`.
    pub qk_nope_head_dim: usize,
    /// Key width shared by all heads, `r`. No rotation is applied.
    pub qk_rope_head_dim: usize,
    /// Value width of a head, `v`.
    pub v_head_dim: usize,
    /// Latent width `C`.
    pub kv_lora_rank: usize,
}

impl MlaDims {
    /// Query width of a head, `n + r`.
    pub fn qk_head_dim(&self) -> usize {
        self.qk_nope_head_dim + self.qk_rope_head_dim
    }

    /// Width of a cache row, `C + r`.
    pub fn latent_width(&self) -> usize {
        self.kv_lora_rank + self.qk_rope_head_dim
    }

    /// Score scale, `(n + r)^(-1/2)`.
    pub fn scale(&self) -> f32 {
        (self.qk_head_dim() as f32).powf(-0.5)
    }
}

/// Parameters of an MLA layer that live inside the operation.
#[derive(Debug)]
pub struct MlaParams<T> {
    /// Sizes.
    pub dims: MlaDims,
    /// `F32 [C]`: weight of the latent norm.
    pub kv_norm: T,
    /// Epsilon of the latent norm.
    pub kv_eps: f32,
    /// `[A (n + v), C]`: per head `n` key rows, then `v` value rows.
    pub kv_b: Weight<T>,
}

impl<T: DeviceTensor> MlaParams<T> {
    pub(crate) fn check(&self, c: Checker) -> Result<(), BackendError> {
        let d = self.dims;
        c.rows("params.kv_norm", &self.kv_norm, (DType::F32, 1, d.kv_lora_rank))?;
        self.kv_b.check(c.op)?;
        c.equal("params.kv_b.in", self.kv_b.in_features(), d.kv_lora_rank)?;
        let kv_b_rows = d.num_heads * (d.qk_nope_head_dim + d.v_head_dim);
        c.equal("params.kv_b.out", self.kv_b.out_features(), kv_b_rows)
    }
}

/// Latent norm, append to the cache, causal attention and output gate over the runs of a step.
///
/// Used by both [`crate::Backend::mla_decode`] (all runs short) and [`crate::Backend::mla_prefill`].
#[derive(Debug)]
pub struct Mla<'a, T> {
    /// Parameters of the layer.
    pub params: &'a MlaParams<T>,
    /// Runs of rows; `slot` is not read.
    pub segments: Segments<'a, T>,
    /// Blocks of each run: they must cover position `position + len - 1`.
    pub tables: BlockTables<'a, T>,
    /// `[N, A (n + r)]`: queries.
    pub q: &'a T,
    /// `[N, C + r]`: latent before its norm, then the shared key part.
    pub kv_a: &'a T,
    /// `[N, A v]`: output gate before the sigmoid, or `None`.
    pub gate: Option<&'a T>,
    /// `F32 [n]`: where the blocks lie. Rows of the runs are written, earlier rows read.
    pub arena: &'a mut T,
    /// Per block `[block_size, C + r]`: latents.
    pub latent_at: UnitLayout,
    /// Tokens per block, at least 1.
    pub block_size: usize,
    /// `[N, A v]`: gated attention output, before the output projection. Only rows of the runs are written.
    pub out: &'a mut T,
}

impl<T: DeviceTensor> Mla<'_, T> {
    /// Checks every shape; returns the number of blocks.
    ///
    /// # Errors
    /// `Mismatch`.
    pub fn dims(&self) -> Result<usize, BackendError> {
        let c = Checker { op: "mla" };
        let d = self.params.dims;
        let rows = self.q.spec().shape.rows();
        c.rows("q", self.q, (DType::F32, rows, d.num_heads * d.qk_head_dim()))?;
        c.rows("kv_a", self.kv_a, (DType::F32, rows, d.latent_width()))?;
        if let Some(gate) = self.gate {
            c.rows("gate", gate, (DType::F32, rows, d.num_heads * d.v_head_dim))?;
        }
        c.rows("out", self.out, (DType::F32, rows, d.num_heads * d.v_head_dim))?;
        self.params.check(c)?;
        if self.block_size == 0 {
            return Err(c.fail("block_size", 0, "at least 1".into()));
        }
        self.latent_at.check(c, ("latent_at", &*self.arena), self.block_size * d.latent_width())?;
        self.segments.check(c)?;
        c.at_least("tables.offset", self.tables.offset, (DType::U32, self.segments.count + 1))?;
        c.at_least("tables.blocks", self.tables.blocks, (DType::U32, 0))?;
        Ok(self.latent_at.count)
    }
}
