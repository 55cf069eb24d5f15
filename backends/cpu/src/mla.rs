//! Multi-head latent attention in its absorbed form, for prefill and decode alike.
//!
//! Latents are appended first. Then, for a limited number of rows at a time: queries are multiplied into the latent
//! space (a head and some rows per task), attention runs there (a row and some heads per task, as all heads share the
//! cache rows), and the mixtures come back through the value matrix with the output gate (a head and some rows again).

use std::ops::Range;

use perilune_backend::{BackendError, DeviceTensor, Mla, MlaDims, Write};
use perilune_tensor::QuantFormat;

use crate::CpuBackend;
use crate::matrix::{Bf16, F16, F32, Format, Matrix, Mxfp4, RowPtr};
use crate::mla_attend::{Attend, Cache, Places};
use crate::norm::NormRow;
use crate::product::{Outputs, Pick, Product};
use crate::runs::{Paging, runs};
use crate::simd::{Kernel, Simd, sigmoid};
use crate::tensor::{CpuTensor, Parted};
use crate::tile::{MAX_TILE_ROWS, Sums};

/// Rows whose queries and mixtures are held at once.
const ROWS_AT_ONCE: usize = 64;
/// Heads of one attention task.
const HEADS_AT_ONCE: usize = MAX_TILE_ROWS;

/// One token row.
#[derive(Clone, Copy)]
struct Query<'a> {
    row: u32,
    position: usize,
    blocks: &'a [u32],
}

/// Appends latents, then attends.
pub(crate) fn mla(cpu: &CpuBackend, op: Mla<'_, CpuTensor>) -> Result<(), BackendError> {
    let num_blocks = op.dims()?;
    if op.params.kv_b.format.is_int() {
        return Err(BackendError::Unsupported { op: "mla", what: format!("kv_b in {:?}", op.params.kv_b.format) });
    }
    let runs = runs("mla", &op.segments, op.q.spec().shape.rows())?;
    let paging = Paging { op: "mla", tables: op.tables, block_size: op.block_size, num_blocks };
    let tables = paging.written(&runs)?;
    let mut queries = Vec::new();
    for (run, blocks) in runs.iter().zip(tables) {
        let query = |row: usize| Query { row: row as u32, position: run.position + row - run.rows.start, blocks };
        queries.extend(run.rows.clone().map(query));
    }
    let dims = op.params.dims;
    let places = Places { at: op.latent_at, block_size: op.block_size, width: dims.latent_width() };
    let (kv_a, norm, eps) = (op.kv_a.f32()?, op.params.kv_norm.f32()?, op.params.kv_eps);
    Append { cpu, dims, places, kv_a, norm, eps, arena: op.arena.parted()? }.run(&queries)?;
    let projection = Projection {
        cpu,
        dims,
        kv_b: Matrix::of(&op.params.kv_b),
        q: op.q.f32()?,
        gate: op.gate.map(CpuTensor::f32).transpose()?,
        out: op.out.parted()?,
    };
    let layer = Layer { projection, cache: Cache { arena: op.arena.f32()?, places } };
    queries.chunks(ROWS_AT_ONCE).try_for_each(|queries| layer.rows(queries))
}

/// Norms the latents of all rows and writes them to the cache.
struct Append<'a> {
    cpu: &'a CpuBackend,
    dims: MlaDims,
    places: Places,
    kv_a: &'a [f32],
    norm: &'a [f32],
    eps: f32,
    arena: Parted<'a, f32>,
}

impl Append<'_> {
    fn run(&self, queries: &[Query<'_>]) -> Result<(), BackendError> {
        let (width, latent) = (self.dims.latent_width(), self.dims.kv_lora_rank);
        self.cpu.parallel(queries.len(), queries.len() * width * 2, |_, i| {
            let Query { row, position, blocks } = queries[i];
            let place = self.places.row(blocks, position);
            let from = &self.kv_a[row as usize * width..(row as usize + 1) * width];
            // SAFETY: `Paging::written` made sure that every place is written once.
            let to = unsafe { self.arena.part(place..place + width) };
            to[latent..].copy_from_slice(&from[latent..]);
            let (x, out) = (&from[..latent], &mut to[..latent]);
            self.cpu.level().run(NormRow { x, weight: self.norm, eps: self.eps, out });
        })
    }
}

