//! The backend: its options, its memory operations, and the way from each operation to its file.

use std::ops::Range;

use perilune_backend::{
    AttnResidual, Backend, BackendError, DeviceInfo, DeviceTensor, Download, DraftAppend, DraftAttend, Embed, GatedAct,
    Kda, KdaFold, KdaVerify, Linear, Mla, MoeExperts, MoeRoute, NoGraph, RmsNorm, RotaryTable, Sample, SampledRow,
    SelectRows, check_elements,
};
use perilune_tensor::{DType, HostTensor, QuantFormat, TensorSpec};

use crate::pool::{Pinning, Pool};
use crate::scratch::Scratch;
use crate::tensor::CpuTensor;
use crate::{
    SimdLevel, activation, cores, draft, embed, kda, kda_replay, linear, memory, mla, moe, norm, residual, route,
    sample,
};

/// How KDA runs of many tokens are computed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum KdaPrefill {
    /// Token by token as in decode: the same bits for any chunking.
    #[default]
    Recurrent,
    /// 64 tokens at once (`kimi-k3.md` 3.3, chunkwise form): the same values up to rounding. Where it was measured (two
    /// threads with AVX-512, 32 heads of 128, 512 tokens) it took half as long again as the recurrence.
    Chunkwise,
}

/// How a backend is set up. The default fits a machine that serves and does nothing else.
#[derive(Debug, Clone, Default)]
pub struct CpuOptions {
    /// Threads, the calling one included; `None` for one per physical core that the process may use.
    pub threads: Option<usize>,
    /// Instruction set; `None` for the best of the processor. The only option besides `kda_prefill` that changes bits.
    pub simd: Option<SimdLevel>,
    /// How KDA runs of many tokens are computed.
    pub kda_prefill: KdaPrefill,
    /// Whether threads are tied to processors.
    pub pinning: Pinning,
    /// Memory that tensors may use, in bytes; `None` for what the machine has available.
    pub memory_bytes: Option<usize>,
}

/// The CPU as a device. Operations have finished when their call returns.
pub struct CpuBackend {
    pool: Pool,
    level: SimdLevel,
    kda_prefill: KdaPrefill,
    scratch: Scratch,
    info: DeviceInfo,
}

/// Work, in multiply-adds, below which waking other threads costs more than it saves.
const SERIAL_WORK: usize = 1 << 15;

impl CpuBackend {
    /// Starts the threads.
    ///
    /// # Errors
    /// `Unsupported` for a SIMD level that the processor lacks; `Device` where the system refuses a thread.
    pub fn new(options: CpuOptions) -> Result<CpuBackend, BackendError> {
        let level = SimdLevel::choose(options.simd)?;
        let threads = options.threads.unwrap_or_else(cores::physical).max(1);
        let pool = Pool::new(threads, options.pinning)?;
        let info = DeviceInfo {
            name: format!("cpu, {threads} threads, {level:?}"),
            memory_bytes: options.memory_bytes.unwrap_or_else(memory::available_bytes),
            formats: vec![
                QuantFormat::F32,
                QuantFormat::Bf16,
                QuantFormat::F16,
                QuantFormat::Mxfp4,
                QuantFormat::Int8,
                QuantFormat::Int4,
            ],
        };
        Ok(CpuBackend { pool, level, kda_prefill: options.kda_prefill, scratch: Scratch::default(), info })
    }

    /// The instruction set in use.
    pub fn level(&self) -> SimdLevel {
        self.level
    }

    /// Number of threads, the calling one included.
    pub fn num_threads(&self) -> usize {
        self.pool.num_threads()
    }

    pub(crate) fn scratch(&self) -> &Scratch {
        &self.scratch
    }

    /// Runs `body(thread, task)` for every task; on the calling thread alone where `work` multiply-adds are too few.
    pub(crate) fn parallel(
        &self,
        tasks: usize,
        work: usize,
        body: impl Fn(usize, usize) + Sync,
    ) -> Result<(), BackendError> {
        if work >= SERIAL_WORK {
            return self.pool.run(tasks, body);
        }
        self.pool.run(1, |thread, _| (0..tasks).for_each(|task| body(thread, task)))
    }
}

impl std::fmt::Debug for CpuBackend {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "CpuBackend({})", self.info.name)
    }
}

fn mismatch(op: &'static str, field: &'static str, found: impl ToString, expected: String) -> BackendError {
    BackendError::Mismatch { op, field, found: found.to_string(), expected }
}

impl Backend for CpuBackend {
    type Tensor = CpuTensor;
    type Graph = NoGraph;

    fn info(&self) -> &DeviceInfo {
        &self.info
    }

    fn alloc(&self, spec: &TensorSpec) -> Result<CpuTensor, BackendError> {
        CpuTensor::zeros(spec)
    }

    fn upload(&self, host: &HostTensor) -> Result<CpuTensor, BackendError> {
        CpuTensor::share(host)
    }

    fn write_u32(&self, dst: &mut CpuTensor, values: &[u32]) -> Result<(), BackendError> {
        let spec = dst.spec().clone();
        if spec.dtype != DType::U32 || spec.shape.numel() < values.len() {
            return Err(mismatch("write_u32", "dst", spec, format!("U32 with at least {} elements", values.len())));
        }
        dst.elements_mut::<u32>()?[..values.len()].copy_from_slice(values);
        Ok(())
    }

    fn zero(&self, dst: &mut CpuTensor, rows: Range<usize>) -> Result<(), BackendError> {
        let count = dst.spec().shape.dims().first().copied().unwrap_or(1);
        if rows.start > rows.end || rows.end > count {
            return Err(mismatch("zero", "rows", format!("{rows:?}"), format!("within 0..{count}")));
        }
        let row_bytes = dst.spec().size_bytes() / count.max(1);
        dst.bytes_mut()?[rows.start * row_bytes..rows.end * row_bytes].fill(0);
        Ok(())
    }

