//! Routed experts: rows are grouped by expert, so that each expert's weights are read once for all rows that chose it.

use std::ops::Range;

use perilune_backend::{Activation, BackendError, Expert, MoeExperts, MoeExpertsDims, Write};

use crate::CpuBackend;
use crate::activation::Activate;
use crate::linear::{Cut, feature_blocks};
use crate::matrix::Matrix;
use crate::prepared::Prepared;
use crate::product::{Outputs, Pick, Product};
use crate::runs::fault;
use crate::simd::{Kernel, Simd};
use crate::tensor::{CpuTensor, Parted};

/// Working memory, in `f32` values: 256 MiB. Rows beyond it are worked on in a second pass over the experts.
const MAX_SCRATCH: usize = 1 << 26;

/// `out = Σ_j weights_j · down_e(act(gate_e x, up_e x))`.
pub(crate) fn moe_experts(cpu: &CpuBackend, op: MoeExperts<'_, CpuTensor>) -> Result<(), BackendError> {
    let dims = op.dims()?;
    let ids = &op.ids.u32()?[..op.rows * dims.top_k];
    if let Some(bad) = ids.iter().find(|e| **e as usize >= op.experts.len()) {
        return Err(fault("moe_experts", "ids", bad.to_string(), format!("below {}", op.experts.len())));
    }
    let layer = Layer {
        cpu,
        dims,
        x: op.x.f32()?,
        weights: op.weights.f32()?,
        experts: op.experts,
        act: op.act,
        out: op.out.parted()?,
        write: op.write,
    };
    let per_row = dims.top_k * (2 * dims.inner + dims.width);
    let rows_at_once = (MAX_SCRATCH / per_row.max(1)).max(1);
    for first in (0..op.rows).step_by(rows_at_once) {
        let last = op.rows.min(first + rows_at_once);
        layer.rows(first..last, &ids[first * dims.top_k..last * dims.top_k])?;
    }
    Ok(())
}

struct Layer<'a> {
    cpu: &'a CpuBackend,
    dims: MoeExpertsDims,
    x: &'a [f32],
    weights: &'a [f32],
    experts: &'a [Expert<CpuTensor>],
    act: Activation,
    out: Parted<'a, f32>,
    write: Write,
}

/// Choices in the order of their experts. A choice is one (row, expert) pair.
struct Grouped {
    /// Experts that anybody chose, with the range of their choices.
    active: Vec<(usize, Range<usize>)>,
    /// Row of each choice in that order.
    rows: Vec<u32>,
    /// For the `j`-th choice of the `i`-th row, at `i K + j`: where it is in that order.
    places: Vec<u32>,
}

impl Grouped {
    fn new(ids: &[u32], first_row: usize, (num_experts, top_k): (usize, usize)) -> Grouped {
        let mut ends = vec![0; num_experts + 1];
        ids.iter().for_each(|e| ends[*e as usize + 1] += 1);
        for e in 0..num_experts {
            ends[e + 1] += ends[e];
        }
        let ranges = (0..num_experts).map(|e| (e, ends[e]..ends[e + 1]));
        let active = ranges.filter(|(_, range)| !range.is_empty()).collect();
        let (mut rows, mut places) = (vec![0; ids.len()], vec![0; ids.len()]);
        for (choice, e) in ids.iter().enumerate() {
            let place = &mut ends[*e as usize];
            rows[*place] = (first_row + choice / top_k) as u32;
            places[choice] = *place as u32;
            *place += 1;
        }
        Grouped { active, rows, places }
    }

    /// The choices of each active expert.
    fn choices(&self) -> impl Iterator<Item = Range<usize>> + Clone {
        self.active.iter().map(|(_, choices)| choices.clone())
    }
}

