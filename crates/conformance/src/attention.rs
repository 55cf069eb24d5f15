//! MLA: runs of one and of many tokens over shuffled, poisoned blocks, against expanded attention.

use std::ops::Range;

use perilune_backend::{
    Backend, BackendError, BlockTables, DeviceTensor, Mla, MlaDims, MlaParams, Segments, UnitLayout, Weight,
};
use perilune_reference::mla::{Dims, expanded, gate_output, latent_row};
use perilune_tensor::QuantFormat;

use crate::kda::Entry;
use crate::rig::{Noise, Rig, assert_close, assert_untouched};

/// A layer, the inputs of some rows, and a cache of shuffled blocks.
pub(crate) struct MlaCase<B: Backend> {
    pub(crate) dims: MlaDims,
    params: MlaParams<B::Tensor>,
    kv_norm: Vec<f32>,
    kv_b: Vec<f32>,
    q: Vec<f32>,
    kv_a: Vec<f32>,
    gate: Option<Vec<f32>>,
    rows: usize,
    pub(crate) block_size: usize,
    /// Least entries of the tensor of block ids; those of nobody name no block.
    pub(crate) table_len: usize,
}

/// A run: rows of the case, the position of the first, the blocks of its sequence.
pub(crate) struct MlaRun {
    pub(crate) rows: Range<usize>,
    pub(crate) position: usize,
    pub(crate) blocks: Vec<u32>,
}

/// What a case is made of.
#[derive(Debug, Clone, Copy)]
pub(crate) struct MlaShape {
    pub(crate) dims: MlaDims,
    pub(crate) format: QuantFormat,
    pub(crate) gated: Gated,
    pub(crate) rows: usize,
    pub(crate) block_size: usize,
}

/// Whether the layer has an output gate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Gated {
    Yes,
    No,
}

impl<B: Backend> MlaCase<B> {
    pub(crate) fn new(rig: &Rig<'_, B>, shape: MlaShape) -> MlaCase<B> {
        let MlaShape { dims, format, gated, rows, block_size } = shape;
        let mut noise = Noise::new(rows as u64 + 77);
        let kv_norm = noise.row(dims.kv_lora_rank, 2.0);
        let out = dims.num_heads * (dims.qk_nope_head_dim + dims.v_head_dim);
        let (weight, kv_b): (Weight<B::Tensor>, Vec<f32>) = rig.weight(format, [out, dims.kv_lora_rank], &mut noise);
        let params = MlaParams { dims, kv_norm: rig.f32([dims.kv_lora_rank], &kv_norm), kv_eps: 1e-6, kv_b: weight };
        let q = noise.row(rows * dims.num_heads * dims.qk_head_dim(), 3.0);
        let kv_a = noise.row(rows * dims.latent_width(), 1.0);
        let gate = (gated == Gated::Yes).then(|| noise.row(rows * dims.num_heads * dims.v_head_dim, 2.0));
        MlaCase { dims, params, kv_norm, kv_b, q, kv_a, gate, rows, block_size, table_len: 0 }
    }

    /// An arena of blocks, with elements of nobody around them, whose every value is NaN.
    pub(crate) fn cache(&self, rig: &Rig<'_, B>, blocks: usize) -> B::Tensor {
        rig.poison([blocks * self.stride()])
    }

    /// Elements of nobody before and after a block: aligned to wide loads for some widths, to nothing for others.
    fn gap(&self) -> usize {
        if self.dims.latent_width().is_multiple_of(16) { 8 } else { 3 }
    }

    fn stride(&self) -> usize {
        self.block_size * self.dims.latent_width() + 2 * self.gap()
    }

    fn layout(&self, arena: &B::Tensor) -> UnitLayout {
        let stride = self.stride();
        UnitLayout { offset: self.gap(), stride, count: arena.spec().shape.numel() / stride }
    }

    /// The output of all rows, poisoned where no run writes.
    pub(crate) fn run(
        &self,
        rig: &Rig<'_, B>,
        (runs, entry): (&[MlaRun], Entry),
        cache: &mut B::Tensor,
    ) -> Result<Vec<f32>, BackendError> {
        let d = self.dims;
        let column = |f: &dyn Fn(&MlaRun) -> usize| rig.u32(&runs.iter().map(|r| f(r) as u32).collect::<Vec<_>>());
        let (start, len) = (column(&|r| r.rows.start), column(&|r| r.rows.len()));
        let (position, slot) = (column(&|r| r.position), column(&|_| 0));
        let mut offsets = vec![0];
        offsets.extend(runs.iter().scan(0, |sum, r| {
            *sum += r.blocks.len() as u32;
            Some(*sum)
        }));
        let mut blocks: Vec<u32> = runs.iter().flat_map(|r| r.blocks.iter().copied()).collect();
        blocks.resize(blocks.len().max(self.table_len), u32::MAX);
        let (offset, blocks) = (rig.u32(&offsets), rig.u32(&blocks));
        let q = rig.f32([self.rows, d.num_heads * d.qk_head_dim()], &self.q);
        let kv_a = rig.f32([self.rows, d.latent_width()], &self.kv_a);
        let gate = self.gate.as_ref().map(|g| rig.f32([self.rows, d.num_heads * d.v_head_dim], g));
        let mut out = rig.poison([self.rows, d.num_heads * d.v_head_dim]);
        let op = Mla {
            params: &self.params,
            segments: Segments { count: runs.len(), start: &start, len: &len, position: &position, slot: &slot },
            tables: BlockTables { offset: &offset, blocks: &blocks },
            q: &q,
            kv_a: &kv_a,
            gate: gate.as_ref(),
            latent_at: self.layout(cache),
            block_size: self.block_size,
            arena: cache,
            out: &mut out,
        };
        match entry {
            Entry::Decode => rig.0.mla_decode(op)?,
            Entry::Prefill => rig.0.mla_prefill(op)?,
        }
        rig.0.synchronize()?;
        Ok(rig.read(&out))
    }

