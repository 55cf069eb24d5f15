//! Attention of draft models: rows appended in several runs, then read by short runs of queries, against attention
//! written out. Blocks of nobody and rows that must not be read are NaN.

use perilune_backend::{
    Backend, BackendError, BlockMask, BlockTables, DraftAppend, DraftAttend, DraftAttention, DraftHeads, DraftPages,
    GroupedHeads, MlaDims, MlaParams, Pairing, RotaryTable, Segments, UnitLayout,
};
use perilune_reference::draft::{self, Grouped};
use perilune_reference::{mla, norm};
use perilune_tensor::QuantFormat;

use crate::rig::{Noise, Rig, assert_close, assert_untouched};

const EPS: f32 = 1e-5;
const AMPLITUDE: f32 = 1.25;

/// A run of rows: the first, how many, the position of the first, the blocks of its sequence.
struct Run {
    start: usize,
    len: usize,
    position: usize,
    blocks: Vec<u32>,
}

/// A layer with the values it was made of.
struct Layer<B: Backend> {
    params: DraftAttention<B::Tensor>,
    norms: [Vec<f32>; 2],
    kv_b: Vec<f32>,
    frequencies: Vec<f32>,
}

/// Grouped and latent heads over many sizes, masks, pairings and block sizes. A backend without draft models says so.
pub fn check_draft_attention<B: Backend>(backend: &B) {
    let rig = Rig(backend);
    let formats: Vec<QuantFormat> = rig.formats().into_iter().filter(|f| f.is_float()).collect();
    let sizes = [[1, 1, 2], [4, 2, 6], [6, 1, 16], [8, 2, 64], [3, 3, 34]];
    for (i, [heads, kv_heads, width]) in sizes.into_iter().enumerate() {
        let pairing = if i % 3 == 2 { Pairing::Interleaved } else { Pairing::Halves };
        let layer = grouped(&rig, (heads, kv_heads, width), pairing);
        if !check_layer(&rig, &layer, i) {
            return;
        }
    }
    for (i, [heads, nope, rope, value, latent]) in
        [[1, 1, 2, 1, 1], [2, 8, 4, 8, 16], [5, 12, 6, 7, 33], [16, 32, 16, 32, 64]].into_iter().enumerate()
    {
        let dims = MlaDims {
            num_heads: heads,
            qk_nope_head_dim: nope,
            qk_rope_head_dim: rope,
            v_head_dim: value,
            kv_lora_rank: latent,
        };
        let pairing = if i % 3 == 2 { Pairing::Halves } else { Pairing::Interleaved };
        check_layer(&rig, &latent_heads(&rig, dims, (pairing, formats[i % formats.len()])), i);
    }
}

fn frequencies(width: usize) -> Vec<f32> {
    (0..width / 2).map(|i| 100f32.powf(-2.0 * i as f32 / width as f32)).collect()
}

fn grouped<B: Backend>(
    rig: &Rig<'_, B>,
    (num_heads, num_kv_heads, head_dim): (usize, usize, usize),
    pairing: Pairing,
) -> Layer<B> {
    let mut noise = Noise::new(head_dim as u64);
    let norms = [noise.row(head_dim, 2.0), noise.row(head_dim, 2.0)];
    let (q_norm, k_norm) = (rig.f32([head_dim], &norms[0]), rig.f32([head_dim], &norms[1]));
    let heads = DraftHeads::Grouped(GroupedHeads { num_heads, num_kv_heads, head_dim, q_norm, k_norm, eps: EPS });
    let params = DraftAttention { heads, pairing, scale: (head_dim as f32).powf(-0.5) };
    Layer { params, norms, kv_b: Vec::new(), frequencies: frequencies(head_dim) }
}

fn latent_heads<B: Backend>(rig: &Rig<'_, B>, dims: MlaDims, (pairing, format): (Pairing, QuantFormat)) -> Layer<B> {
    let mut noise = Noise::new(dims.kv_lora_rank as u64);
    let norm = noise.row(dims.kv_lora_rank, 2.0);
    let out = dims.num_heads * (dims.qk_nope_head_dim + dims.v_head_dim);
    let (weight, kv_b) = rig.weight(format, [out, dims.kv_lora_rank], &mut noise);
    let kv_norm = rig.f32([dims.kv_lora_rank], &norm);
    let heads = DraftHeads::Latent(MlaParams { dims, kv_norm, kv_eps: EPS, kv_b: weight });
    let params = DraftAttention { heads, pairing, scale: 1.5 * dims.scale() };
    Layer { params, norms: [Vec::new(), norm], kv_b, frequencies: frequencies(dims.qk_rope_head_dim) }
}

