//! Streams of the model that a draft reads: what every token left behind after some layers (`kimi-k3.md` 6.1).

use std::ops::Range;

use perilune_backend::{Backend, BackendError, BlockTables, Segments, SelectRows};
use perilune_tensor::TensorSpec;

use crate::residual::{Mix, ResidualStream};

/// Which streams are kept in a step.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TapSpec {
    /// The stream after each of these layers, counted from 0 and rising; the draft concatenates them in this order.
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

/// Rows of kept streams and what they belong to.
#[derive(Debug)]
pub struct TappedRows<'a, T> {
    /// The first so many rows count.
    pub count: usize,
    /// `U32 [>= count]`: the row at each place of `forms`; `None` where they lie in that order.
    pub order: Option<&'a T>,
    /// Rows of each sequence, and its blocks.
    pub forms: Vec<(Segments<'a, T>, BlockTables<'a, T>)>,
}

/// The kept streams of the last step.
#[derive(Debug)]
pub(crate) struct Taps<T> {
    spec: TapSpec,
    /// `F32 [max_rows, H]` per layer of the specification.
    streams: Vec<T>,
    /// `H`.
    width: usize,
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
        Ok(Taps { spec, streams, width: hidden, rows })
    }

    pub(crate) fn streams(&self) -> &[T] {
        &self.streams
    }

    /// Copies rows behind others.
    pub(crate) fn copy<B: Backend<Tensor = T>>(
        &mut self,
        backend: &B,
        rows: Range<usize>,
        to: usize,
    ) -> Result<(), BackendError> {
        let width = self.width;
        let from = rows.start * width..rows.end * width;
        self.streams.iter_mut().try_for_each(|stream| backend.copy_within(stream, from.clone(), to * width))
    }

    /// Whether the mixture that is read after `layer` is kept.
    pub(crate) fn wants(taps: Option<&Self>, layer: Option<usize>) -> bool {
        let wants =
            |(taps, layer): (&Self, usize)| taps.spec.stream == TapStream::AttnRes && taps.spec.layers.contains(&layer);
        taps.zip(layer).is_some_and(wants)
    }

    /// What is read after `layer`, mixed as by [`ResidualStream::mix`]; kept where that mixture is wanted.
    pub(crate) fn mix<'a, B: Backend<Tensor = T>>(
        taps: &'a mut Option<Self>,
        (backend, rows): (&B, usize),
        layer: Option<usize>,
        (stream, mix, mixed): (&'a ResidualStream<T>, Option<&Mix<T>>, &'a mut T),
    ) -> Result<&'a T, BackendError> {
        let wanted = Self::wants(taps.as_ref(), layer);
        let kept = taps.as_mut().zip(layer).filter(|_| wanted).and_then(|(taps, layer)| taps.of(layer));
        let Some((out, index)) = kept else {
            return stream.mix((backend, rows), mix, mixed);
        };
        if let Some(x) = stream.mix_into((backend, rows), mix, out)? {
            backend.select_rows(SelectRows { rows, x, index, out })?;
        }
        Ok(out)
    }

    /// Keeps the prefix after `layer`, where that is wanted.
    pub(crate) fn take_prefix<B: Backend<Tensor = T>>(
        &mut self,
        (backend, rows): (&B, usize),
        layer: usize,
        stream: &ResidualStream<T>,
    ) -> Result<(), BackendError> {
        if self.spec.stream != TapStream::Prefix {
            return Ok(());
        }
        let Some((out, index)) = self.of(layer) else { return Ok(()) };
        backend.select_rows(SelectRows { rows, x: stream.prefix(), index, out })
    }

    /// Where the stream after a layer is kept, and the numbers of rows.
    fn of(&mut self, layer: usize) -> Option<(&mut T, &T)> {
        let place = self.spec.layers.iter().position(|wanted| *wanted == layer)?;
        Some((&mut self.streams[place], &self.rows))
    }
}
