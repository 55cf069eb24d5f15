//! Attention of short runs of queries that share their keys: stored rows before the run, then rows of the run.
//!
//! A task is a run, a key head and a tile of the queries that read it: all rows of the run times the heads of the
//! group. Keys are taken in blocks at fixed positions of the sequence with a running maximum and sum, own rows last, so
//! the bits of a query do not depend on what else is computed.

use std::array::from_fn;

use perilune_backend::{BackendError, BlockMask, DraftAttention, DraftHeads};

use crate::CpuBackend;
use crate::matrix::{F32, RowPtr};
use crate::mla_attend::{KEYS, Places, Running};
use crate::runs::Run;
use crate::simd::{Kernel, Simd};
use crate::tensor::{CpuTensor, Parted};
use crate::tile::{MAX_TILE_ROWS, Sums, dots};

/// A run of queries.
pub(crate) struct Block<'a> {
    /// Place of its first row among the rows at hand.
    first: usize,
    len: usize,
    /// Stored rows it reads.
    context: usize,
    blocks: &'a [u32],
}

impl<'a> Block<'a> {
    /// The runs with their blocks.
    pub(crate) fn list(runs: &[Run], tables: &[&'a [u32]]) -> Vec<Block<'a>> {
        let mut first = 0;
        let mut list = Vec::with_capacity(runs.len());
        for (run, blocks) in runs.iter().zip(tables) {
            list.push(Block { first, len: run.rows.len(), context: run.position, blocks });
            first += run.rows.len();
        }
        list
    }
}

/// How key heads lie in a row.
#[derive(Clone, Copy)]
pub(crate) struct KeyHeads {
    /// Key heads.
    count: usize,
    /// Query heads of each.
    group: usize,
    key_width: usize,
    pub(crate) value_width: usize,
    /// First value of a row; 0 where values are the beginnings of keys.
    values_at: usize,
}

impl KeyHeads {
    pub(crate) fn of(params: &DraftAttention<CpuTensor>) -> KeyHeads {
        match &params.heads {
            DraftHeads::Grouped(h) => KeyHeads {
                count: h.num_kv_heads,
                group: h.num_heads / h.num_kv_heads,
                key_width: h.head_dim,
                value_width: h.head_dim,
                values_at: h.num_kv_heads * h.head_dim,
            },
            DraftHeads::Latent(mla) => KeyHeads {
                count: 1,
                group: mla.dims.num_heads,
                key_width: mla.dims.latent_width(),
                value_width: mla.dims.kv_lora_rank,
                values_at: 0,
            },
        }
    }
}

/// What all runs of an operation share.
pub(crate) struct Attention<'a> {
    pub(crate) cpu: &'a CpuBackend,
    pub(crate) keys: KeyHeads,
    pub(crate) arena: &'a [f32],
    pub(crate) places: Places,
    /// Rows of the runs, one after the other.
    pub(crate) own: &'a [f32],
    pub(crate) mask: BlockMask,
}

/// Where the result of a row at hand and a query head begins.
type Place<'a> = &'a (dyn Fn(usize, usize) -> usize + Sync);

impl Attention<'_> {
    /// All runs; `q` holds scaled queries `[rows, heads, key_width]`.
    pub(crate) fn run(
        &self,
        blocks: &[Block<'_>],
        q: &[f32],
        (out, place): (&Parted<'_, f32>, Place<'_>),
    ) -> Result<(), BackendError> {
        let mut tasks = Vec::new();
        let mut work = 0;
        for block in blocks {
            let queries = block.len * self.keys.group;
            for head in 0..self.keys.count {
                tasks.extend((0..queries).step_by(MAX_TILE_ROWS).map(|first| (block, head, first)));
            }
            let pairs = queries * self.keys.count * (block.context + block.len);
            work += pairs * (self.keys.key_width + self.keys.value_width);
        }
        self.cpu.parallel(tasks.len(), work, |_, task| {
            let (block, head, first) = tasks[task];
            self.cpu.level().run(Tiles { all: self, block, head, first, q, out, place });
        })
    }
}

/// Up to eight queries of one run and key head.
struct Tiles<'a> {
    all: &'a Attention<'a>,
    block: &'a Block<'a>,
    head: usize,
    /// The first query; query `u` is of row `u / group` of the run.
    first: usize,
    q: &'a [f32],
    out: &'a Parted<'a, f32>,
    place: Place<'a>,
}

impl Kernel for Tiles<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let end = (self.block.len * self.all.keys.group).min(self.first + MAX_TILE_ROWS);
        let most = if S::WIDE { MAX_TILE_ROWS } else { 4 };
        let mut at = self.first;
        while at < end {
            match (end - at).min(most) {
                1 => self.tile::<S, 1, 4>(s, at..end),
                2 => self.tile::<S, 2, 4>(s, at..end),
                3 | 4 => self.tile::<S, 4, 2>(s, at..end),
                _ => self.tile::<S, MAX_TILE_ROWS, 3>(s, at..end),
            }
            at += most;
        }
    }
}

/// Queries of a tile and their results; a tile that reaches past the end repeats its last query.
struct Queries<const R: usize> {
    q: [*const f32; R],
    acc: [*mut f32; R],
    running: [Running; R],
}