struct Layer<'a> {
    projection: Projection<'a>,
    cache: Cache<'a>,
}

impl Layer<'_> {
    fn rows(&self, queries: &[Query<'_>]) -> Result<(), BackendError> {
        let rows: Vec<u32> = queries.iter().map(|query| query.row).collect();
        let dims = self.projection.dims;
        let (heads, width, latent) = (dims.num_heads, dims.latent_width(), dims.kv_lora_rank);
        let mut scratch = self.projection.cpu.scratch().take(rows.len() * heads * (width + latent))?;
        // Absorbed queries `[rows, heads, C + r]` and mixtures `[heads, rows, C]`.
        let (wide, mixed) = scratch.split_at_mut(rows.len() * heads * width);
        self.projection.absorb(&rows, &Parted::new(wide))?;
        self.attend(queries, wide, &Parted::new(mixed))?;
        self.projection.finish(&rows, mixed)
    }

    fn attend(&self, queries: &[Query<'_>], wide: &[f32], mixed: &Parted<'_, f32>) -> Result<(), BackendError> {
        let dims = self.projection.dims;
        let (heads, width) = (dims.num_heads, dims.latent_width());
        let groups = heads.div_ceil(HEADS_AT_ONCE);
        let keys: usize = queries.iter().map(|query| query.position + 1).sum();
        let work = keys * heads * (width + dims.kv_lora_rank);
        self.projection.cpu.parallel(queries.len() * groups, work, |_, task| {
            let (i, first) = (task / groups, task % groups * HEADS_AT_ONCE);
            let query = &queries[i];
            self.projection.cpu.level().run(Attend {
                cache: self.cache,
                blocks: query.blocks,
                position: query.position,
                latent: dims.kv_lora_rank,
                heads: first..heads.min(first + HEADS_AT_ONCE),
                wide: &wide[i * heads * width..(i + 1) * heads * width],
                mixed,
                place: (i, queries.len()),
            });
        })
    }
}

/// The way of queries into the latent space and of mixtures out of it.
pub(crate) struct Projection<'a> {
    pub(crate) cpu: &'a CpuBackend,
    pub(crate) dims: MlaDims,
    pub(crate) kv_b: Matrix<'a>,
    /// `[N, A (n + r)]`.
    pub(crate) q: &'a [f32],
    /// `[N, A v]`, before the sigmoid.
    pub(crate) gate: Option<&'a [f32]>,
    /// `[N, A v]`.
    pub(crate) out: Parted<'a, f32>,
}

impl Projection<'_> {
    /// `[q^n W^K | q^r]`, times the score scale, for some rows; `wide` is `[rows, A, C + r]`.
    pub(crate) fn absorb(&self, rows: &[u32], wide: &Parted<'_, f32>) -> Result<(), BackendError> {
        let groups = rows.len().div_ceil(MAX_TILE_ROWS);
        let work = rows.len() * self.dims.num_heads * self.dims.qk_nope_head_dim * self.dims.kv_lora_rank;
        self.cpu.parallel(self.dims.num_heads * groups, work, |_, task| {
            let (head, first) = (task / groups, task % groups * MAX_TILE_ROWS);
            let rows = &rows[first..rows.len().min(first + MAX_TILE_ROWS)];
            self.cpu.level().run(Absorb { layer: self, head, first, rows, wide });
        })
    }

    /// `(mixture W^Vᵀ) ⊙ σ(gate)` for some rows; `mixed` is `[A, rows, C]`.
    pub(crate) fn finish(&self, rows: &[u32], mixed: &[f32]) -> Result<(), BackendError> {
        let MlaDims { num_heads, qk_nope_head_dim: n, v_head_dim: v, kv_lora_rank, .. } = self.dims;
        let groups = rows.len().div_ceil(MAX_TILE_ROWS);
        let work = rows.len() * num_heads * v * kv_lora_rank;
        self.cpu.parallel(num_heads * groups, work, |_, task| {
            let (head, first) = (task / groups, task % groups * MAX_TILE_ROWS);
            let group = &rows[first..rows.len().min(first + MAX_TILE_ROWS)];
            let (width, column) = (num_heads * v, head * v);
            let range = head * (n + v) + n..(head + 1) * (n + v);
            let out = Outputs { data: &self.out, width, column, pick: Pick::Listed(group), write: Write::Replace };
            let pick = Pick::From(head * rows.len() + first);
            self.cpu.level().run(Product { rows: group.len(), x: mixed, pick, weight: self.kv_b, range, out });
            let Some(gate) = self.gate else { return };
            for row in group {
                let range = *row as usize * width + column..*row as usize * width + column + v;
                // SAFETY: the task owns these columns of its rows.
                let out = unsafe { self.out.part(range.clone()) };
                self.cpu.level().run(Gate { out, gate: &gate[range] });
            }
        })
    }
}

