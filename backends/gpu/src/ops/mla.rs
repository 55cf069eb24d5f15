//! Multi-head latent attention.

use perilune_backend::{BackendError, DeviceTensor, Mla};
use perilune_kernels_dsl::mla::{MlaPlan, MlaProblem, MlaShape, MlaStage, OutGate, TILE, Tiles};

use super::{buffer, element};
use crate::launcher::{Argument, Arguments};
use crate::scratch::{Purpose, ScratchBuffer};
use crate::{Driver, Gpu, GpuTensor};

/// Rows of all runs of a prefill that are computed at once: their queries and mixtures are in scratch memory.
const PREFILL_ROWS: usize = 1024;

/// Runs of at most [`TILE`] rows.
pub(crate) fn decode<D: Driver>(gpu: &Gpu<D>, op: Mla<'_, GpuTensor<D>>) -> Result<(), BackendError> {
    op.dims()?;
    let plan = problem(&op, Tiles::Across, TILE)?.plan(gpu.target());
    Step { gpu, op: &op, plan, first: 0 }.run()
}

/// Runs of any length, some rows of each at a time.
pub(crate) fn prefill<D: Driver>(gpu: &Gpu<D>, op: Mla<'_, GpuTensor<D>>) -> Result<(), BackendError> {
    op.dims()?;
    // Only the device knows how long runs are: at most every row but one of each other run.
    let longest = (op.q.spec().shape.rows() + 1).saturating_sub(op.segments.count);
    let rows = longest.min((PREFILL_ROWS / op.segments.count.max(1)).max(TILE));
    let plan = problem(&op, Tiles::Along, rows)?.plan(gpu.target());
    (0..longest).step_by(plan.rows).try_for_each(|first| Step { gpu, op: &op, plan, first }.run())
}

fn problem<D: Driver>(op: &Mla<'_, GpuTensor<D>>, tiles: Tiles, rows: usize) -> Result<MlaProblem, BackendError> {
    let dims = op.params.dims;
    let gate = if op.gate.is_some() { OutGate::Sigmoid } else { OutGate::Absent };
    let shape = MlaShape {
        nope: dims.qk_nope_head_dim,
        rope: dims.qk_rope_head_dim,
        value: dims.v_head_dim,
        latent: dims.kv_lora_rank,
        element: element("mla", op.params.kv_b.format)?,
        gate,
    };
    Ok(MlaProblem {
        shape,
        heads: dims.num_heads,
        runs: op.segments.count,
        rows,
        tokens: op.tables.blocks.spec().shape.numel() * op.block_size,
        tiles,
        // The lowest bit that is set in any of them.
        alignment: 1 << (op.latent_at.offset | op.latent_at.stride | 4).trailing_zeros(),
    })
}

/// The four kernels over some rows of each run.
struct Step<'a, 'b, D: Driver> {
    gpu: &'a Gpu<D>,
    op: &'a Mla<'b, GpuTensor<D>>,
    plan: MlaPlan,
    /// First row of each run.
    first: usize,
}

impl<D: Driver> Step<'_, '_, D> {
    fn run(&self) -> Result<(), BackendError> {
        let [queries, mixtures, stats] = self.plan.scratch().map(|elements| elements * 4);
        let queries = &self.gpu.scratch((Purpose::MlaQueries, queries))?;
        let mixtures = &self.gpu.scratch((Purpose::MlaMixtures, mixtures))?;
        let stats = &self.gpu.scratch((Purpose::MlaStats, stats))?;
        self.append()?;
        self.absorb(queries)?;
        self.attend([queries, mixtures, stats])?;
        self.value([mixtures, stats])
    }

    fn launch(
        &self,
        stage: MlaStage,
        arguments: (&[Argument], &[perilune_kernels_dsl::Scalar]),
    ) -> Result<(), BackendError> {
        let (buffers, scalars) = arguments;
        let cubes = self.plan.cubes(stage);
        self.gpu.launch(self.plan.kernel(stage), Arguments { cubes, buffers, scalars, reach: &[] })
    }

