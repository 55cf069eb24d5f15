//! Attention of draft models: rotation, rows that tokens leave behind, and queries that read them.
//!
//! Queries and own rows of all runs are normed and rotated into working memory first; the attention itself is in
//! [`crate::draft_attend`]. Queries of latent heads go through the same projections as those of MLA.

use std::ops::Range;

use perilune_backend::{
    BackendError, DeviceTensor, DraftAppend, DraftAttend, DraftAttention, DraftHeads, MlaDims, Pairing, RotaryTable,
};

use crate::CpuBackend;
use crate::draft_attend::{Attention, Block, KeyHeads};
use crate::matrix::Matrix;
use crate::mla::Projection;
use crate::mla_attend::Places;
use crate::norm::NormRow;
use crate::runs::{Paging, Run, runs};
use crate::simd::{Kernel, Simd};
use crate::tensor::{CpuTensor, Parted};

/// Cosines and sines, a row per task, from angles in `f64`.
pub(crate) fn rotary_table(cpu: &CpuBackend, op: RotaryTable<'_, CpuTensor>) -> Result<(), BackendError> {
    let (rows, width) = op.dims()?;
    let list = listed(&runs("rotary_table", &op.segments, rows)?);
    let (frequencies, amplitude) = (op.frequencies.f32()?, f64::from(op.amplitude));
    let out = op.out.parted()?;
    // A sine costs as much as some dozen products.
    cpu.parallel(list.len(), list.len() * width * 32, |_, i| {
        let (row, position) = list[i];
        // SAFETY: each task has a row of its own.
        let (cosines, sines) = unsafe { out.row(row, width) }.split_at_mut(width / 2);
        for ((cosine, sine), frequency) in cosines.iter_mut().zip(sines).zip(frequencies) {
            let (s, c) = (position as f64 * f64::from(*frequency)).sin_cos();
            (*cosine, *sine) = ((c * amplitude) as f32, (s * amplitude) as f32);
        }
    })
}

/// Rows normed, rotated and stored, a row per task.
pub(crate) fn draft_append(cpu: &CpuBackend, op: DraftAppend<'_, CpuTensor>) -> Result<(), BackendError> {
    let num_blocks = op.dims()?;
    let runs = runs("draft_append", &op.segments, op.rows.spec().shape.rows())?;
    let block_size = op.pages.block_size;
    let paging = Paging { op: "draft_append", tables: op.pages.tables, block_size, num_blocks };
    let tables = paging.written(&runs)?;
    let width = op.params.row_width();
    let places = Places { at: op.pages.at, block_size, width };
    let place = |(run, blocks): (&Run, &[u32])| -> Vec<(usize, usize)> {
        run.rows.clone().map(|row| (row, places.row(blocks, run.position + row - run.rows.start))).collect()
    };
    let list: Vec<(usize, usize)> = runs.iter().zip(tables).flat_map(place).collect();
    let layer = Layer::of(op.params, op.rotary)?;
    let (rows, arena) = (op.rows.f32()?, op.arena.parted()?);
    cpu.parallel(list.len(), list.len() * width * 4, |_, i| {
        let (row, place) = list[i];
        // SAFETY: `Paging::written` made sure that every place is written once.
        let out = unsafe { arena.part(place..place + width) };
        cpu.level().run(KeyRow { layer: &layer, row, x: &rows[row * width..(row + 1) * width], out });
    })
}