    fn download(&self, src: &CpuTensor) -> Result<Download<HostTensor>, BackendError> {
        let copy = HostTensor::from_vec(src.spec().clone(), src.bytes().to_vec());
        copy.map(Download::ready).ok_or_else(|| BackendError::Device(format!("{src:?} does not hold its bytes")))
    }

    fn copy_within(&self, tensor: &mut CpuTensor, from: Range<usize>, to: usize) -> Result<(), BackendError> {
        let target = to..to.saturating_add(from.len());
        check_elements("copy_within", tensor.spec(), &from)?;
        check_elements("copy_within", tensor.spec(), &target)?;
        if from.start < target.end && target.start < from.end {
            return Err(mismatch("copy_within", "to", to, format!("a place apart from {from:?}")));
        }
        let size = tensor.spec().dtype.size_bytes();
        tensor.bytes_mut()?.copy_within(from.start * size..from.end * size, to * size);
        Ok(())
    }

    fn read_range(&self, src: &CpuTensor, elements: Range<usize>) -> Result<Download<Vec<u8>>, BackendError> {
        check_elements("read_range", src.spec(), &elements)?;
        let size = src.spec().dtype.size_bytes();
        Ok(Download::ready(src.bytes()[elements.start * size..elements.end * size].to_vec()))
    }

    fn write_range(&self, dst: &mut CpuTensor, at: usize, bytes: &[u8]) -> Result<(), BackendError> {
        let size = dst.spec().dtype.size_bytes();
        if !bytes.len().is_multiple_of(size) {
            return Err(mismatch("write_range", "bytes", bytes.len(), format!("a multiple of {size}")));
        }
        check_elements("write_range", dst.spec(), &(at..at.saturating_add(bytes.len() / size)))?;
        dst.bytes_mut()?[at * size..at * size + bytes.len()].copy_from_slice(bytes);
        Ok(())
    }

    fn synchronize(&self) -> Result<(), BackendError> {
        Ok(())
    }

    fn embed(&self, op: Embed<'_, CpuTensor>) -> Result<(), BackendError> {
        embed::embed(self, op)
    }

    fn select_rows(&self, op: SelectRows<'_, CpuTensor>) -> Result<(), BackendError> {
        embed::select_rows(self, op)
    }

    fn linear(&self, op: Linear<'_, '_, CpuTensor>) -> Result<(), BackendError> {
        linear::linear(self, op)
    }

    fn rms_norm(&self, op: RmsNorm<'_, CpuTensor>) -> Result<(), BackendError> {
        norm::rms_norm(self, op)
    }

    fn gated_act(&self, op: GatedAct<'_, CpuTensor>) -> Result<(), BackendError> {
        activation::gated_act(self, op)
    }

    fn attn_residual(&self, op: AttnResidual<'_, CpuTensor>) -> Result<(), BackendError> {
        residual::attn_residual(self, op)
    }

    fn kda_prefill(&self, op: Kda<'_, CpuTensor>) -> Result<(), BackendError> {
        kda::kda(self, op, self.kda_prefill)
    }

    fn kda_decode(&self, op: Kda<'_, CpuTensor>) -> Result<(), BackendError> {
        kda::kda(self, op, KdaPrefill::Recurrent)
    }

    fn kda_verify(&self, op: KdaVerify<'_, CpuTensor>) -> Result<(), BackendError> {
        kda_replay::verify(self, op)
    }

    fn kda_fold(&self, op: KdaFold<'_, CpuTensor>) -> Result<(), BackendError> {
        kda_replay::fold(self, op)
    }

    fn mla_prefill(&self, op: Mla<'_, CpuTensor>) -> Result<(), BackendError> {
        mla::mla(self, op)
    }

    fn mla_decode(&self, op: Mla<'_, CpuTensor>) -> Result<(), BackendError> {
        mla::mla(self, op)
    }

    fn rotary_table(&self, op: RotaryTable<'_, CpuTensor>) -> Result<(), BackendError> {
        draft::rotary_table(self, op)
    }

    fn draft_append(&self, op: DraftAppend<'_, CpuTensor>) -> Result<(), BackendError> {
        draft::draft_append(self, op)
    }

    fn draft_attend(&self, op: DraftAttend<'_, CpuTensor>) -> Result<(), BackendError> {
        draft::draft_attend(self, op)
    }

    fn moe_route(&self, op: MoeRoute<'_, CpuTensor>) -> Result<(), BackendError> {
        route::moe_route(self, op)
    }

    fn moe_experts(&self, op: MoeExperts<'_, CpuTensor>) -> Result<(), BackendError> {
        moe::moe_experts(self, op)
    }

    fn sample(&self, op: Sample<'_, CpuTensor>) -> Result<Download<Vec<SampledRow>>, BackendError> {
        sample::sample(self, op).map(Download::ready)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_level_the_processor_lacks_is_refused() {
        let foreign = if cfg!(target_arch = "aarch64") { SimdLevel::Avx2 } else { SimdLevel::Neon };
        let outcome = CpuBackend::new(CpuOptions { simd: Some(foreign), ..CpuOptions::default() });
        assert!(matches!(outcome, Err(BackendError::Unsupported { .. })));
    }

    #[test]
    fn the_default_uses_this_machine() {
        let cpu = CpuBackend::new(CpuOptions::default()).unwrap();
        assert!(cpu.num_threads() >= 1 && cpu.info().memory_bytes > 0);
        assert_eq!(Some(&cpu.level()), SimdLevel::available().last());
    }
}