    fn block_size(&self) -> Result<u32, BackendError> {
        let what = || BackendError::Unsupported { op: "mla", what: format!("blocks of {}", self.op.block_size) };
        u32::try_from(self.op.block_size).map_err(|_| what())
    }

    fn append(&self) -> Result<(), BackendError> {
        let op = self.op;
        let (segments, tables) = (&op.segments, &op.tables);
        let tensors = [op.kv_a, &op.params.kv_norm, segments.start, segments.len, segments.position];
        let rest = [tables.offset, tables.blocks, &*op.arena];
        let buffers: Vec<Argument> = tensors.into_iter().chain(rest).map(|t| buffer(t, 4)).collect();
        let (at, block_size) = (op.latent_at, self.block_size()?);
        let scalars =
            [at.offset.into(), at.stride.into(), block_size.into(), self.first.into(), op.params.kv_eps.into()];
        self.launch(MlaStage::Append, (&buffers, &scalars))
    }

    fn absorb(&self, queries: &ScratchBuffer<D>) -> Result<(), BackendError> {
        let (op, plan) = (self.op, &self.plan);
        let wide = plan.variant.wide;
        let weight_bytes = wide * plan.variant.shape.element.size_bytes();
        let buffers = [
            buffer(op.q, 4),
            buffer(&op.params.kv_b.data, weight_bytes),
            buffer(op.segments.start, 4),
            buffer(op.segments.len, 4),
            queries.argument(wide * 4),
            queries.argument(4),
        ];
        let dims = op.params.dims;
        let scalars = [
            op.segments.count.into(),
            plan.rows.into(),
            self.first.into(),
            dims.num_heads.into(),
            plan.query_width.into(),
            dims.scale().into(),
        ];
        self.launch(MlaStage::Absorb, (&buffers, &scalars))
    }

    fn attend(&self, [queries, mixtures, stats]: [&ScratchBuffer<D>; 3]) -> Result<(), BackendError> {
        let (op, plan) = (self.op, &self.plan);
        let vector = plan.variant.vector;
        let buffers = [
            queries.argument(vector * 4),
            buffer(op.arena, vector * 4),
            buffer(op.segments.len, 4),
            buffer(op.segments.position, 4),
            buffer(op.tables.offset, 4),
            buffer(op.tables.blocks, 4),
            mixtures.argument(vector * 4),
            stats.argument(4),
        ];
        let scalars = [
            (op.latent_at.offset / vector).into(),
            (op.latent_at.stride / vector).into(),
            self.block_size()?.into(),
            plan.rows.into(),
            self.first.into(),
            op.params.dims.num_heads.into(),
            plan.splits.into(),
            plan.query_width.into(),
            plan.mixture_width.into(),
        ];
        self.launch(MlaStage::Attend, (&buffers, &scalars))
    }

    fn value(&self, [mixtures, stats]: [&ScratchBuffer<D>; 2]) -> Result<(), BackendError> {
        let (op, plan) = (self.op, &self.plan);
        let wide = plan.variant.wide;
        let weight_bytes = wide * plan.variant.shape.element.size_bytes();
        let buffers = [
            mixtures.argument(wide * 4),
            stats.argument(4),
            buffer(&op.params.kv_b.data, weight_bytes),
            // Without a gate it is not read.
            buffer(op.gate.unwrap_or(op.q), 4),
            buffer(op.segments.start, 4),
            buffer(op.segments.len, 4),
            buffer(op.out, 4),
        ];
        let scalars = [
            op.segments.count.into(),
            plan.rows.into(),
            self.first.into(),
            op.params.dims.num_heads.into(),
            plan.splits.into(),
            plan.mixture_width.into(),
        ];
        self.launch(MlaStage::Value, (&buffers, &scalars))
    }
}