/// Attention of all runs.
pub(crate) fn draft_attend(cpu: &CpuBackend, op: DraftAttend<'_, CpuTensor>) -> Result<(), BackendError> {
    let num_blocks = op.dims()?;
    if let DraftHeads::Latent(mla) = &op.params.heads
        && mla.kv_b.format.is_int()
    {
        return Err(BackendError::Unsupported { op: "draft_attend", what: format!("kv_b in {:?}", mla.kv_b.format) });
    }
    let runs = runs("draft_attend", &op.segments, op.q.spec().shape.rows())?;
    let list = listed(&runs);
    let (q_width, width) = (op.params.query_width(), op.params.row_width());
    let mut scratch = cpu.scratch().take(list.len() * (q_width + width))?;
    let (q, own) = scratch.split_at_mut(list.len() * q_width);
    prepare(cpu, &op, &list, (&Parted::new(q), &Parted::new(own)))?;
    let block_size = op.pages.block_size;
    let paging = Paging { op: "draft_attend", tables: op.pages.tables, block_size, num_blocks };
    let tables = paging.blocks(&runs, |run| run.position)?;
    let blocks = Block::list(&runs, &tables);
    let places = Places { at: op.pages.at, block_size, width };
    let keys = KeyHeads::of(op.params);
    let attention = Attention { cpu, keys, arena: op.arena.f32()?, places, own, mask: op.mask };
    match &op.params.heads {
        DraftHeads::Grouped(_) => {
            let out_width = op.params.out_width();
            let out = op.out.parted()?;
            attention.run(&blocks, q, (&out, &|i, head| list[i].0 * out_width + head * keys.value_width))
        }
        DraftHeads::Latent(mla) => {
            let kv_b = Matrix::of(&mla.kv_b);
            let rows: Vec<u32> = list.iter().map(|(row, _)| *row as u32).collect();
            latent((cpu, mla.dims, kv_b), (q, &rows), op.out.parted()?, |wide, mixed| {
                let count = rows.len();
                attention.run(&blocks, wide, (mixed, &|i, head| (head * count + i) * keys.value_width))
            })
        }
    }
}

/// Queries into the latent space, attention there, and mixtures out of it.
fn latent(
    (cpu, dims, kv_b): (&CpuBackend, MlaDims, Matrix<'_>),
    (q, rows): (&[f32], &[u32]),
    out: Parted<'_, f32>,
    attend: impl Fn(&[f32], &Parted<'_, f32>) -> Result<(), BackendError>,
) -> Result<(), BackendError> {
    let (heads, width) = (dims.num_heads, dims.latent_width());
    let projection = Projection { cpu, dims, kv_b, q, gate: None, out };
    let mut scratch = cpu.scratch().take(rows.len() * heads * (width + dims.kv_lora_rank))?;
    let (wide, mixed) = scratch.split_at_mut(rows.len() * heads * width);
    let compact: Vec<u32> = (0..rows.len() as u32).collect();
    projection.absorb(&compact, &Parted::new(wide))?;
    attend(wide, &Parted::new(mixed))?;
    projection.finish(rows, mixed)
}

/// Rows of runs in their order: `(row, position)`.
fn listed(runs: &[Run]) -> Vec<(usize, usize)> {
    runs.iter().flat_map(|run| run.rows.clone().map(|row| (row, run.position + row - run.rows.start))).collect()
}

/// Queries and own rows of all runs, one after the other.
fn prepare(
    cpu: &CpuBackend,
    op: &DraftAttend<'_, CpuTensor>,
    list: &[(usize, usize)],
    (q, own): (&Parted<'_, f32>, &Parted<'_, f32>),
) -> Result<(), BackendError> {
    let layer = Layer::of(op.params, op.rotary)?;
    let (q_width, width) = (op.params.query_width(), op.params.row_width());
    let (queries, rows) = (op.q.f32()?, op.rows.f32()?);
    cpu.parallel(list.len(), list.len() * (q_width + width) * 4, |_, i| {
        let row = list[i].0;
        // SAFETY: each task has a row of its own in both.
        let (query, own) = unsafe { (q.row(i, q_width), own.row(i, width)) };
        cpu.level().run(QueryRow { layer: &layer, row, x: &queries[row * q_width..(row + 1) * q_width], out: query });
        cpu.level().run(KeyRow { layer: &layer, row, x: &rows[row * width..(row + 1) * width], out: own });
    })
}

/// What the rows of a layer are made with.
struct Layer<'a> {
    heads: Heads<'a>,
    pairing: Pairing,
    rotary: &'a [f32],
    rotary_width: usize,
    /// On queries: the score scale, or what is left of it once the projection has applied its own.
    scale: f32,
}

enum Heads<'a> {
    Grouped { head_dim: usize, kv_heads: usize, q_norm: &'a [f32], k_norm: &'a [f32], eps: f32 },
    Latent { dims: MlaDims, kv_norm: &'a [f32], eps: f32 },
}

impl<'a> Layer<'a> {
    fn of(params: &'a DraftAttention<CpuTensor>, rotary: &'a CpuTensor) -> Result<Self, BackendError> {
        let (heads, scale) = match &params.heads {
            DraftHeads::Grouped(h) => {
                let (q_norm, k_norm) = (h.q_norm.f32()?, h.k_norm.f32()?);
                let (head_dim, kv_heads) = (h.head_dim, h.num_kv_heads);
                (Heads::Grouped { head_dim, kv_heads, q_norm, k_norm, eps: h.eps }, params.scale)
            }
            DraftHeads::Latent(mla) => {
                let heads = Heads::Latent { dims: mla.dims, kv_norm: mla.kv_norm.f32()?, eps: mla.kv_eps };
                (heads, params.scale / mla.dims.scale())
            }
        };
        let rotary_width = params.rotary_width();
        Ok(Layer { heads, pairing: params.pairing, rotary: rotary.f32()?, rotary_width, scale })
    }

    fn rotary_row(&self, row: usize) -> &[f32] {
        &self.rotary[row * self.rotary_width..(row + 1) * self.rotary_width]
    }
}

/// Keys and values of one row.
struct KeyRow<'a> {
    layer: &'a Layer<'a>,
    row: usize,
    x: &'a [f32],
    out: &'a mut [f32],
}

