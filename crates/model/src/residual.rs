//! The residual stream, plain or with attention residuals (`kimi-k3.md` 3.1 and 3.2).
//!
//! The running prefix is the last of several row tensors; freezing it means that the next sublayer writes into the next
//! tensor, so no row is ever copied.

use perilune_backend::{AttnResidual, Backend, BackendError, RmsNorm, Write};

/// Frozen rows and the running prefix.
#[derive(Debug)]
pub(crate) struct ResidualStream<T> {
    rows: Vec<T>,
    /// Index of the prefix in `rows`; the rows before it are frozen.
    prefix: usize,
    write: Write,
}

/// What mixes the stream before a norm.
#[derive(Debug)]
pub(crate) struct Mix<T> {
    /// `F32 [H]`: norm weight times projection.
    pub(crate) score: T,
    pub(crate) eps: f32,
}

/// A norm with its weight, `F32 [width]`.
#[derive(Debug)]
pub(crate) struct Norm<T> {
    pub(crate) weight: T,
    pub(crate) eps: f32,
}

impl<T> ResidualStream<T> {
    pub(crate) fn new(rows: Vec<T>) -> Self {
        ResidualStream { rows, prefix: 0, write: Write::Replace }
    }

    /// Begins a step; the embedding goes into the returned tensor.
    pub(crate) fn begin(&mut self) -> &mut T {
        self.prefix = 0;
        self.write = Write::Add;
        &mut self.rows[0]
    }

    /// Freezes the prefix and starts a new one at zero.
    pub(crate) fn freeze(&mut self) {
        self.prefix += 1;
        self.write = Write::Replace;
    }

    /// Where the next result goes and how: the first of a block overwrites, the others add.
    pub(crate) fn target(&mut self) -> (&mut T, Write) {
        let write = std::mem::replace(&mut self.write, Write::Add);
        (&mut self.rows[self.prefix], write)
    }

    /// The running prefix.
    pub(crate) fn prefix(&self) -> &T {
        &self.rows[self.prefix]
    }

    /// Mixes frozen rows and prefix into `mixed`; returns where the result is. Without a mix or without frozen rows that
    /// is the prefix itself.
    pub(crate) fn mix<'a, B: Backend<Tensor = T>>(
        &'a self,
        (backend, rows): (&B, usize),
        mix: Option<&Mix<T>>,
        mixed: &'a mut T,
    ) -> Result<&'a T, BackendError> {
        let plain = self.mix_into((backend, rows), mix, mixed)?;
        Ok(plain.unwrap_or(mixed))
    }

    /// Mixes into `out`, or, where there is nothing to mix, returns the prefix and leaves `out` alone.
    pub(crate) fn mix_into<B: Backend<Tensor = T>>(
        &self,
        (backend, rows): (&B, usize),
        mix: Option<&Mix<T>>,
        out: &mut T,
    ) -> Result<Option<&T>, BackendError> {
        let Some(mix) = mix.filter(|_| self.prefix > 0) else { return Ok(Some(self.prefix())) };
        let sources: Vec<&T> = self.rows[..=self.prefix].iter().collect();
        backend.attn_residual(AttnResidual { rows, sources: &sources, score: &mix.score, eps: mix.eps, out })?;
        Ok(None)
    }
}

impl<T> Norm<T> {
    /// `out = norm(x)`.
    pub(crate) fn apply<B: Backend<Tensor = T>>(
        &self,
        (backend, rows): (&B, usize),
        x: &T,
        out: &mut T,
    ) -> Result<(), BackendError> {
        backend.rms_norm(RmsNorm { rows, x, weight: &self.weight, eps: self.eps, out })
    }
}
