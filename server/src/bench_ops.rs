//! Where the time of a step goes: a backend around another that clocks every operation and counts what it moves.
//!
//! Bytes are those of weights, states and cache rows that an operation has to read or write at least once; operations
//! are additions and multiplications. Routed experts count as often as they were chosen in the operation at hand.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use perilune_backend::{
    AttnResidual, Backend, BackendError, DeviceInfo, DeviceTensor, Download, Embed, GatedAct, Kda, KdaDims, KdaFold,
    KdaVerify, Linear, Mla, MoeExperts, MoeRoute, NoGraph, RmsNorm, Sample, SampledRow, Segments, SelectRows, Weight,
};
use perilune_cpu::CpuLimits;
use perilune_tensor::{HostTensor, QuantFormat, TensorSpec};
use serde_json::json;

/// What a kind of operation did so far.
#[derive(Debug, Clone, Copy, Default)]
struct Tally {
    calls: usize,
    bytes: f64,
    operations: f64,
    time: Duration,
}

/// A backend whose operations are clocked.
#[derive(Debug)]
pub(crate) struct Timed<B> {
    inner: B,
    tallies: Mutex<BTreeMap<String, Tally>>,
}

/// What one operation moves and computes.
#[derive(Debug, Clone, Copy, Default)]
struct Cost {
    bytes: f64,
    operations: f64,
}

/// Operations by kind, the longest first.
#[derive(Debug)]
pub(crate) struct OpTable {
    title: String,
    ops: Vec<(String, Tally)>,
}

impl<B: Backend> Timed<B> {
    pub(crate) fn new(inner: B) -> Self {
        Timed { inner, tallies: Mutex::new(BTreeMap::new()) }
    }

    /// Forgets what was clocked.
    pub(crate) fn clear(&self) {
        self.tallies.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }

    /// What was clocked since the last time.
    pub(crate) fn take(&self, title: String) -> OpTable {
        let tallies = std::mem::take(&mut *self.tallies.lock().unwrap_or_else(PoisonError::into_inner));
        let mut ops: Vec<(String, Tally)> = tallies.into_iter().collect();
        ops.sort_by_key(|(_, tally)| std::cmp::Reverse(tally.time));
        OpTable { title, ops }
    }

    fn clock<T>(
        &self,
        kind: String,
        cost: Cost,
        work: impl FnOnce(&B) -> Result<T, BackendError>,
    ) -> Result<T, BackendError> {
        let begin = Instant::now();
        let result = work(&self.inner)?;
        self.inner.synchronize()?;
        let time = begin.elapsed();
        let mut tallies = self.tallies.lock().unwrap_or_else(PoisonError::into_inner);
        let tally = tallies.entry(kind).or_default();
        tally.calls += 1;
        tally.bytes += cost.bytes;
        tally.operations += cost.operations;
        tally.time += time;
        Ok(result)
    }

    /// Values of an index tensor.
    fn values(&self, tensor: &B::Tensor, count: usize) -> Result<Vec<f64>, BackendError> {
        let mut values: Vec<f64> = self.inner.download(tensor)?.wait()?.to_f32().into_iter().map(f64::from).collect();
        values.truncate(count);
        Ok(values)
    }

    fn kda_cost(&self, dims: KdaDims, segments: &Segments<'_, B::Tensor>) -> Result<Cost, BackendError> {
        let tokens: f64 = self.values(segments.len, segments.count)?.iter().sum();
        let state = (dims.state_len() + dims.conv_state_len()) as f64;
        // The state is read and written once a run; decay, two products and an update a token.
        let operations = tokens * dims.state_len() as f64 * 7.0;
        Ok(Cost { bytes: 8.0 * segments.count as f64 * state, operations })
    }

    fn mla_cost(&self, op: &Mla<'_, B::Tensor>) -> Result<Cost, BackendError> {
        let dims = op.params.dims;
        let (keys, tokens, read) = self.keys(&op.segments)?;
        let (latent, wide) = (dims.kv_lora_rank as f64, dims.latent_width() as f64);
        let heads = dims.num_heads as f64;
        let absorb = latent * (dims.qk_nope_head_dim + dims.v_head_dim) as f64;
        let operations = 2.0 * heads * (keys * (wide + latent) + tokens * absorb);
        Ok(Cost { bytes: weight_bytes(&op.params.kv_b) + 4.0 * read * wide, operations })
    }

    /// Keys that all tokens see, tokens, and cache rows that are read at least once.
    fn keys(&self, segments: &Segments<'_, B::Tensor>) -> Result<(f64, f64, f64), BackendError> {
        let lengths = self.values(segments.len, segments.count)?;
        let positions = self.values(segments.position, segments.count)?;
        let (mut keys, mut tokens, mut rows) = (0.0, 0.0, 0.0);
        for (len, position) in lengths.iter().zip(positions) {
            keys += len * position + len * (len + 1.0) / 2.0;
            tokens += len;
            rows += position + len;
        }
        Ok((keys, tokens, rows))
    }

