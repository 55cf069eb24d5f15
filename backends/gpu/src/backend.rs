//! The backend: its kernels, and the way from each operation to its file.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};

use perilune_backend::{
    AttnResidual, Backend, BackendError, DeviceInfo, Download, Embed, GatedAct, Kda, KdaFold, KdaVerify, Linear, Mla,
    MoeExperts, MoeRoute, RmsNorm, Sample, SampledRow, SelectRows,
};
use perilune_kernels_dsl::{Target, Variant};
use perilune_tensor::{HostTensor, QuantFormat, TensorSpec};

use crate::launcher::{self, Arguments, Loaded};
use crate::recording::{self, GpuGraph, Recording};
use crate::scratch::{Purpose, Scratch, ScratchBuffer};
use crate::tables::{Table, Tables};
use crate::{Driver, GpuTensor, Kernels, arena, memory, ops};

/// A GPU: a driver and the kernels for it.
pub struct Gpu<D: Driver> {
    driver: D,
    kernels: Box<dyn Kernels>,
    loaded: Mutex<HashMap<Variant, Arc<Loaded<D>>>>,
    tables: Tables<D>,
    scratch: Scratch<D>,
    pub(crate) recording: Recording<D>,
    info: DeviceInfo,
}

impl<D: Driver> Gpu<D> {
    /// A backend on a driver; kernels are loaded when they are first launched.
    pub fn new(driver: D, kernels: impl Kernels) -> Gpu<D> {
        let facts = driver.info();
        let info = DeviceInfo {
            name: facts.name.clone(),
            memory_bytes: facts.memory_bytes,
            formats: vec![QuantFormat::F32, QuantFormat::Bf16, QuantFormat::F16, QuantFormat::Mxfp4],
        };
        Gpu {
            driver,
            kernels: Box::new(kernels),
            loaded: Mutex::default(),
            tables: Tables::default(),
            scratch: Scratch::default(),
            recording: Recording::default(),
            info,
        }
    }

    /// The driver.
    pub fn driver(&self) -> &D {
        &self.driver
    }

    /// What kernels are planned for.
    pub(crate) fn target(&self) -> Target {
        self.driver.info().target
    }

    /// Launches a kernel, loading it first where needed.
    pub(crate) fn launch(&self, variant: Variant, arguments: Arguments<'_>) -> Result<(), BackendError> {
        self.recording.count_node();
        launcher::launch(&self.driver, &*self.load(variant)?, arguments)
    }

    /// A table of these words in device memory.
    pub(crate) fn table(&self, words: Vec<u64>) -> Result<Table<D>, BackendError> {
        let table = self.tables.get((&self.driver, &self.recording), words)?;
        self.recording.keep(&table.memory);
        Ok(table)
    }

    /// A buffer that lives between launches of an operation.
    pub(crate) fn scratch(&self, wanted: (Purpose, usize)) -> Result<ScratchBuffer<D>, BackendError> {
        let buffer = self.scratch.get((&self.driver, &self.recording), wanted)?;
        self.recording.keep(&buffer.memory);
        Ok(buffer)
    }

    fn load(&self, variant: Variant) -> Result<Arc<Loaded<D>>, BackendError> {
        let mut loaded = self.loaded.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(kernel) = loaded.get(&variant) {
            return Ok(kernel.clone());
        }
        self.recording.refuse("loading a kernel")?;
        let artifact = self.kernels.find(&variant, self.target())?;
        launcher::check(&artifact.entry, &variant)?;
        let function = self.driver.load(&artifact)?;
        let kernel = Arc::new(Loaded { entry: artifact.entry, function });
        loaded.insert(variant, kernel.clone());
        Ok(kernel)
    }
}

impl<D: Driver> std::fmt::Debug for Gpu<D> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Gpu({})", self.info.name)
    }
}

impl<D: Driver> Backend for Gpu<D> {
    type Tensor = GpuTensor<D>;
    type Graph = GpuGraph<D>;

    fn info(&self) -> &DeviceInfo {
        &self.info
    }

    fn alloc(&self, spec: &TensorSpec) -> Result<GpuTensor<D>, BackendError> {
        memory::alloc(self, spec)
    }

