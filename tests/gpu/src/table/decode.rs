//! Decode of the two sequence mixers.

use anyhow::Result;
use perilune_backend::{
    Backend, BlockTables, Kda, KdaDims, KdaGate, KdaParams, Mla, MlaDims, MlaParams, Segments, UnitLayout, Weight,
};
use perilune_tensor::{DType, HostTensor, QuantFormat, TensorSpec};

use super::{Measured, indices, noise, sets};
use crate::options::Size;

/// Runs of one row each.
struct Rows<T> {
    start: T,
    len: T,
    position: T,
    slot: T,
}

impl<T> Rows<T> {
    fn new<B: Backend<Tensor = T>>(backend: &B, slots: &[u32], position: u32) -> Result<Rows<T>> {
        let count = slots.len() as u32;
        Ok(Rows {
            start: indices(backend, &(0..count).collect::<Vec<_>>())?,
            len: indices(backend, &vec![1; slots.len()])?,
            position: indices(backend, &vec![position; slots.len()])?,
            slot: indices(backend, slots)?,
        })
    }

    fn segments(&self, count: usize) -> Segments<'_, T> {
        Segments { count, start: &self.start, len: &self.len, position: &self.position, slot: &self.slot }
    }
}

/// KDA: each state and its convolution tail are read and written once.
pub(super) fn kda<B: Backend>(backend: &B, sequences: usize, size: Size) -> Result<Measured<'_>> {
    let (num_heads, sequences) = if size == Size::Small { (2, sequences.min(8)) } else { (96, sequences) };
    let dims = KdaDims { num_heads, head_dim: 128, conv_kernel: 4 };
    let (p, state, conv) = (dims.width(), dims.state_len(), dims.conv_state_len());
    let bytes = 2 * 4 * sequences * (state + conv);
    let sets = sets(bytes / 2, size);
    let count = sequences * sets;
    let mut arena = backend.alloc(&TensorSpec::f32([count * (state + conv)]))?;
    let units = move |offset| UnitLayout { offset, stride: state + conv, count };
    let runs: Vec<Rows<B::Tensor>> = (0..sets)
        .map(|set| Rows::new(backend, &(0..sequences).map(|s| (set * sequences + s) as u32).collect::<Vec<_>>(), 0))
        .collect::<Result<_>>()?;
    let params = KdaParams {
        dims,
        gate: KdaGate::Bounded { lower_bound: -5.0 },
        conv: [noise(backend, &[p, 4])?, noise(backend, &[p, 4])?, noise(backend, &[p, 4])?],
        a_log: noise(backend, &[num_heads])?,
        dt_bias: noise(backend, &[p])?,
        out_norm: noise(backend, &[128])?,
        eps: 1e-5,
    };
    let rows = || noise(backend, &[sequences, p]);
    let [q, k, v, gate, out_gate] = [rows()?, rows()?, rows()?, rows()?, rows()?];
    let (beta, mut out) = (noise(backend, &[sequences, num_heads])?, rows()?);
    let call = move |i: usize| {
        Ok(backend.kda_decode(Kda {
            params: &params,
            segments: runs[i % sets].segments(sequences),
            q: &q,
            k: &k,
            v: &v,
            gate: &gate,
            beta: &beta,
            out_gate: &out_gate,
            arena: &mut arena,
            conv_at: units(state),
            state_at: units(0),
            snapshots: None,
            out: &mut out,
        })?)
    };
    let name = format!("kda_decode, {sequences} sequences × {num_heads} heads");
    Ok(Measured { name, bytes, call: Box::new(call) })
}

/// Tokens of a block.
const BLOCK: usize = 64;

/// MLA: each latent of the sequence, and the key and value matrices, are read once.
pub(super) fn mla<B: Backend>(backend: &B, tokens: usize, size: Size) -> Result<Measured<'_>> {
    let (num_heads, tokens) = if size == Size::Small { (2, tokens >> 5) } else { (96, tokens) };
    let (qk_nope_head_dim, qk_rope_head_dim, v_head_dim, kv_lora_rank) = (128, 64, 128, 512);
    let dims = MlaDims { num_heads, qk_nope_head_dim, qk_rope_head_dim, v_head_dim, kv_lora_rank };
    let (blocks, block_len) = (tokens.div_ceil(BLOCK), BLOCK * dims.latent_width());
    let kv_b_rows = num_heads * (dims.qk_nope_head_dim + dims.v_head_dim);
    let bytes = 4 * tokens * dims.latent_width() + 2 * kv_b_rows * kv_lora_rank;
    let sets = sets(bytes, size);
    let count = blocks * sets;
    // Zeros: their scores are all alike, and cost what others do.
    let mut arena = backend.alloc(&TensorSpec::f32([count * block_len]))?;
    let latent_at = UnitLayout { offset: 0, stride: block_len, count };
    let offset = indices(backend, &[0, blocks as u32])?;
    let tables: Vec<B::Tensor> = (0..sets)
        .map(|set| indices(backend, &(0..blocks).map(|b| (b * sets + set) as u32).collect::<Vec<_>>()))
        .collect::<Result<_>>()?;
    let run = Rows::new(backend, &[0], tokens as u32 - 1)?;
    let kv_b = HostTensor::from_vec(
        TensorSpec::new(DType::Bf16, [kv_b_rows, kv_lora_rank]),
        vec![0x3c; 2 * kv_b_rows * kv_lora_rank],
    );
    let kv_b = backend.upload(&kv_b.ok_or_else(|| anyhow::anyhow!("kv_b"))?)?;
    let params = MlaParams {
        dims,
        kv_norm: noise(backend, &[kv_lora_rank])?,
        kv_eps: 1e-6,
        kv_b: Weight { format: QuantFormat::Bf16, data: kv_b, scales: None },
    };
    let q = noise(backend, &[1, num_heads * dims.qk_head_dim()])?;
    let kv_a = noise(backend, &[1, dims.latent_width()])?;
    let gate = noise(backend, &[1, num_heads * v_head_dim])?;
    let mut out = backend.alloc(&TensorSpec::f32([1, num_heads * v_head_dim]))?;
    let call = move |i: usize| {
        Ok(backend.mla_decode(Mla {
            params: &params,
            segments: run.segments(1),
            tables: BlockTables { offset: &offset, blocks: &tables[i % sets] },
            q: &q,
            kv_a: &kv_a,
            gate: Some(&gate),
            arena: &mut arena,
            latent_at,
            block_size: BLOCK,
            out: &mut out,
        })?)
    };
    let name = format!("mla_decode, {tokens} tokens × {num_heads} heads");
    Ok(Measured { name, bytes, call: Box::new(call) })
}
