//! A KDA layer: projections, the fused operation, output projection.

use perilune_backend::{Backend, BackendError, Kda, KdaParams, KdaVerify, Linear, LinearPart, UnitLayout, Weight};

use crate::ForwardBatch;
use crate::workspace::KdaSpace;

/// Weights of a KDA layer.
#[derive(Debug)]
pub(crate) struct KdaLayer<T> {
    pub(crate) q: Weight<T>,
    pub(crate) k: Weight<T>,
    pub(crate) v: Weight<T>,
    pub(crate) gate_low: Weight<T>,
    pub(crate) gate: Weight<T>,
    pub(crate) beta: Weight<T>,
    pub(crate) out_gate: OutGate<T>,
    pub(crate) params: KdaParams<T>,
    pub(crate) out: Weight<T>,
}

/// The output gate's projection.
#[derive(Debug)]
pub(crate) enum OutGate<T> {
    Full(Weight<T>),
    Low { low: Weight<T>, high: Weight<T> },
}

/// Where a layer's sequences left their state.
pub(crate) struct KdaState<'a, T> {
    pub(crate) arena: &'a mut T,
    pub(crate) conv_at: UnitLayout,
    pub(crate) state_at: UnitLayout,
    /// Takes the inputs of rows that are verified.
    pub(crate) replay: Option<&'a mut T>,
}

/// Which operation the runs of a part take.
#[derive(Clone, Copy)]
enum Form {
    Verify,
    Decode,
    Prefill,
}

fn no_replay() -> BackendError {
    BackendError::Mismatch {
        op: "kda_verify",
        field: "replay",
        found: "a workspace without rows to verify".into(),
        expected: "one with `max_verify_rows` above 0".into(),
    }
}

impl<T> KdaLayer<T> {
    /// From the normed input to `space.out`; the output projection is the caller's.
    pub(crate) fn mix<B: Backend<Tensor = T>>(
        &self,
        (backend, batch): (&B, &ForwardBatch<B>),
        x: &T,
        space: &mut KdaSpace<T>,
        state: KdaState<'_, T>,
    ) -> Result<(), BackendError> {
        self.project((backend, batch.rows), x, space)?;
        let mut replay = state.replay;
        for (part, form) in
            [(&batch.verify, Form::Verify), (&batch.decode, Form::Decode), (&batch.prefill, Form::Prefill)]
        {
            if part.is_empty() {
                continue;
            }
            let kda = Kda {
                params: &self.params,
                segments: part.segments(),
                q: &space.q,
                k: &space.k,
                v: &space.v,
                gate: &space.gate,
                beta: &space.beta,
                out_gate: &space.out_gate,
                arena: &mut *state.arena,
                conv_at: state.conv_at,
                state_at: state.state_at,
                snapshots: part.snapshots(),
                out: &mut space.out,
            };
            match (form, replay.as_deref_mut()) {
                (Form::Decode, _) => backend.kda_decode(kda)?,
                (Form::Prefill, _) => backend.kda_prefill(kda)?,
                (Form::Verify, Some(replay)) => backend.kda_verify(KdaVerify { kda, replay })?,
                (Form::Verify, None) => return Err(no_replay()),
            }
        }
        Ok(())
    }

    fn project<B: Backend<Tensor = T>>(
        &self,
        (backend, rows): (&B, usize),
        x: &T,
        space: &mut KdaSpace<T>,
    ) -> Result<(), BackendError> {
        let mut parts = vec![
            LinearPart::replace(&self.q, &mut space.q),
            LinearPart::replace(&self.k, &mut space.k),
            LinearPart::replace(&self.v, &mut space.v),
            LinearPart::replace(&self.gate_low, &mut space.gate_low),
            LinearPart::replace(&self.beta, &mut space.beta),
        ];
        match (&self.out_gate, &mut space.out_gate_low) {
            (OutGate::Low { low, .. }, Some(out)) => parts.push(LinearPart::replace(low, out)),
            (OutGate::Full(full), _) => parts.push(LinearPart::replace(full, &mut space.out_gate)),
            (OutGate::Low { .. }, None) => {}
        }
        backend.linear(Linear { rows, x, parts: &mut parts })?;
        backend.linear(Linear {
            rows,
            x: &space.gate_low,
            parts: &mut [LinearPart::replace(&self.gate, &mut space.gate)],
        })?;
        if let (OutGate::Low { high, .. }, Some(low)) = (&self.out_gate, &space.out_gate_low) {
            backend.linear(Linear { rows, x: low, parts: &mut [LinearPart::replace(high, &mut space.out_gate)] })?;
        }
        Ok(())
    }
}