    fn experts_cost(&self, op: &MoeExperts<'_, B::Tensor>) -> Result<(QuantFormat, Cost), BackendError> {
        let dims = op.dims()?;
        let ids = self.values(op.ids, op.rows * dims.top_k)?;
        let distinct: BTreeSet<usize> = ids.iter().map(|id| *id as usize).collect();
        let bytes = |e: &usize| {
            op.experts.get(*e).map_or(0.0, |e| weight_bytes(&e.gate) + weight_bytes(&e.up) + weight_bytes(&e.down))
        };
        let operations = 6.0 * (ids.len() * dims.width * dims.inner) as f64;
        let format = op.experts.first().map_or(QuantFormat::F32, |e| e.gate.format);
        Ok((format, Cost { bytes: distinct.iter().map(bytes).sum(), operations }))
    }
}

fn weight_bytes<T: DeviceTensor>(weight: &Weight<T>) -> f64 {
    weight.format.matrix_bytes(weight.out_features(), weight.in_features()) as f64
}

/// Cost of an operation on `count` values that are all read or written once.
fn elementwise(count: usize, operations_each: f64) -> Cost {
    Cost { bytes: 4.0 * count as f64, operations: operations_each * count as f64 }
}

impl OpTable {
    /// Share of the nearest limit: the time that bytes or operations need at least, by the time that passed.
    fn shares(tally: &Tally, limits: CpuLimits) -> (f64, &'static str) {
        let seconds = tally.time.as_secs_f64().max(1e-12);
        let memory = tally.bytes / limits.read_gb / 1e9 / seconds;
        let arithmetic = tally.operations / limits.f32_gflop / 1e9 / seconds;
        if memory >= arithmetic { (memory, "read") } else { (arithmetic, "f32") }
    }

    pub(crate) fn as_text(&self, limits: CpuLimits) -> String {
        let total: f64 = self.ops.iter().map(|(_, tally)| tally.time.as_secs_f64()).sum();
        let mut text = format!("\n{}: {:.2} ms in operations\n", self.title, 1e3 * total);
        text.push_str("operation             calls        MB     MFLOP        ms   of time   of limit\n");
        for (kind, tally) in &self.ops {
            let (share, limit) = Self::shares(tally, limits);
            let ms = 1e3 * tally.time.as_secs_f64();
            text.push_str(&format!(
                "{kind:<20}{:>7}{:>10.2}{:>10.1}{ms:>10.2}{:>9.1}%{:>6.0}% {limit}\n",
                tally.calls,
                tally.bytes / 1e6,
                tally.operations / 1e6,
                ms / total / 10.0,
                100.0 * share
            ));
        }
        text
    }

    pub(crate) fn as_json(&self, limits: CpuLimits) -> serde_json::Value {
        let op = |(kind, tally): &(String, Tally)| {
            let (share, limit) = Self::shares(tally, limits);
            json!({
                "op": kind, "calls": tally.calls, "bytes": tally.bytes, "operations": tally.operations,
                "seconds": tally.time.as_secs_f64(), "share": share, "limit": limit,
            })
        };
        json!({"of": self.title, "ops": self.ops.iter().map(op).collect::<Vec<_>>()})
    }
}

impl<B: Backend> Backend for Timed<B> {
    type Tensor = B::Tensor;
    /// What is replayed cannot be clocked by operation.
    type Graph = NoGraph;

    fn info(&self) -> &DeviceInfo {
        self.inner.info()
    }

    fn alloc(&self, spec: &TensorSpec) -> Result<B::Tensor, BackendError> {
        self.inner.alloc(spec)
    }

    fn upload(&self, host: &HostTensor) -> Result<B::Tensor, BackendError> {
        self.inner.upload(host)
    }

    fn write_u32(&self, dst: &mut B::Tensor, values: &[u32]) -> Result<(), BackendError> {
        self.inner.write_u32(dst, values)
    }

    fn zero(&self, dst: &mut B::Tensor, rows: Range<usize>) -> Result<(), BackendError> {
        self.inner.zero(dst, rows)
    }

    fn download(&self, src: &B::Tensor) -> Result<Download<HostTensor>, BackendError> {
        self.inner.download(src)
    }

    fn copy_within(&self, tensor: &mut B::Tensor, from: Range<usize>, to: usize) -> Result<(), BackendError> {
        self.inner.copy_within(tensor, from, to)
    }

    fn read_range(&self, src: &B::Tensor, elements: Range<usize>) -> Result<Download<Vec<u8>>, BackendError> {
        self.inner.read_range(src, elements)
    }