    /// The row of the cache that a token must leave.
    fn latent(&self, row: usize) -> Vec<f32> {
        let width = self.dims.latent_width();
        latent_row(&self.kv_a[row * width..(row + 1) * width], &self.kv_norm, 1e-6)
    }

    /// Expanded attention of a sequence whose tokens are these rows of the case, all of them.
    pub(crate) fn reference(&self, sequence: &[usize]) -> Vec<f32> {
        let d = self.dims;
        let dims = Dims {
            heads: d.num_heads,
            nope: d.qk_nope_head_dim,
            rope: d.qk_rope_head_dim,
            value: d.v_head_dim,
            latent: d.kv_lora_rank,
        };
        let latents: Vec<Vec<f32>> = sequence.iter().map(|row| self.latent(*row)).collect();
        let mut all = Vec::new();
        for (t, row) in sequence.iter().enumerate() {
            let keys: Vec<&[f32]> = latents[..=t].iter().map(Vec::as_slice).collect();
            let width = d.num_heads * d.qk_head_dim();
            let out = expanded(dims, &self.q[row * width..(row + 1) * width], &self.kv_b, &keys);
            let values = d.num_heads * d.v_head_dim;
            all.extend(match &self.gate {
                Some(gate) => gate_output(&out, &gate[row * values..(row + 1) * values]),
                None => out,
            });
        }
        all
    }
}

/// Two sequences in several runs each, over every block size; blocks of nobody and rows after the end are NaN.
pub fn check_mla<B: Backend>(backend: &B) {
    let rig = Rig(backend);
    let dims = |num_heads, qk_nope_head_dim, qk_rope_head_dim, v_head_dim, kv_lora_rank| MlaDims {
        num_heads,
        qk_nope_head_dim,
        qk_rope_head_dim,
        v_head_dim,
        kv_lora_rank,
    };
    let formats: Vec<QuantFormat> = rig.formats().into_iter().filter(|f| f.is_float()).collect();
    for dims in [dims(1, 1, 1, 1, 1), dims(2, 8, 4, 8, 16), dims(3, 33, 7, 19, 45), dims(2, 64, 32, 64, 128)] {
        for (i, block_size) in [1, 3, 16, 64, 128].into_iter().enumerate() {
            let format = formats[i % formats.len()];
            let gated = if i % 2 == 0 { Gated::Yes } else { Gated::No };
            let lengths: &[[usize; 2]] = &[[5, 1], [1, 1], [8, 2]];
            several_runs(&rig, MlaShape { dims, format, gated, rows: 19, block_size }, lengths, Entry::Decode);
            let lengths: &[[usize; 2]] = &[[70, 3], [1, 64], [65, 2]];
            several_runs(&rig, MlaShape { dims, format, gated, rows: 206, block_size }, lengths, Entry::Prefill);
        }
    }
}

/// `lengths[step][sequence]` rows in each of several calls; one row of the case belongs to nobody.
fn several_runs<B: Backend>(rig: &Rig<'_, B>, shape: MlaShape, lengths: &[[usize; 2]], entry: Entry) {
    let case = MlaCase::new(rig, shape);
    let total = |s: usize| lengths.iter().map(|l| l[s]).sum::<usize>();
    let needed: [usize; 2] = std::array::from_fn(|s| total(s).div_ceil(shape.block_size));
    let shuffled = Noise::new(5).shuffled(needed[0] + needed[1] + 2);
    let tables = [shuffled[..needed[0]].to_vec(), shuffled[needed[0]..needed[0] + needed[1]].to_vec()];
    let mut cache = case.cache(rig, shuffled.len());
    let (mut sequences, mut got) = ([Vec::new(), Vec::new()], [Vec::new(), Vec::new()]);
    let width = shape.dims.num_heads * shape.dims.v_head_dim;
    let mut next = 0;
    for lens in lengths {
        let mut runs = Vec::new();
        for s in 0..2 {
            let rows = next..next + lens[s];
            runs.push(MlaRun { rows: rows.clone(), position: sequences[s].len(), blocks: tables[s].clone() });
            sequences[s].extend(rows);
            next += lens[s];
        }
        let out = case.run(rig, (&runs, entry), &mut cache).unwrap();
        for s in 0..2 {
            got[s].extend_from_slice(&out[runs[s].rows.start * width..runs[s].rows.end * width]);
        }
        assert_untouched("mla", &out[next * width..]);
    }
    let stored = rig.read(&cache);
    let latent_width = shape.dims.latent_width();
    for s in 0..2 {
        assert_close(&format!("mla {shape:?} {entry:?}"), &got[s], &case.reference(&sequences[s]), 2e-5);
        for (t, row) in sequences[s].iter().enumerate() {
            let block = case.layout(&cache).start(tables[s][t / shape.block_size] as usize);
            let place = block + t % shape.block_size * latent_width;
            assert_close("mla: latent", &stored[place..place + latent_width], &case.latent(*row), 2e-6);
        }
    }
    let written = (total(0) + total(1)) * latent_width;
    assert_eq!(
        stored.iter().filter(|v| v.is_nan()).count(),
        stored.len() - written,
        "mla: rows of nobody were written"
    );
}
