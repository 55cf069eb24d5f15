//! One step through the model (`kimi-k3.md` 3.1 and 3.2).

use perilune_backend::{Backend, BackendError, Embed, Linear, LinearPart, SelectRows};

use crate::caches::LayerCache;
use crate::feed_forward::{FeedForward, Target};
use crate::kda::KdaState;
use crate::kimi::{Attention, Kimi, Layer};
use crate::mla::Latents;
use crate::tap::Taps;
use crate::{Caches, ForwardBatch, Workspace};

impl<B: Backend> Kimi<B> {
    /// Enqueues a step: reads and extends the caches, leaves the wanted logits in the workspace.
    ///
    /// # Errors
    /// `Mismatch` where batch, workspace and caches do not belong together.
    pub fn forward(
        &self,
        backend: &B,
        workspace: &mut Workspace<B>,
        batch: &ForwardBatch<B>,
        caches: &mut Caches<B>,
    ) -> Result<(), BackendError> {
        if batch.rows == 0 {
            return Ok(());
        }
        let out = workspace.stream.begin();
        backend.embed(Embed { rows: batch.rows, table: &self.embedding, ids: &batch.ids, out })?;
        if caches.layers.len() != self.layers.len() {
            return Err(foreign("caches"));
        }
        for (index, layer) in self.layers.iter().enumerate() {
            self.attention((backend, batch), (index, layer), workspace, caches)?;
            self.feed_forward((backend, batch.rows), layer, workspace)?;
            if let Some(taps) = &mut workspace.taps {
                taps.take_prefix((backend, batch.rows), index, &workspace.stream)?;
            }
        }
        self.logits((backend, batch), workspace)
    }

    fn attention(
        &self,
        (backend, batch): (&B, &ForwardBatch<B>),
        (index, layer): (usize, &Layer<B::Tensor>),
        ws: &mut Workspace<B>,
        caches: &mut Caches<B>,
    ) -> Result<(), BackendError> {
        let rows = batch.rows;
        let stream = (&ws.stream, layer.attn_mix.as_ref(), &mut ws.mixed);
        let h = Taps::mix(&mut ws.taps, (backend, rows), index.checked_sub(1), stream)?;
        layer.attn_norm.apply((backend, rows), h, &mut ws.normed)?;
        // The mixture saw the prefix; only now does it freeze.
        if self.config.attn_res_block_size.is_some_and(|block| index.is_multiple_of(block)) {
            ws.stream.freeze();
        }
        let block_size = caches.shape().block_size;
        let arena = &mut caches.arena;
        let (x, weight) = match (&layer.attn, caches.layers[index], &mut ws.kda, &mut ws.mla) {
            (Attention::Kda(kda), LayerCache::Kda { state: state_at, conv: conv_at }, Some(space), _) => {
                let replay = ws.replay.get_mut(index).and_then(Option::as_mut);
                kda.mix((backend, batch), &ws.normed, space, KdaState { arena, conv_at, state_at, replay })?;
                (&space.out, &kda.out)
            }
            (Attention::Mla(mla), LayerCache::Mla { latent: at }, _, Some(space)) => {
                mla.mix((backend, batch), &ws.normed, space, Latents { arena, at, block_size })?;
                (&space.out, &mla.out)
            }
            _ => return Err(foreign("caches")),
        };
        let (out, write) = ws.stream.target();
        backend.linear(Linear { rows, x, parts: &mut [LinearPart { weight, out, write }] })
    }

    fn feed_forward(
        &self,
        (backend, rows): (&B, usize),
        layer: &Layer<B::Tensor>,
        ws: &mut Workspace<B>,
    ) -> Result<(), BackendError> {
        let h = ws.stream.mix((backend, rows), layer.ffn_mix.as_ref(), &mut ws.mixed)?;
        layer.ffn_norm.apply((backend, rows), h, &mut ws.normed)?;
        let (out, write) = ws.stream.target();
        let (call, target) = ((backend, rows, self.act), Target { out, write });
        match (&layer.ffn, &mut ws.moe) {
            (FeedForward::Dense(glu), _) => glu.run(call, &ws.normed, &mut ws.dense, target),
            (FeedForward::Moe(moe), Some(space)) => moe.run(call, &ws.normed, space, target),
            (FeedForward::Moe(_), None) => Err(foreign("workspace")),
        }
    }

    /// Final mixture, norm and head, for the rows whose logits are wanted.
    fn logits(&self, (backend, batch): (&B, &ForwardBatch<B>), ws: &mut Workspace<B>) -> Result<(), BackendError> {
        let rows = batch.num_logit_rows;
        let last = self.layers.len().checked_sub(1);
        if rows == 0 && !Taps::wants(ws.taps.as_ref(), last) {
            return Ok(());
        }
        let stream = (&ws.stream, self.mix.as_ref(), &mut ws.mixed);
        let x = Taps::mix(&mut ws.taps, (backend, batch.rows), last, stream)?;
        if rows == 0 {
            return Ok(());
        }
        let [last, normed] = &mut ws.last;
        backend.select_rows(SelectRows { rows, x, index: &batch.logit_index, out: last })?;
        self.norm.apply((backend, rows), last, normed)?;
        let ([_, x], out) = ws.logits_mut();
        let weight = self.head();
        backend.linear(Linear { rows, x, parts: &mut [LinearPart::replace(weight, out)] })
    }
}

/// Something was made for another model.
fn foreign(field: &'static str) -> BackendError {
    BackendError::Mismatch {
        op: "forward",
        field,
        found: "made for another configuration".into(),
        expected: "made for this model".into(),
    }
}