impl<B: Backend> Layer<B> {
    fn pairing(&self) -> draft::Pairing {
        match self.params.pairing {
            Pairing::Halves => draft::Pairing::Halves,
            Pairing::Interleaved => draft::Pairing::Interleaved,
        }
    }

    /// What a token must leave behind.
    fn row(&self, x: &[f32], position: usize) -> Vec<f32> {
        let rotary = draft::rotary_row(&self.frequencies, position, AMPLITUDE);
        match &self.params.heads {
            DraftHeads::Grouped(h) => {
                let (keys, values) = x.split_at(h.num_kv_heads * h.head_dim);
                let mut row = draft::normed_heads(keys, (&self.norms[1], EPS), (self.pairing(), &rotary));
                row.extend_from_slice(values);
                row
            }
            DraftHeads::Latent(mla) => {
                let (latent, shared) = x.split_at(mla.dims.kv_lora_rank);
                let mut row = norm::rms_norm(latent, &self.norms[1], EPS);
                row.extend(draft::rotate(self.pairing(), shared, &rotary));
                row
            }
        }
    }

    fn attend(&self, q: &[f32], position: usize, rows: &[&[f32]]) -> Vec<f32> {
        let rotary = draft::rotary_row(&self.frequencies, position, AMPLITUDE);
        match &self.params.heads {
            DraftHeads::Grouped(h) => {
                let q = draft::normed_heads(q, (&self.norms[0], EPS), (self.pairing(), &rotary));
                let dims = Grouped { heads: h.num_heads, kv_heads: h.num_kv_heads, width: h.head_dim };
                draft::attend(dims, &q, rows, self.params.scale)
            }
            DraftHeads::Latent(params) => {
                let d = params.dims;
                let head = |head: &[f32]| {
                    let (nope, rope) = head.split_at(d.qk_nope_head_dim);
                    // The reference applies the usual scale.
                    let factor = self.params.scale / d.scale();
                    let rope = draft::rotate(self.pairing(), rope, &rotary);
                    nope.iter().chain(&rope).map(|v| v * factor).collect::<Vec<f32>>()
                };
                let q: Vec<f32> = q.chunks_exact(d.qk_head_dim()).flat_map(head).collect();
                let dims = mla::Dims {
                    heads: d.num_heads,
                    nope: d.qk_nope_head_dim,
                    rope: d.qk_rope_head_dim,
                    value: d.v_head_dim,
                    latent: d.kv_lora_rank,
                };
                mla::expanded(dims, &q, &self.kv_b, rows)
            }
        }
    }
}

/// Index tensors of some runs.
struct Index<T> {
    columns: [T; 3],
    offset: T,
    blocks: T,
    count: usize,
}

impl<T> Index<T> {
    fn new<B: Backend<Tensor = T>>(rig: &Rig<'_, B>, runs: &[Run]) -> Self {
        let column = |f: &dyn Fn(&Run) -> usize| rig.u32(&runs.iter().map(|r| f(r) as u32).collect::<Vec<_>>());
        let mut offsets = vec![0];
        for run in runs {
            offsets.push(offsets[offsets.len() - 1] + run.blocks.len() as u32);
        }
        let blocks: Vec<u32> = runs.iter().flat_map(|r| r.blocks.iter().copied()).collect();
        Index {
            columns: [column(&|r| r.start), column(&|r| r.len), column(&|r| r.position)],
            offset: rig.u32(&offsets),
            blocks: rig.u32(&blocks),
            count: runs.len(),
        }
    }

    fn segments(&self) -> Segments<'_, T> {
        let [start, len, position] = &self.columns;
        Segments { count: self.count, start, len, position, slot: start }
    }

    fn pages(&self, (at, block_size): (UnitLayout, usize)) -> DraftPages<'_, T> {
        DraftPages { tables: BlockTables { offset: &self.offset, blocks: &self.blocks }, at, block_size }
    }
}

