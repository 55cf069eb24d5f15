//! Streams of the model that a draft reads: what every token left behind after some layers (`kimi-k3.md` 6.1).

use perilune_backend::{Backend, BackendError, SelectRows};
use perilune_tensor::TensorSpec;

use crate::residual::{Mix, ResidualStream};

/// Which streams are kept in a step.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TapSpec {
    /// The stream after each of these layers, counted from 0, in the order in which the draft concatenates them.
    pub layers: Vec<usize>,
    /// What "the stream" is.
    pub stream: TapStream,
}

/// The two meanings of "the stream after a layer"; a draft works only with the one it was trained on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TapStream {
    /// The mixture that the next layer's attention reads; after the last layer, that which the final norm reads.
    AttnRes,
    /// The running prefix itself.
    Prefix,
}

/// The kept streams of the last step.
#[derive(Debug)]
pub(crate) struct Taps<T> {
    spec: TapSpec,
    /// `F32 [max_rows, H]` per layer of the specification.
    streams: Vec<T>,
    /// `U32 [max_rows]`: 0, 1, 2, …
    rows: T,
}

impl<T> Taps<T> {
    pub(crate) fn new<B: Backend<Tensor = T>>(
        backend: &B,
        spec: TapSpec,
        (max_rows, hidden): (usize, usize),
    ) -> Result<Self, BackendError> {
        let streams = spec.layers.iter().map(|_| backend.alloc(&TensorSpec::f32([max_rows, hidden])));
        let streams = streams.collect::<Result<_, _>>()?;
        let mut rows = backend.alloc(&TensorSpec::u32([max_rows]))?;
        let counted: Vec<u32> = (0..u32::try_from(max_rows).unwrap_or(u32::MAX)).collect();
        backend.write_u32(&mut rows, &counted)?;
        Ok(Taps { spec, streams, rows })
    }

    pub(crate) fn streams(&self) -> &[T] {
        &self.streams
    }

    /// Keeps the stream after a layer, if it is wanted; `next` mixes what the following layer reads.
    pub(crate) fn take<B: Backend<Tensor = T>>(
        &mut self,
        (backend, rows): (&B, usize),
        layer: usize,
        (stream, next): (&ResidualStream<T>, Option<&Mix<T>>),
    ) -> Result<(), BackendError> {
        let mix = if self.spec.stream == TapStream::AttnRes { next } else { None };
        for (_, out) in self.spec.layers.iter().zip(&mut self.streams).filter(|(wanted, _)| **wanted == layer) {
            if let Some(x) = stream.mix_into((backend, rows), mix, out)? {
                backend.select_rows(SelectRows { rows, x, index: &self.rows, out })?;
            }
        }
        Ok(())
    }
}