impl Layer<'_> {
    fn rows(&self, rows: Range<usize>, ids: &[u32]) -> Result<(), BackendError> {
        let MoeExpertsDims { width, inner, top_k } = self.dims;
        let grouped = Grouped::new(ids, rows.start, (self.experts.len(), top_k));
        let mut scratch = self.cpu.scratch().take(ids.len() * (2 * inner + width))?;
        let (hidden, rest) = scratch.split_at_mut(ids.len() * inner);
        let (up, down) = rest.split_at_mut(ids.len() * inner);
        self.hidden(&grouped, &Parted::new(hidden), &Parted::new(up))?;
        self.down(&grouped, hidden, &Parted::new(down))?;
        self.combine(rows, &grouped, down)
    }

    /// `hidden = act(gate_e x, up_e x)` of every choice.
    fn hidden(&self, grouped: &Grouped, hidden: &Parted<'_, f32>, up: &Parted<'_, f32>) -> Result<(), BackendError> {
        let MoeExpertsDims { width, inner, .. } = self.dims;
        let blocks = feature_blocks(self.cpu, grouped.active.iter().map(|_| inner), Cut { width, row_blocks: 1 });
        let work = grouped.rows.len() * width * inner * 2;
        let formats = self.experts.iter().flat_map(|expert| [expert.gate.format, expert.up.format]);
        let all = Pick::Listed(&grouped.rows);
        let prepared = Prepared::new(self.cpu, (self.x, width), (all, grouped.choices()), formats)?;
        self.cpu.parallel(blocks.len(), work, |thread, task| {
            let (index, range) = &blocks[task];
            let (expert, choices) = &grouped.active[*index];
            let expert = &self.experts[*expert];
            for (weight, data) in [(&expert.gate, hidden), (&expert.up, up)] {
                let pick = Pick::Listed(&grouped.rows[choices.clone()]);
                let (rows, weight) = (choices.len(), Matrix::of(weight));
                let out = self.outputs(data, (inner, range.start), choices.start);
                let product = Product { rows, x: self.x, pick, weight, range: range.clone(), out };
                prepared.multiply(&product, choices.start, thread);
            }
            for choice in choices.clone() {
                let part = choice * inner + range.start..choice * inner + range.end;
                // SAFETY: the task owns these features of these choices.
                let (gate, up) = unsafe { (hidden.part(part.clone()), up.part(part)) };
                self.cpu.level().run(Activate { act: self.act, gate, up });
            }
        })
    }

    /// `down_e hidden` of every choice.
    fn down(&self, grouped: &Grouped, hidden: &[f32], down: &Parted<'_, f32>) -> Result<(), BackendError> {
        let MoeExpertsDims { width, inner, .. } = self.dims;
        let blocks =
            feature_blocks(self.cpu, grouped.active.iter().map(|_| width), Cut { width: inner, row_blocks: 1 });
        let (all, formats) = (Pick::From(0), self.experts.iter().map(|expert| expert.down.format));
        let prepared = Prepared::new(self.cpu, (hidden, inner), (all, grouped.choices()), formats)?;
        self.cpu.parallel(blocks.len(), grouped.rows.len() * width * inner, |thread, task| {
            let (index, range) = &blocks[task];
            let (expert, choices) = &grouped.active[*index];
            let weight = Matrix::of(&self.experts[*expert].down);
            let (rows, pick) = (choices.len(), Pick::From(choices.start));
            let out = self.outputs(down, (width, range.start), choices.start);
            let product = Product { rows, x: hidden, pick, weight, range: range.clone(), out };
            prepared.multiply(&product, choices.start, thread);
        })
    }

    fn outputs<'o>(
        &self,
        data: &'o Parted<'o, f32>,
        (width, column): (usize, usize),
        first_choice: usize,
    ) -> Outputs<'o> {
        Outputs { data, width, column, pick: Pick::From(first_choice), write: Write::Replace }
    }

    /// The weighted sum of each row, in the order of its choices.
    fn combine(&self, rows: Range<usize>, grouped: &Grouped, down: &[f32]) -> Result<(), BackendError> {
        let MoeExpertsDims { width, top_k, .. } = self.dims;
        self.cpu.parallel(rows.len(), rows.len() * width * top_k, |_, i| {
            let row = rows.start + i;
            // SAFETY: each task has a row of its own.
            let out = unsafe { self.out.row(row, width) };
            let weights = &self.weights[row * top_k..(row + 1) * top_k];
            let places = &grouped.places[i * top_k..(i + 1) * top_k];
            self.cpu.level().run(Combine { weights, places, down, out, write: self.write });
        })
    }
}

struct Combine<'a> {
    weights: &'a [f32],
    places: &'a [u32],
    down: &'a [f32],
    out: &'a mut [f32],
    write: Write,
}

impl Kernel for Combine<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let width = self.out.len();
        for i in (0..width).step_by(S::LANES) {
            let mut sum = s.splat(0.0);
            for (weight, place) in self.weights.iter().zip(self.places) {
                let row = &self.down[*place as usize * width..(*place as usize + 1) * width];
                sum = s.fma(s.splat(*weight), s.load(row, i), sum);
            }
            if self.write == Write::Add {
                sum = s.add(s.load(self.out, i), sum);
            }
            s.store(self.out, i, sum);
        }
    }
}