/// Whether the backend has the operations.
fn check_layer<B: Backend>(rig: &Rig<'_, B>, layer: &Layer<B>, case: usize) -> bool {
    let block_size = [1, 3, 16, 64][case % 4];
    let width = layer.params.row_width();
    // Two sequences; the second is empty until the queries come.
    let (lengths, stride) = ([75, 0], block_size * width + 5);
    let needed = 75_usize.div_ceil(block_size);
    let shuffled = Noise::new(3).shuffled(needed + 2);
    let blocks = shuffled[..needed].to_vec();
    let at = UnitLayout { offset: 5, stride, count: shuffled.len() };
    let mut arena = rig.poison([shuffled.len() * stride + 5]);
    let mut noise = Noise::new(case as u64 + 9);
    let x = noise.row(76 * width, 1.0);
    let x_tensor = rig.f32([76, width], &x);
    let mut stored = Vec::new();
    for (start, len) in [(0, 70), (70, 5)] {
        // Row 0 of the tensor belongs to nobody.
        let index = Index::new(rig, &[Run { start: start + 1, len, position: start, blocks: blocks.clone() }]);
        let rotary = match table(rig, layer, (&index, 76)) {
            Err(BackendError::Unsupported { what, .. }) => {
                eprintln!("skipped: {what} is not supported");
                return false;
            }
            other => other.unwrap(),
        };
        let op = DraftAppend {
            params: &layer.params,
            segments: index.segments(),
            pages: index.pages((at, block_size)),
            rotary: &rotary,
            rows: &x_tensor,
            arena: &mut arena,
        };
        rig.0.draft_append(op).unwrap();
        stored.extend((start..start + len).map(|t| layer.row(&x[(t + 1) * width..(t + 2) * width], t)));
    }
    let found = rig.read(&arena);
    for (t, row) in stored.iter().enumerate() {
        let place = at.start(blocks[t / block_size] as usize) + t % block_size * width;
        assert_close("draft_append", &found[place..place + width], row, 2e-6);
    }
    let written = found.iter().filter(|v| !v.is_nan()).count();
    assert_eq!(written, 75 * width, "draft_append: rows of nobody were written");
    for (mask, lens) in [(BlockMask::Bidirectional, [7, 1]), (BlockMask::Causal, [5, 8]), (BlockMask::Causal, [1, 3])] {
        let runs = [0, 1].map(|s| {
            let blocks = if s == 0 { blocks.clone() } else { Vec::new() };
            Run { start: [1, 1 + lens[0]][s], len: lens[s], position: lengths[s], blocks }
        });
        queries(rig, layer, Block { runs: &runs, mask, pages: (at, block_size), arena: &arena, stored: &stored });
    }
    true
}

/// Queries of several sequences.
struct Block<'a, T> {
    runs: &'a [Run],
    mask: BlockMask,
    pages: (UnitLayout, usize),
    arena: &'a T,
    stored: &'a [Vec<f32>],
}

fn queries<B: Backend>(rig: &Rig<'_, B>, layer: &Layer<B>, block: Block<'_, B::Tensor>) {
    let (width, q_width, out_width) = (layer.params.row_width(), layer.params.query_width(), layer.params.out_width());
    let rows = block.runs.iter().map(|run| run.len).sum::<usize>() + 2;
    let mut noise = Noise::new(rows as u64);
    let (q, x) = (noise.row(rows * q_width, 3.0), noise.row(rows * width, 1.0));
    let (q_tensor, x_tensor) = (rig.f32([rows, q_width], &q), rig.f32([rows, width], &x));
    let index = Index::new(rig, block.runs);
    let rotary = table(rig, layer, (&index, rows)).unwrap();
    let mut out = rig.poison([rows, out_width]);
    let op = DraftAttend {
        params: &layer.params,
        segments: index.segments(),
        pages: index.pages(block.pages),
        rotary: &rotary,
        mask: block.mask,
        q: &q_tensor,
        rows: &x_tensor,
        arena: block.arena,
        out: &mut out,
    };
    rig.0.draft_attend(op).unwrap();
    let got = rig.read(&out);
    assert_untouched("draft_attend", &got[..out_width]);
    assert_untouched("draft_attend", &got[(rows - 1) * out_width..]);
    for run in block.runs {
        let own: Vec<Vec<f32>> =
            (0..run.len).map(|t| layer.row(&x[(run.start + t) * width..][..width], run.position + t)).collect();
        for t in 0..run.len {
            let seen = if block.mask == BlockMask::Causal { t + 1 } else { run.len };
            let keys: Vec<&[f32]> =
                block.stored[..run.position].iter().chain(&own[..seen]).map(Vec::as_slice).collect();
            let row = run.start + t;
            let want = layer.attend(&q[row * q_width..][..q_width], run.position + t, &keys);
            assert_close(&format!("draft_attend {:?}", block.mask), &got[row * out_width..][..out_width], &want, 2e-5);
        }
    }
}

fn table<B: Backend>(
    rig: &Rig<'_, B>,
    layer: &Layer<B>,
    (index, rows): (&Index<B::Tensor>, usize),
) -> Result<B::Tensor, BackendError> {
    let half = layer.frequencies.len();
    let frequencies = rig.f32([half], &layer.frequencies);
    let mut out = rig.poison([rows, 2 * half]);
    let op = RotaryTable { segments: index.segments(), frequencies: &frequencies, amplitude: AMPLITUDE, out: &mut out };
    rig.0.rotary_table(op).map(|()| out)
}