    fn upload(&self, host: &HostTensor) -> Result<GpuTensor<D>, BackendError> {
        memory::upload(self, host)
    }

    fn write_u32(&self, dst: &mut GpuTensor<D>, values: &[u32]) -> Result<(), BackendError> {
        memory::write_u32(self, dst, values)
    }

    fn zero(&self, dst: &mut GpuTensor<D>, rows: Range<usize>) -> Result<(), BackendError> {
        memory::zero(self, dst, rows)
    }

    fn download(&self, src: &GpuTensor<D>) -> Result<Download<HostTensor>, BackendError> {
        memory::download(self, src)
    }

    fn copy_within(&self, tensor: &mut GpuTensor<D>, from: Range<usize>, to: usize) -> Result<(), BackendError> {
        arena::copy_within(self, tensor, (from, to))
    }

    fn read_range(&self, src: &GpuTensor<D>, elements: Range<usize>) -> Result<Download<Vec<u8>>, BackendError> {
        arena::read_range(self, src, elements)
    }

    fn write_range(&self, dst: &mut GpuTensor<D>, at: usize, bytes: &[u8]) -> Result<(), BackendError> {
        arena::write_range(self, dst, (at, bytes))
    }

    fn synchronize(&self) -> Result<(), BackendError> {
        self.recording.refuse("synchronize")?;
        self.driver.synchronize()
    }

    fn record(&self, body: &mut dyn FnMut() -> Result<(), BackendError>) -> Result<Option<GpuGraph<D>>, BackendError> {
        recording::record(self, body)
    }

    fn replay(&self, graph: &GpuGraph<D>) -> Result<(), BackendError> {
        recording::replay(self, graph)
    }

    fn embed(&self, op: Embed<'_, GpuTensor<D>>) -> Result<(), BackendError> {
        ops::gather::embed(self, op)
    }

    fn select_rows(&self, op: SelectRows<'_, GpuTensor<D>>) -> Result<(), BackendError> {
        ops::gather::select_rows(self, op)
    }

    fn linear(&self, op: Linear<'_, '_, GpuTensor<D>>) -> Result<(), BackendError> {
        ops::linear::linear(self, op)
    }

    fn rms_norm(&self, op: RmsNorm<'_, GpuTensor<D>>) -> Result<(), BackendError> {
        ops::norm::rms_norm(self, op)
    }

    fn gated_act(&self, op: GatedAct<'_, GpuTensor<D>>) -> Result<(), BackendError> {
        ops::activation::gated_act(self, op)
    }

    fn attn_residual(&self, op: AttnResidual<'_, GpuTensor<D>>) -> Result<(), BackendError> {
        ops::residual::attn_residual(self, op)
    }

    fn kda_prefill(&self, op: Kda<'_, GpuTensor<D>>) -> Result<(), BackendError> {
        ops::kda::prefill(self, op)
    }

    fn kda_decode(&self, op: Kda<'_, GpuTensor<D>>) -> Result<(), BackendError> {
        ops::kda::decode(self, op)
    }

    fn kda_verify(&self, op: KdaVerify<'_, GpuTensor<D>>) -> Result<(), BackendError> {
        ops::kda::verify(self, op)
    }

    fn kda_fold(&self, op: KdaFold<'_, GpuTensor<D>>) -> Result<(), BackendError> {
        ops::kda::fold(self, op)
    }

    fn mla_prefill(&self, op: Mla<'_, GpuTensor<D>>) -> Result<(), BackendError> {
        ops::mla::prefill(self, op)
    }

    fn mla_decode(&self, op: Mla<'_, GpuTensor<D>>) -> Result<(), BackendError> {
        ops::mla::decode(self, op)
    }

    fn moe_route(&self, op: MoeRoute<'_, GpuTensor<D>>) -> Result<(), BackendError> {
        ops::route::moe_route(self, op)
    }

    fn moe_experts(&self, op: MoeExperts<'_, GpuTensor<D>>) -> Result<(), BackendError> {
        ops::experts::moe_experts(self, op)
    }

    fn sample(&self, op: Sample<'_, GpuTensor<D>>) -> Result<Download<Vec<SampledRow>>, BackendError> {
        ops::sample::sample(self, op)
    }
}
