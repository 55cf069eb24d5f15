//! One parallel pass over the blocks of some sequences (`kimi-k3.md` 6.1, steps 4 and 5).

use perilune_backend::{
    Activation, Backend, BackendError, BlockMask, DeviceTensor, DraftAttend, DraftPages, Embed, GatedAct, Linear,
    LinearPart, RmsNorm, RotaryTable, UnitLayout, Weight, Write,
};

use super::context::layer_at;
use super::model::{Layer, Model, Query};
use super::space::BlockSpace;

/// What all layers of a pass share.
pub(super) struct Pass<'a, B: Backend> {
    pub(super) backend: &'a B,
    pub(super) rows: usize,
    pub(super) eps: f32,
    pub(super) act: Activation,
    pub(super) mask: BlockMask,
    pub(super) arena: &'a B::Tensor,
    /// Where blocks keep what the draft knows.
    pub(super) context: UnitLayout,
    pub(super) block_size: usize,
}

impl<T: DeviceTensor> Model<T> {
    /// Leaves the residual stream of all rows in `space.hidden`; `space.index` says which they are.
    pub(super) fn pass<B: Backend<Tensor = T>>(
        &self,
        pass: &Pass<'_, B>,
        embedding: &Weight<T>,
        space: &mut BlockSpace<T>,
    ) -> Result<(), BackendError> {
        let (backend, rows) = (pass.backend, pass.rows);
        backend.embed(Embed { rows, table: embedding, ids: &space.index.ids, out: &mut space.hidden })?;
        backend.rotary_table(RotaryTable {
            segments: space.index.segments(),
            frequencies: &self.frequencies,
            amplitude: self.amplitude,
            out: &mut space.rotary,
        })?;
        for (index, layer) in self.layers.iter().enumerate() {
            layer.attention(pass, index, space)?;
            layer.feed_forward(pass, space)?;
        }
        Ok(())
    }
}

impl<T: DeviceTensor> Layer<T> {
    fn attention<B: Backend<Tensor = T>>(
        &self,
        pass: &Pass<'_, B>,
        index: usize,
        space: &mut BlockSpace<T>,
    ) -> Result<(), BackendError> {
        let (backend, rows, eps) = (pass.backend, pass.rows, pass.eps);
        let BlockSpace { index: runs, hidden, normed, low, q, rows: keys, attn, rotary, .. } = space;
        backend.rms_norm(RmsNorm { rows, x: hidden, weight: &self.attn_norm, eps, out: normed })?;
        match (&self.query, low) {
            (Query::Low { low: weight, norm, high }, Some([out, low_normed])) => {
                let mut parts = [LinearPart::replace(weight, &mut *out), LinearPart::replace(&self.rows, &mut *keys)];
                backend.linear(Linear { rows, x: normed, parts: &mut parts })?;
                backend.rms_norm(RmsNorm { rows, x: out, weight: norm, eps, out: low_normed })?;
                backend.linear(Linear { rows, x: low_normed, parts: &mut [LinearPart::replace(high, &mut *q)] })?;
            }
            (Query::Full(full) | Query::Low { high: full, .. }, _) => {
                let mut parts = [LinearPart::replace(full, &mut *q), LinearPart::replace(&self.rows, &mut *keys)];
                backend.linear(Linear { rows, x: normed, parts: &mut parts })?;
            }
        }
        let block_size = pass.block_size;
        let at = layer_at(pass.context, index, (block_size, self.attn.row_width()));
        backend.draft_attend(DraftAttend {
            params: &self.attn,
            segments: runs.segments(),
            pages: DraftPages { tables: runs.tables(), at, block_size },
            rotary,
            mask: pass.mask,
            q,
            rows: keys,
            arena: pass.arena,
            out: &mut *attn,
        })?;
        let part = LinearPart { weight: &self.out, out: hidden, write: Write::Add };
        backend.linear(Linear { rows, x: attn, parts: &mut [part] })
    }

    fn feed_forward<B: Backend<Tensor = T>>(
        &self,
        pass: &Pass<'_, B>,
        space: &mut BlockSpace<T>,
    ) -> Result<(), BackendError> {
        let (backend, rows, eps) = (pass.backend, pass.rows, pass.eps);
        let BlockSpace { hidden, normed, ffn: [gate, up, act], .. } = space;
        backend.rms_norm(RmsNorm { rows, x: hidden, weight: &self.ffn_norm, eps, out: normed })?;
        let mut parts = [LinearPart::replace(&self.gate, &mut *gate), LinearPart::replace(&self.up, &mut *up)];
        backend.linear(Linear { rows, x: normed, parts: &mut parts })?;
        backend.gated_act(GatedAct { rows, act: pass.act, gate, up, out: &mut *act })?;
        let part = LinearPart { weight: &self.down, out: hidden, write: Write::Add };
        backend.linear(Linear { rows, x: act, parts: &mut [part] })
    }
}
