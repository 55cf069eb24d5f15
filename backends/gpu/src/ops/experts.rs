//! Routed experts: pairs by expert, gate and up, down, the sum of each row.

use perilune_backend::{BackendError, DeviceTensor, Expert, MoeExperts, Weight, Write};
use perilune_kernels_dsl::moe_experts::{
    EXPERT_WORDS, MoeExpertsPlan, MoeExpertsProblem, MoeProductPlan, MoeStep, Pairs,
};
use perilune_kernels_dsl::{Scalar, Weights};

use super::activation::parameters;
use super::linear::{input_load_bytes, weights};
use crate::launcher::{Argument, Arguments};
use crate::scratch::{Purpose, ScratchBuffer};
use crate::tables::{Spread, Table};
use crate::{Driver, Gpu, GpuTensor, Region};

/// Bytes of activations between the kernels of a pass.
const BUDGET: usize = 256 << 20;

pub(crate) fn moe_experts<D: Driver>(gpu: &Gpu<D>, op: MoeExperts<'_, GpuTensor<D>>) -> Result<(), BackendError> {
    let dims = op.dims()?;
    if op.rows == 0 {
        return Ok(());
    }
    let (act, b, c) = parameters(op.act);
    let mut problem = MoeExpertsProblem {
        rows: op.rows,
        choices: dims.top_k,
        experts: op.experts.len(),
        width: dims.width,
        inner: dims.inner,
        weights: common_weights(op.experts)?,
        act,
    };
    let rows = problem.rows_per_pass(BUDGET);
    for first in (0..op.rows).step_by(rows) {
        problem.rows = rows.min(op.rows - first);
        Pass { gpu, op: &op, problem, first, caps: [b.into(), c.into()] }.run()?;
    }
    Ok(())
}

/// The format of all experts.
fn common_weights<D: Driver>(experts: &[Expert<GpuTensor<D>>]) -> Result<Weights, BackendError> {
    let mut formats = experts.iter().flat_map(|e| [e.gate.format, e.up.format, e.down.format]);
    let first = formats.next();
    match first {
        Some(format) if formats.all(|f| f == format) => weights("moe_experts", format),
        _ => Err(BackendError::Unsupported { op: "moe_experts", what: "experts of several formats in a layer".into() }),
    }
}

/// Consecutive rows of a call.
struct Pass<'a, 'o, D: Driver> {
    gpu: &'a Gpu<D>,
    op: &'a MoeExperts<'o, GpuTensor<D>>,
    problem: MoeExpertsProblem,
    /// First row.
    first: usize,
    caps: [Scalar; 2],
}

/// The buffers that say which pairs belong to which expert.
struct Grouping<D: Driver> {
    tiles: ScratchBuffer<D>,
    list: ScratchBuffer<D>,
}

/// One matrix, or two, of every expert.
struct Stored<D: Driver> {
    table: Table<D>,
    weights: Region,
    scales: Option<Region>,
    reach: Vec<Region>,
}

impl<D: Driver> Pass<'_, '_, D> {
    fn run(&self) -> Result<(), BackendError> {
        let p = &self.problem;
        let plan = p.plan(self.gpu.target());
        let pairs = p.rows * p.choices;
        let x = self.rows(self.op.x, p.width * 4)?;
        let ids = Argument { region: self.rows(self.op.ids, p.choices * 4)?, element_bytes: 4 };
        let grouping = if plan.pairs == Pairs::Grouped { Some(self.group(&plan, ids)?) } else { None };
        let inner = self.gpu.scratch((Purpose::InnerOfExperts, pairs * p.inner * 4))?;
        let products = self.gpu.scratch((Purpose::ProductsOfExperts, pairs * p.width * 4))?;
        let lists = match &grouping {
            Some(g) => [g.tiles.argument(4), g.list.argument(4)],
            None => [ids, ids],
        };
        let load = |product: &MoeProductPlan| input_load_bytes(p.weights, product.variant.vector);
        let x = Argument { region: x, element_bytes: load(&plan.gate_up) };
        let stored = self.stored(&plan.gate_up, |e| [&e.gate, &e.up])?;
        self.product(&plan.gate_up, &stored, ([x, ids, lists[0], lists[1], inner.argument(4)], (p.choices, p.inner)))?;
        let stored = self.stored(&plan.down, |e| [&e.down, &e.down])?;
        let input = inner.argument(load(&plan.down));
        self.product(&plan.down, &stored, ([input, ids, lists[0], lists[1], products.argument(4)], (1, p.width)))?;
        self.combine(&plan, products.argument(4))
    }

