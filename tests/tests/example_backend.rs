//! A backend in a hundred lines, as one begins: operations that are not written yet are another backend's, the first own
//! ones download, call the reference, and upload. `docs/backends.md` follows it.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // all of it is test code

use std::ops::Range;

use perilune_backend::*;
use perilune_cpu::{CpuBackend, CpuOptions, CpuTensor};
use perilune_reference::{activation, norm};
use perilune_tensor::{HostTensor, TensorSpec};

/// A device that borrows the memory, and most operations, of the CPU backend.
struct Example {
    rest: CpuBackend,
    info: DeviceInfo,
}

impl Example {
    fn new() -> Example {
        let rest = CpuBackend::new(CpuOptions { threads: Some(1), ..CpuOptions::default() }).unwrap();
        let info = DeviceInfo { name: "example".into(), ..rest.info().clone() };
        Example { rest, info }
    }

    fn values(&self, tensor: &CpuTensor) -> Result<Vec<f32>, BackendError> {
        Ok(self.download(tensor)?.wait()?.to_f32())
    }

    /// Overwrites a tensor from its first element on.
    fn store(&self, dst: &mut CpuTensor, values: &[f32]) -> Result<(), BackendError> {
        self.write_range(dst, 0, &values.iter().flat_map(|v| v.to_le_bytes()).collect::<Vec<u8>>())
    }
}

/// Methods that are the other backend's.
macro_rules! borrowed {
    ($($name:ident($($arg:ident: $type:ty),*) -> $result:ty;)*) => {
        $(fn $name(&self, $($arg: $type),*) -> Result<$result, BackendError> {
            self.rest.$name($($arg),*)
        })*
    };
}

impl Backend for Example {
    type Tensor = CpuTensor;
    type Graph = NoGraph;

    fn info(&self) -> &DeviceInfo {
        &self.info
    }

    /// The first own operation: shapes are checked by the struct, `rows` says how many count.
    fn rms_norm(&self, op: RmsNorm<'_, CpuTensor>) -> Result<(), BackendError> {
        let width = op.dims()?;
        let (x, weight) = (self.values(op.x)?, self.values(op.weight)?);
        let rows = x.chunks(width.max(1)).take(op.rows);
        let out: Vec<f32> = rows.flat_map(|row| norm::rms_norm(row, &weight, op.eps)).collect();
        self.store(op.out, &out)
    }

    fn gated_act(&self, op: GatedAct<'_, CpuTensor>) -> Result<(), BackendError> {
        let count = op.dims()? * op.rows;
        let act = |gate: f32, up: f32| match op.act {
            Activation::Silu => activation::silu_glu(gate, up),
            Activation::Situ { beta, linear_beta } => activation::situ_glu(gate, up, beta, linear_beta),
        };
        let (gate, up) = (self.values(op.gate)?, self.values(op.up)?);
        let out: Vec<f32> = gate.iter().zip(&up).take(count).map(|(gate, up)| act(*gate, *up)).collect();
        self.store(op.out, &out)
    }

    borrowed! {
        alloc(spec: &TensorSpec) -> CpuTensor;
        upload(host: &HostTensor) -> CpuTensor;
        write_u32(dst: &mut CpuTensor, values: &[u32]) -> ();
        zero(dst: &mut CpuTensor, rows: Range<usize>) -> ();
        download(src: &CpuTensor) -> Download<HostTensor>;
        copy_within(tensor: &mut CpuTensor, from: Range<usize>, to: usize) -> ();
        read_range(src: &CpuTensor, elements: Range<usize>) -> Download<Vec<u8>>;
        write_range(dst: &mut CpuTensor, at: usize, bytes: &[u8]) -> ();
        synchronize() -> ();
        embed(op: Embed<'_, CpuTensor>) -> ();
        select_rows(op: SelectRows<'_, CpuTensor>) -> ();
        linear(op: Linear<'_, '_, CpuTensor>) -> ();
        attn_residual(op: AttnResidual<'_, CpuTensor>) -> ();
        kda_prefill(op: Kda<'_, CpuTensor>) -> ();
        kda_decode(op: Kda<'_, CpuTensor>) -> ();
        kda_verify(op: KdaVerify<'_, CpuTensor>) -> ();
        kda_fold(op: KdaFold<'_, CpuTensor>) -> ();
        mla_prefill(op: Mla<'_, CpuTensor>) -> ();
        mla_decode(op: Mla<'_, CpuTensor>) -> ();
        moe_route(op: MoeRoute<'_, CpuTensor>) -> ();
        moe_experts(op: MoeExperts<'_, CpuTensor>) -> ();
        sample(op: Sample<'_, CpuTensor>) -> Download<Vec<SampledRow>>;
    }
}

perilune_conformance::conformance_tests!(Example::new());

/// And the whole model, which is what it is for.
#[test]
fn the_tiny_models_run_on_it() {
    for tag in ["k3", "kl"] {
        let mut golden = perilune_tests::Golden::on(Example::new(), tag);
        let ids = golden.ids.clone();
        let rows = golden.bench.chunked(0, &ids, &[7, 1, 16]);
        golden.check_logits(&rows, (tag, 1e-4));
    }
}
