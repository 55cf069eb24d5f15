//! From the target's streams to what every layer of the draft keeps of a token (`kimi-k3.md` 6.1, steps 2 and 3).

use perilune_backend::{
    Backend, BackendError, DeviceTensor, DraftAppend, DraftPages, Linear, LinearPart, RmsNorm, RotaryTable, SelectRows,
    UnitLayout, Write,
};

use perilune_model::TappedRows;

use super::model::{Context, Model};
use super::space::ContextSpace;
use crate::TappedStep;

/// Where a layer keeps its rows in a block that also holds other layers'.
pub(super) fn layer_at(context: UnitLayout, layer: usize, (block_size, width): (usize, usize)) -> UnitLayout {
    UnitLayout { offset: context.offset + layer * block_size * width, ..context }
}

impl<T: DeviceTensor> Model<T> {
    /// Takes in rows.
    pub(super) fn observe<B: Backend<Tensor = T>>(
        &self,
        (backend, eps): (&B, f32),
        space: &mut ContextSpace<T>,
        step: TappedStep<'_, B>,
    ) -> Result<(), BackendError> {
        let TappedRows { count: rows, order, forms } = step.rows;
        if rows == 0 {
            return Ok(());
        }
        self.context.mix((backend, eps, rows), step.taps, space)?;
        let [ordered, mixed] = &mut space.sum;
        let x = match order {
            None => mixed,
            Some(index) => {
                backend.select_rows(SelectRows { rows, x: mixed, index, out: ordered })?;
                ordered
            }
        };
        let mut parts: Vec<LinearPart<'_, T>> =
            self.layers.iter().zip(&mut space.rows).map(|(layer, out)| LinearPart::replace(&layer.rows, out)).collect();
        backend.linear(Linear { rows, x, parts: &mut parts })?;
        let block_size = step.caches.shape().block_size;
        let (arena, context) = step.caches.draft_context();
        for &(segments, _) in &forms {
            let out = &mut space.rotary;
            backend.rotary_table(RotaryTable {
                segments,
                frequencies: &self.frequencies,
                amplitude: self.amplitude,
                out,
            })?;
        }
        for (index, (layer, rows)) in self.layers.iter().zip(&space.rows).enumerate() {
            let at = layer_at(context, index, (block_size, layer.attn.row_width()));
            for &(segments, tables) in &forms {
                backend.draft_append(DraftAppend {
                    params: &layer.attn,
                    segments,
                    pages: DraftPages { tables, at, block_size },
                    rotary: &space.rotary,
                    rows,
                    arena: &mut *arena,
                })?;
            }
        }
        Ok(())
    }
}

impl<T: DeviceTensor> Context<T> {
    /// The normed sum of the projected streams, in the second tensor of `space.sum`.
    fn mix<B: Backend<Tensor = T>>(
        &self,
        (backend, eps, rows): (&B, f32, usize),
        taps: &[T],
        space: &mut ContextSpace<T>,
    ) -> Result<(), BackendError> {
        if taps.len() != self.projections.len() {
            return Err(BackendError::Mismatch {
                op: "observe",
                field: "taps",
                found: format!("{} streams", taps.len()),
                expected: self.projections.len().to_string(),
            });
        }
        let [sum, normed] = &mut space.sum;
        for (i, (tap, weight)) in taps.iter().zip(&self.projections).enumerate() {
            let x = match self.tap_norms.get(i) {
                None => tap,
                Some(weight) => {
                    backend.rms_norm(RmsNorm { rows, x: tap, weight, eps, out: &mut space.tap })?;
                    &space.tap
                }
            };
            let write = if i == 0 { Write::Replace } else { Write::Add };
            backend.linear(Linear { rows, x, parts: &mut [LinearPart { weight, out: &mut *sum, write }] })?;
        }
        backend.rms_norm(RmsNorm { rows, x: sum, weight: &self.norm, eps, out: normed })
    }
}