    fn write_range(&self, dst: &mut B::Tensor, at: usize, bytes: &[u8]) -> Result<(), BackendError> {
        self.inner.write_range(dst, at, bytes)
    }

    fn synchronize(&self) -> Result<(), BackendError> {
        self.inner.synchronize()
    }

    fn embed(&self, op: Embed<'_, B::Tensor>) -> Result<(), BackendError> {
        let cost = elementwise(op.rows * op.table.in_features(), 0.0);
        self.clock("embed".into(), cost, |b| b.embed(op))
    }

    fn select_rows(&self, op: SelectRows<'_, B::Tensor>) -> Result<(), BackendError> {
        let cost = elementwise(op.rows * op.x.spec().shape.width(), 0.0);
        self.clock("select_rows".into(), cost, |b| b.select_rows(op))
    }

    fn linear(&self, op: Linear<'_, '_, B::Tensor>) -> Result<(), BackendError> {
        let dims = op.dims()?;
        let cost = Cost {
            bytes: op.parts.iter().map(|part| weight_bytes(part.weight)).sum(),
            operations: 2.0 * (op.rows * dims.in_features * dims.total_out) as f64,
        };
        let widest = op.parts.iter().max_by_key(|part| part.weight.out_features());
        let format = widest.map_or(QuantFormat::F32, |part| part.weight.format);
        self.clock(format!("linear {format:?}"), cost, |b| b.linear(op))
    }

    fn rms_norm(&self, op: RmsNorm<'_, B::Tensor>) -> Result<(), BackendError> {
        let cost = elementwise(2 * op.rows * op.dims()?, 2.0);
        self.clock("rms_norm".into(), cost, |b| b.rms_norm(op))
    }

    fn gated_act(&self, op: GatedAct<'_, B::Tensor>) -> Result<(), BackendError> {
        let cost = elementwise(3 * op.rows * op.dims()?, 10.0);
        self.clock("gated_act".into(), cost, |b| b.gated_act(op))
    }

    fn attn_residual(&self, op: AttnResidual<'_, B::Tensor>) -> Result<(), BackendError> {
        let cost = elementwise((op.sources.len() + 1) * op.rows * op.dims()?, 6.0);
        self.clock("attn_residual".into(), cost, |b| b.attn_residual(op))
    }

    fn kda_prefill(&self, op: Kda<'_, B::Tensor>) -> Result<(), BackendError> {
        let cost = self.kda_cost(op.params.dims, &op.segments)?;
        self.clock("kda_prefill".into(), cost, |b| b.kda_prefill(op))
    }

    fn kda_decode(&self, op: Kda<'_, B::Tensor>) -> Result<(), BackendError> {
        let cost = self.kda_cost(op.params.dims, &op.segments)?;
        self.clock("kda_decode".into(), cost, |b| b.kda_decode(op))
    }

    fn kda_verify(&self, op: KdaVerify<'_, B::Tensor>) -> Result<(), BackendError> {
        // The state is read, and not written.
        let cost = self.kda_cost(op.kda.params.dims, &op.kda.segments)?;
        self.clock("kda_verify".into(), Cost { bytes: cost.bytes / 2.0, ..cost }, |b| b.kda_verify(op))
    }

    fn kda_fold(&self, op: KdaFold<'_, B::Tensor>) -> Result<(), BackendError> {
        let cost = self.kda_cost(op.dims, &op.segments)?;
        self.clock("kda_fold".into(), cost, |b| b.kda_fold(op))
    }

    fn mla_prefill(&self, op: Mla<'_, B::Tensor>) -> Result<(), BackendError> {
        let cost = self.mla_cost(&op)?;
        self.clock("mla_prefill".into(), cost, |b| b.mla_prefill(op))
    }

    fn mla_decode(&self, op: Mla<'_, B::Tensor>) -> Result<(), BackendError> {
        let cost = self.mla_cost(&op)?;
        self.clock("mla_decode".into(), cost, |b| b.mla_decode(op))
    }

    fn moe_route(&self, op: MoeRoute<'_, B::Tensor>) -> Result<(), BackendError> {
        let cost = elementwise(op.rows * op.dims()?.num_experts, 10.0);
        self.clock("moe_route".into(), cost, |b| b.moe_route(op))
    }

    fn moe_experts(&self, op: MoeExperts<'_, B::Tensor>) -> Result<(), BackendError> {
        let (format, cost) = self.experts_cost(&op)?;
        self.clock(format!("moe_experts {format:?}"), cost, |b| b.moe_experts(op))
    }

    fn sample(&self, op: Sample<'_, B::Tensor>) -> Result<Download<Vec<SampledRow>>, BackendError> {
        let cost = elementwise(op.rows.len() * op.logits.spec().shape.width(), 1.0);
        self.clock("sample".into(), cost, |b| b.sample(op).and_then(Download::wait)).map(Download::ready)
    }
}
