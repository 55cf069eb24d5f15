//! Attention of a draft model (`kimi-k3.md` 6.1 to 6.3): tokens leave rotated rows in blocks, and short runs of draft
//! queries read them together with their own rows.
//!
//! Two kinds of heads, one way of life. A row is what a token leaves behind: of grouped heads `[k | v]`, `2 G D` wide;
//! of latent heads `[c | k^r]`, `C + r` wide. Rows of a draft's own run are never stored.
//!
//! Letters: `A` query heads, `G` key heads, `D` head width, `R` rotated width, `W` row width.

use perilune_tensor::DType;

use crate::check::Checker;
use crate::{BackendError, BlockTables, DeviceTensor, MlaParams, Segments, UnitLayout};

/// Which elements of a head are rotated together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pairing {
    /// Element `i` with element `i + R/2`.
    Halves,
    /// Element `2i` with element `2i + 1`.
    Interleaved,
}

/// Which rows of its own run a draft query sees; it always sees every stored row before the run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BlockMask {
    /// All.
    Bidirectional,
    /// Itself and those before.
    Causal,
}

/// Cosines and sines of the positions of a step's rows: once per step, for every layer.
///
/// `out[row] = amplitude [cos(p f_0) .. cos(p f_(R/2 - 1)) | sin(p f_0) ..]`, `p` the row's position.
#[derive(Debug)]
pub struct RotaryTable<'a, T> {
    /// Runs of rows; `slot` is not read.
    pub segments: Segments<'a, T>,
    /// `F32 [R/2]`: radians per position.
    pub frequencies: &'a T,
    /// Factor on cosines and sines (YaRN), 1 without.
    pub amplitude: f32,
    /// `F32 [N, R]`. Only rows of the runs are written.
    pub out: &'a mut T,
}

impl<T: DeviceTensor> RotaryTable<'_, T> {
    /// Checks every shape; returns `(N, R)`.
    ///
    /// # Errors
    /// `Mismatch`.
    pub fn dims(&self) -> Result<(usize, usize), BackendError> {
        let c = Checker { op: "rotary_table" };
        let half = self.frequencies.spec().shape.numel();
        c.at_least("frequencies", self.frequencies, (DType::F32, half))?;
        let rows = self.out.spec().shape.rows();
        c.rows("out", &*self.out, (DType::F32, rows, 2 * half))?;
        self.segments.check(c)?;
        Ok((rows, 2 * half))
    }
}

/// Query heads that share key and value heads in groups, with a norm on every query and key before rotation.
#[derive(Debug)]
pub struct GroupedHeads<T> {
    /// Query heads `A`.
    pub num_heads: usize,
    /// Key and value heads `G`, a divisor of `A`.
    pub num_kv_heads: usize,
    /// Width `D` of a head, all of it rotated: even.
    pub head_dim: usize,
    /// `F32 [D]`: weight of the query norm.
    pub q_norm: T,
    /// `F32 [D]`: weight of the key norm.
    pub k_norm: T,
    /// Epsilon of both norms.
    pub eps: f32,
}

/// The heads of a draft layer.
#[derive(Debug)]
pub enum DraftHeads<T> {
    /// Keys and values per group of query heads.
    Grouped(GroupedHeads<T>),
    /// Keys and values from one latent; its shared key part is rotated (`R = r`), its norm has `kv_eps`.
    Latent(MlaParams<T>),
}

/// Attention parameters of a draft layer.
#[derive(Debug)]
pub struct DraftAttention<T> {
    /// Sizes and weights.
    pub heads: DraftHeads<T>,
    /// Rotation.
    pub pairing: Pairing,
    /// Factor on scores.
    pub scale: f32,
}

impl<T: DeviceTensor> DraftAttention<T> {
    /// Width `W` of a row: `2 G D`, or `C + r`.
    pub fn row_width(&self) -> usize {
        match &self.heads {
            DraftHeads::Grouped(h) => 2 * h.num_kv_heads * h.head_dim,
            DraftHeads::Latent(mla) => mla.dims.latent_width(),
        }
    }

    /// Width of the queries of a row: `A D`, or `A (n + r)`.
    pub fn query_width(&self) -> usize {
        match &self.heads {
            DraftHeads::Grouped(h) => h.num_heads * h.head_dim,
            DraftHeads::Latent(mla) => mla.dims.num_heads * mla.dims.qk_head_dim(),
        }
    }

    /// Width of the output of a row: `A D`, or `A v`.
    pub fn out_width(&self) -> usize {
        match &self.heads {
            DraftHeads::Grouped(h) => h.num_heads * h.head_dim,
            DraftHeads::Latent(mla) => mla.dims.num_heads * mla.dims.v_head_dim,
        }
    }

    /// Rotated width `R` of a head.
    pub fn rotary_width(&self) -> usize {
        match &self.heads {
            DraftHeads::Grouped(h) => h.head_dim,
            DraftHeads::Latent(mla) => mla.dims.qk_rope_head_dim,
        }
    }