impl Tiles<'_> {
    #[inline(always)]
    fn tile<S: Simd, const R: usize, const O: usize>(&self, s: S, range: std::ops::Range<usize>) {
        let KeyHeads { group, value_width, .. } = self.all.keys;
        let last = range.end.min(range.start + R) - 1;
        let mut queries =
            Queries { q: [std::ptr::null(); R], acc: [std::ptr::null_mut(); R], running: [Running::START; R] };
        for r in 0..R {
            let u = (range.start + r).min(last);
            queries.q[r] = self.query(u).as_ptr();
            let out = self.result(u);
            out.fill(0.0);
            queries.acc[r] = out.as_mut_ptr();
        }
        for start in (0..self.block.context).step_by(KEYS) {
            let count = KEYS.min(self.block.context - start);
            let (keys, values) = self.rows(count, |t| self.stored(start + t));
            self.add::<S, R, O>(s, &mut queries, (&keys[..count], &values[..count]), [usize::MAX; R]);
        }
        let visible = from_fn(|r| match self.all.mask {
            BlockMask::Bidirectional => usize::MAX,
            BlockMask::Causal => (range.start + r).min(last) / group + 1,
        });
        for start in (0..self.block.len).step_by(KEYS) {
            let count = KEYS.min(self.block.len - start);
            let (keys, values) = self.rows(count, |t| self.own(start + t));
            let visible = visible.map(|n: usize| n.saturating_sub(start));
            self.add::<S, R, O>(s, &mut queries, (&keys[..count], &values[..count]), visible);
        }
        for r in 0..=last - range.start {
            let out = self.result(range.start + r);
            let factor = s.splat(1.0 / queries.running[r].sum());
            for c in (0..value_width).step_by(S::LANES) {
                let value = s.mul(s.load(out, c), factor);
                s.store(out, c, value);
            }
        }
    }

    /// Adds some keys and values, of which query `r` sees the first `visible[r]`.
    #[inline(always)]
    fn add<S: Simd, const R: usize, const O: usize>(
        &self,
        s: S,
        queries: &mut Queries<R>,
        (keys, values): (&[RowPtr], &[RowPtr]),
        visible: [usize; R],
    ) {
        let mut weights = [[0.0; KEYS]; R];
        for start in (0..keys.len()).step_by(O) {
            let mut tile = [keys[start]; O];
            for (o, key) in tile.iter_mut().enumerate() {
                *key = keys[(start + o).min(keys.len() - 1)];
            }
            // SAFETY: queries and keys have `key_width` columns.
            let sums = unsafe { dots::<S, F32, R, O>(s, queries.q, tile, self.all.keys.key_width) };
            let count = O.min(keys.len() - start);
            for r in 0..R {
                weights[r][start..start + count].copy_from_slice(&sums[r][..count]);
            }
        }
        let mut decay = [1.0; R];
        let mut coefficients = [std::ptr::null(); R];
        for r in 0..R {
            let (seen, hidden) = weights[r][..keys.len()].split_at_mut(visible[r].min(keys.len()));
            hidden.fill(f32::NEG_INFINITY);
            if !seen.is_empty() {
                decay[r] = queries.running[r].step(s, &mut weights[r][..keys.len()]);
            } else {
                weights[r].fill(0.0);
            }
            coefficients[r] = weights[r].as_ptr();
        }
        let (acc, width) = (queries.acc, self.all.keys.value_width);
        // SAFETY: values have `width` columns, there is a weight for each; `acc` are rows of this task, and equal ones
        // have equal weights.
        unsafe { Sums { w: values, coefficients, decay, acc, width }.add::<S, F32>(s) };
    }

    fn query(&self, u: usize) -> &[f32] {
        let KeyHeads { count, group, key_width, .. } = self.all.keys;
        let row = self.block.first + u / group;
        let start = (row * count * group + self.head * group + u % group) * key_width;
        &self.q[start..start + key_width]
    }

    #[allow(clippy::mut_from_ref)] // the result belongs to this task alone
    fn result(&self, u: usize) -> &mut [f32] {
        let KeyHeads { group, value_width, .. } = self.all.keys;
        let start = (self.place)(self.block.first + u / group, self.head * group + u % group);
        // SAFETY: no other task has this row and head, and one result is borrowed at a time.
        unsafe { self.out.part(start..start + value_width) }
    }

    /// Keys and values of this head in `count` rows.
    #[inline(always)]
    fn rows<'r>(&self, count: usize, row: impl Fn(usize) -> &'r [f32]) -> ([RowPtr; KEYS], [RowPtr; KEYS]) {
        let KeyHeads { key_width, value_width, values_at, .. } = self.all.keys;
        let mut pointers = ([RowPtr::plain(&[]); KEYS], [RowPtr::plain(&[]); KEYS]);
        for t in 0..count {
            let row = row(t);
            let (key, value) = (self.head * key_width, values_at + self.head * value_width);
            pointers.0[t] = RowPtr::plain(bytemuck::cast_slice(&row[key..key + key_width]));
            pointers.1[t] = RowPtr::plain(bytemuck::cast_slice(&row[value..value + value_width]));
        }
        pointers
    }

    fn stored(&self, position: usize) -> &[f32] {
        let place = self.all.places.row(self.block.blocks, position);
        &self.all.arena[place..place + self.all.places.width]
    }

    fn own(&self, t: usize) -> &[f32] {
        let width = self.all.places.width;
        &self.all.own[(self.block.first + t) * width..(self.block.first + t + 1) * width]
    }
}