/// Absorbed queries of one head for some rows: `rows[i]` is the `first + i`-th row at hand.
struct Absorb<'a> {
    layer: &'a Projection<'a>,
    head: usize,
    first: usize,
    rows: &'a [u32],
    wide: &'a Parted<'a, f32>,
}

impl Kernel for Absorb<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        match self.layer.kv_b.format {
            QuantFormat::F32 => self.all::<S, F32>(s),
            QuantFormat::Bf16 => self.all::<S, Bf16>(s),
            QuantFormat::F16 => self.all::<S, F16>(s),
            QuantFormat::Mxfp4 => self.all::<S, Mxfp4>(s),
            // Refused by `mla`.
            QuantFormat::Int8 | QuantFormat::Int4 => {}
        }
    }
}

impl Absorb<'_> {
    #[inline(always)]
    fn all<S: Simd, F: Format>(&self, s: S) {
        let dims = self.layer.dims;
        let keys: Range<usize> = 0..dims.qk_nope_head_dim;
        let first_key = self.head * (dims.qk_nope_head_dim + dims.v_head_dim);
        let keys: Vec<RowPtr> = keys.map(|key| self.layer.kv_b.row(first_key + key)).collect();
        match self.rows.len() {
            1 => self.tile::<S, F, 1>(s, &keys),
            2 => self.tile::<S, F, 2>(s, &keys),
            3 | 4 => self.tile::<S, F, 4>(s, &keys),
            _ => self.tile::<S, F, MAX_TILE_ROWS>(s, &keys),
        }
    }

    #[inline(always)]
    fn tile<S: Simd, F: Format, const R: usize>(&self, s: S, keys: &[RowPtr]) {
        let dims = self.layer.dims;
        let (n, latent) = (dims.qk_nope_head_dim, dims.kv_lora_rank);
        let query = |row: u32| {
            let start = (row as usize * dims.num_heads + self.head) * dims.qk_head_dim();
            &self.layer.q[start..start + dims.qk_head_dim()]
        };
        let place = |i: usize| (self.first + i) * dims.num_heads + self.head;
        let last = self.rows.len() - 1;
        let mut acc = [std::ptr::null_mut(); R];
        for (i, acc) in acc.iter_mut().enumerate() {
            // SAFETY: the task owns this head of its rows; one row is borrowed at a time.
            let wide = unsafe { self.wide.row(place(i.min(last)), dims.latent_width()) };
            wide[..latent].fill(0.0);
            *acc = wide.as_mut_ptr();
        }
        let coefficients = std::array::from_fn(|i| query(self.rows[i.min(last)])[..n].as_ptr());
        // SAFETY: keys have `latent` columns, queries `n` coefficients for the `n` keys.
        unsafe { Sums { w: keys, coefficients, decay: [1.0; R], acc, width: latent }.add::<S, F>(s) };
        for (i, row) in self.rows.iter().enumerate() {
            // SAFETY: as above.
            let wide = unsafe { self.wide.row(place(i), dims.latent_width()) };
            wide[latent..].copy_from_slice(&query(*row)[n..]);
            let scale = s.splat(dims.scale());
            for c in (0..wide.len()).step_by(S::LANES) {
                let value = s.mul(s.load(wide, c), scale);
                s.store(wide, c, value);
            }
        }
    }
}

/// `out = out ⊙ σ(gate)`.
struct Gate<'a> {
    out: &'a mut [f32],
    gate: &'a [f32],
}

impl Kernel for Gate<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        for i in (0..self.out.len()).step_by(S::LANES) {
            let value = s.mul(s.load(self.out, i), sigmoid(s, s.load(self.gate, i)));
            s.store(self.out, i, value);
        }
    }
}
