//! An MLA layer: query and latent projections, the fused operation, output projection.

use perilune_backend::{Backend, BackendError, Linear, LinearPart, Mla, MlaParams, UnitLayout, Weight};

use crate::ForwardBatch;
use crate::residual::Norm;
use crate::workspace::MlaSpace;

/// Weights of an MLA layer.
#[derive(Debug)]
pub(crate) struct MlaLayer<T> {
    pub(crate) query: Query<T>,
    pub(crate) kv_a: Weight<T>,
    pub(crate) gate: Option<Weight<T>>,
    pub(crate) params: MlaParams<T>,
    pub(crate) out: Weight<T>,
}

/// The query projection.
#[derive(Debug)]
pub(crate) enum Query<T> {
    Full(Weight<T>),
    Low { low: Weight<T>, norm: Norm<T>, high: Weight<T> },
}

/// Where a layer's latents lie.
pub(crate) struct Latents<'a, T> {
    pub(crate) arena: &'a mut T,
    pub(crate) at: UnitLayout,
    pub(crate) block_size: usize,
}

impl<T> MlaLayer<T> {
    /// From the normed input to `space.out`; the output projection is the caller's.
    pub(crate) fn mix<B: Backend<Tensor = T>>(
        &self,
        (backend, batch): (&B, &ForwardBatch<B>),
        x: &T,
        space: &mut MlaSpace<T>,
        latents: Latents<'_, T>,
    ) -> Result<(), BackendError> {
        self.project((backend, batch.rows), x, space)?;
        for (part, short) in [(&batch.verify, true), (&batch.decode, true), (&batch.prefill, false)] {
            if part.is_empty() {
                continue;
            }
            let op = Mla {
                params: &self.params,
                segments: part.segments(),
                tables: part.tables(),
                q: &space.q,
                kv_a: &space.kv_a,
                gate: self.gate.as_ref().map(|_| &space.gate),
                arena: &mut *latents.arena,
                latent_at: latents.at,
                block_size: latents.block_size,
                out: &mut space.out,
            };
            if short { backend.mla_decode(op)? } else { backend.mla_prefill(op)? }
        }
        Ok(())
    }

    fn project<B: Backend<Tensor = T>>(
        &self,
        (backend, rows): (&B, usize),
        x: &T,
        space: &mut MlaSpace<T>,
    ) -> Result<(), BackendError> {
        let mut parts = vec![LinearPart::replace(&self.kv_a, &mut space.kv_a)];
        if let Some(gate) = &self.gate {
            parts.push(LinearPart::replace(gate, &mut space.gate));
        }
        match (&self.query, &mut space.query_low) {
            (Query::Low { low, .. }, Some([out, _])) => parts.push(LinearPart::replace(low, out)),
            (Query::Full(full), _) => parts.push(LinearPart::replace(full, &mut space.q)),
            (Query::Low { .. }, None) => {}
        }
        backend.linear(Linear { rows, x, parts: &mut parts })?;
        if let (Query::Low { norm, high, .. }, Some([low, normed])) = (&self.query, &mut space.query_low) {
            norm.apply((backend, rows), low, normed)?;
            backend.linear(Linear { rows, x: normed, parts: &mut [LinearPart::replace(high, &mut space.q)] })?;
        }
        Ok(())
    }
}