impl Kernel for KeyRow<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let (rotary, pairing) = (self.layer.rotary_row(self.row), self.layer.pairing);
        match self.layer.heads {
            Heads::Grouped { head_dim, kv_heads, k_norm, eps, .. } => {
                let keys = kv_heads * head_dim;
                for head in spans(kv_heads, head_dim) {
                    NormRow { x: &self.x[head.clone()], weight: k_norm, eps, out: &mut self.out[head.clone()] }.run(s);
                    rotate(s, pairing, &mut self.out[head], rotary);
                }
                self.out[keys..].copy_from_slice(&self.x[keys..]);
            }
            Heads::Latent { dims, kv_norm, eps } => {
                let latent = dims.kv_lora_rank;
                NormRow { x: &self.x[..latent], weight: kv_norm, eps, out: &mut self.out[..latent] }.run(s);
                self.out[latent..].copy_from_slice(&self.x[latent..]);
                rotate(s, pairing, &mut self.out[latent..], rotary);
            }
        }
    }
}

/// Queries of one row.
struct QueryRow<'a> {
    layer: &'a Layer<'a>,
    row: usize,
    x: &'a [f32],
    out: &'a mut [f32],
}

impl Kernel for QueryRow<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let (rotary, pairing) = (self.layer.rotary_row(self.row), self.layer.pairing);
        match self.layer.heads {
            Heads::Grouped { head_dim, q_norm, eps, .. } => {
                for head in spans(self.x.len() / head_dim, head_dim) {
                    NormRow { x: &self.x[head.clone()], weight: q_norm, eps, out: &mut self.out[head.clone()] }.run(s);
                    rotate(s, pairing, &mut self.out[head], rotary);
                }
            }
            Heads::Latent { dims, .. } => {
                self.out.copy_from_slice(self.x);
                for head in spans(dims.num_heads, dims.qk_head_dim()) {
                    rotate(s, pairing, &mut self.out[head.start + dims.qk_nope_head_dim..head.end], rotary);
                }
            }
        }
        let scale = s.splat(self.layer.scale);
        for i in (0..self.out.len()).step_by(S::LANES) {
            let value = s.mul(s.load(self.out, i), scale);
            s.store(self.out, i, value);
        }
    }
}

fn spans(count: usize, width: usize) -> impl Iterator<Item = Range<usize>> {
    (0..count).map(move |i| i * width..(i + 1) * width)
}

/// Rotates a head by a row of cosines and sines.
#[inline(always)]
fn rotate<S: Simd>(s: S, pairing: Pairing, x: &mut [f32], rotary: &[f32]) {
    let half = x.len() / 2;
    let (cosines, sines) = rotary.split_at(half);
    if pairing == Pairing::Interleaved {
        for i in 0..half {
            let (a, b) = (x[2 * i], x[2 * i + 1]);
            x[2 * i] = a * cosines[i] - b * sines[i];
            x[2 * i + 1] = b * cosines[i] + a * sines[i];
        }
        return;
    }
    let (left, right) = x.split_at_mut(half);
    for i in (0..half).step_by(S::LANES) {
        let (a, b) = (s.load(left, i), s.load(right, i));
        let (cosine, sine) = (s.load(cosines, i), s.load(sines, i));
        s.store(left, i, s.sub(s.mul(a, cosine), s.mul(b, sine)));
        s.store(right, i, s.add(s.mul(b, cosine), s.mul(a, sine)));
    }
}