    /// This pass's rows of a tensor.
    fn rows(&self, tensor: &GpuTensor<D>, row_bytes: usize) -> Result<Region, BackendError> {
        let region = tensor.region().part(self.first * row_bytes, self.problem.rows * row_bytes);
        region.ok_or_else(|| BackendError::Device(format!("rows from {} on of {}", self.first, tensor.spec())))
    }

    fn group(&self, plan: &MoeExpertsPlan, ids: Argument) -> Result<Grouping<D>, BackendError> {
        let p = &self.problem;
        let pairs = p.rows * p.choices;
        let counts = self.gpu.scratch((Purpose::PairCounts, p.experts * 4))?;
        let tiles = self.gpu.scratch((Purpose::PairTiles, plan.slots * 12))?;
        let list = self.gpu.scratch((Purpose::PairList, pairs * 4))?;
        let count = Arguments {
            cubes: [p.experts, 1],
            buffers: &[ids, counts.argument(4)],
            scalars: &[pairs.into()],
            reach: &[],
        };
        self.gpu.launch(plan.step(MoeStep::Count), count)?;
        let place = Arguments {
            cubes: [p.experts, 1],
            buffers: &[ids, counts.argument(4), tiles.argument(4), list.argument(4)],
            scalars: &[pairs.into(), p.experts.into(), plan.slots.into(), plan.tile_rows.into()],
            reach: &[],
        };
        self.gpu.launch(plan.step(MoeStep::Place), place)?;
        Ok(Grouping { tiles, list })
    }

    /// Where the matrices that `pick` names lie.
    fn stored<'e>(
        &'e self,
        plan: &MoeProductPlan,
        pick: impl Fn(&'e Expert<GpuTensor<D>>) -> [&'e Weight<GpuTensor<D>>; 2],
    ) -> Result<Stored<D>, BackendError> {
        let matrices: Vec<&Weight<GpuTensor<D>>> = self.op.experts.iter().flat_map(pick).collect();
        let regions: Vec<Region> = matrices.iter().map(|w| w.data.region()).collect();
        let scales: Vec<Region> = matrices.iter().filter_map(|w| w.scales.as_ref()).map(GpuTensor::region).collect();
        let weights = Spread::new(&regions, self.problem.weights.size_bytes(plan.variant.vector))?;
        let spread = if scales.is_empty() { None } else { Some(Spread::new(&scales, 1)?) };
        let mut words = Vec::with_capacity(self.op.experts.len() * EXPERT_WORDS);
        for i in 0..matrices.len() {
            words.extend([weights.offsets[i], spread.as_ref().map_or(0, |s| s.offsets[i])]);
        }
        let table = self.gpu.table(words)?;
        Ok(Stored { table, weights: weights.base, scales: spread.map(|s| s.base), reach: [regions, scales].concat() })
    }

    /// `buffers`: input, ids, tiles, list, output; `sizes`: pairs that share an input row, outputs.
    fn product(
        &self,
        plan: &MoeProductPlan,
        stored: &Stored<D>,
        (buffers, sizes): ([Argument; 5], (usize, usize)),
    ) -> Result<(), BackendError> {
        let [input, ids, tiles, list, out] = buffers;
        let element_bytes = self.problem.weights.size_bytes(plan.variant.vector);
        let mut all = vec![input, Argument { region: stored.weights, element_bytes }];
        all.extend(stored.scales.map(|region| Argument { region, element_bytes: 1 }));
        all.extend([stored.table.argument, ids, tiles, list, out]);
        let scalars = [sizes.0.into(), plan.loads.into(), sizes.1.into(), self.caps[0], self.caps[1]];
        let arguments = Arguments { cubes: plan.cubes, buffers: &all, scalars: &scalars, reach: &stored.reach };
        self.gpu.launch(plan.kernel(), arguments)
    }

    fn combine(&self, plan: &MoeExpertsPlan, products: Argument) -> Result<(), BackendError> {
        let p = &self.problem;
        let variant = plan.step(MoeStep::Combine);
        let elements = p.rows * p.width;
        let weights = Argument { region: self.rows(self.op.weights, p.choices * 4)?, element_bytes: 4 };
        let out = Argument { region: self.rows(self.op.out, p.width * 4)?, element_bytes: 4 };
        let add = u32::from(self.op.write == Write::Add);
        let arguments = Arguments {
            cubes: [elements.div_ceil(variant.geometry().units), 1],
            buffers: &[products, weights, out],
            scalars: &[elements.into(), p.width.into(), p.choices.into(), add.into()],
            reach: &[],
        };
        self.gpu.launch(variant, arguments)
    }
}