    fn check(&self, c: Checker) -> Result<(), BackendError> {
        if !self.rotary_width().is_multiple_of(2) {
            return Err(c.fail("params", self.rotary_width(), "an even rotated width".into()));
        }
        match &self.heads {
            DraftHeads::Grouped(h) => {
                if h.num_kv_heads == 0 || !h.num_heads.is_multiple_of(h.num_kv_heads) {
                    let expected = format!("a divisor of {} query heads", h.num_heads);
                    return Err(c.fail("params.num_kv_heads", h.num_kv_heads, expected));
                }
                c.rows("params.q_norm", &h.q_norm, (DType::F32, 1, h.head_dim))?;
                c.rows("params.k_norm", &h.k_norm, (DType::F32, 1, h.head_dim))
            }
            DraftHeads::Latent(mla) => mla.check(c),
        }
    }
}

/// Where rows of a layer lie: in blocks of an arena.
#[derive(Debug, Clone, Copy)]
pub struct DraftPages<'a, T> {
    /// Blocks of each run.
    pub tables: BlockTables<'a, T>,
    /// Per block `[block_size, W]`.
    pub at: UnitLayout,
    /// Tokens per block, at least 1.
    pub block_size: usize,
}

impl<T: DeviceTensor> DraftPages<'_, T> {
    fn check(&self, c: Checker, arena: &T, (runs, width): (usize, usize)) -> Result<(), BackendError> {
        if self.block_size == 0 {
            return Err(c.fail("pages.block_size", 0, "at least 1".into()));
        }
        self.at.check(c, ("pages.at", arena), self.block_size * width)?;
        c.at_least("pages.tables.offset", self.tables.offset, (DType::U32, runs + 1))?;
        c.at_least("pages.tables.blocks", self.tables.blocks, (DType::U32, 0))
    }
}

/// Norms and rotates the keys of a step's rows and stores them: what [`DraftAttend`] will read.
#[derive(Debug)]
pub struct DraftAppend<'a, T> {
    /// Parameters of the layer.
    pub params: &'a DraftAttention<T>,
    /// Runs of rows; `slot` is not read.
    pub segments: Segments<'a, T>,
    /// Blocks: they must cover position `position + len - 1` of each run.
    pub pages: DraftPages<'a, T>,
    /// `F32 [N, R]`: what [`RotaryTable`] made of these runs.
    pub rotary: &'a T,
    /// `F32 [N, W]`: keys and values as they were projected, without norm and rotation.
    pub rows: &'a T,
    /// `F32 [n]`: where the blocks lie. Only rows of the runs are written.
    pub arena: &'a mut T,
}

impl<T: DeviceTensor> DraftAppend<'_, T> {
    /// Checks every shape; returns the number of blocks.
    ///
    /// # Errors
    /// `Mismatch`.
    pub fn dims(&self) -> Result<usize, BackendError> {
        let c = Checker { op: "draft_append" };
        self.params.check(c)?;
        let rows = self.rows.spec().shape.rows();
        c.rows("rows", self.rows, (DType::F32, rows, self.params.row_width()))?;
        c.rows("rotary", self.rotary, (DType::F32, rows, self.params.rotary_width()))?;
        self.segments.check(c)?;
        self.pages.check(c, &*self.arena, (self.segments.count, self.params.row_width()))?;
        Ok(self.pages.at.count)
    }
}

/// Attention of draft queries over the stored rows before their run and rows of the run itself.
#[derive(Debug)]
pub struct DraftAttend<'a, T> {
    /// Parameters of the layer.
    pub params: &'a DraftAttention<T>,
    /// Runs of rows; `slot` is not read.
    pub segments: Segments<'a, T>,
    /// Blocks: they must cover position `position - 1` of each run.
    pub pages: DraftPages<'a, T>,
    /// `F32 [N, R]`: what [`RotaryTable`] made of these runs.
    pub rotary: &'a T,
    /// Which rows of its run a query sees.
    pub mask: BlockMask,
    /// `F32 [N, A D]` or `[N, A (n + r)]`: queries as they were projected.
    pub q: &'a T,
    /// `F32 [N, W]`: keys and values of the same rows, as they were projected.
    pub rows: &'a T,
    /// `F32 [n]`: where the blocks lie; only rows before each run are read.
    pub arena: &'a T,
    /// `F32 [N, A D]` or `[N, A v]`. Only rows of the runs are written.
    pub out: &'a mut T,
}

impl<T: DeviceTensor> DraftAttend<'_, T> {
    /// Checks every shape; returns the number of blocks.
    ///
    /// # Errors
    /// `Mismatch`.
    pub fn dims(&self) -> Result<usize, BackendError> {
        let c = Checker { op: "draft_attend" };
        self.params.check(c)?;
        let rows = self.rows.spec().shape.rows();
        c.rows("rows", self.rows, (DType::F32, rows, self.params.row_width()))?;
        c.rows("rotary", self.rotary, (DType::F32, rows, self.params.rotary_width()))?;
        c.rows("q", self.q, (DType::F32, rows, self.params.query_width()))?;
        c.rows("out", &*self.out, (DType::F32, rows, self.params.out_width()))?;
        self.segments.check(c)?;
        self.pages.check(c, self.arena, (self.segments.count, self.params.row_width()))?;
        Ok(self.pages.at.count)
    }
}
