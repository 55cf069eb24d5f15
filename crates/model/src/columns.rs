//! Runs and their snapshots as index tensors on the device, rewritten for every step.

use perilune_backend::{Backend, BackendError, Segments, Snapshots};
use perilune_tensor::TensorSpec;

use crate::SlotCopy;

/// Rows of a run and what they belong to.
pub(crate) struct RunRows {
    pub(crate) start: usize,
    pub(crate) len: usize,
    pub(crate) position: usize,
    pub(crate) slot: u32,
}

/// The tensors of [`Segments`].
#[derive(Debug)]
pub(crate) struct RunColumns<T> {
    pub(crate) count: usize,
    /// Start, length, position, slot.
    tensors: [T; 4],
}

/// The tensors of [`Snapshots`].
#[derive(Debug)]
pub(crate) struct CopyColumns<T> {
    count: usize,
    /// Run, rows, slot.
    tensors: [T; 3],
}

impl<T> RunColumns<T> {
    pub(crate) fn new<B: Backend<Tensor = T>>(backend: &B, room: usize) -> Result<Self, BackendError> {
        let column = || backend.alloc(&TensorSpec::u32([room]));
        Ok(RunColumns { count: 0, tensors: [column()?, column()?, column()?, column()?] })
    }

    pub(crate) fn fill<B: Backend<Tensor = T>>(
        &mut self,
        backend: &B,
        runs: impl Iterator<Item = RunRows>,
    ) -> Result<(), BackendError> {
        let mut columns: [Vec<u32>; 4] = Default::default();
        for RunRows { start, len, position, slot } in runs {
            let values = [index_value(start), index_value(len), index_value(position), slot];
            columns.iter_mut().zip(values).for_each(|(column, value)| column.push(value));
        }
        self.count = columns[0].len();
        self.tensors.iter_mut().zip(&columns).try_for_each(|(tensor, column)| backend.write_u32(tensor, column))
    }

    pub(crate) fn segments(&self) -> Segments<'_, T> {
        let [start, len, position, slot] = &self.tensors;
        Segments { count: self.count, start, len, position, slot }
    }
}

impl<T> CopyColumns<T> {
    pub(crate) fn new<B: Backend<Tensor = T>>(backend: &B, room: usize) -> Result<Self, BackendError> {
        let column = || backend.alloc(&TensorSpec::u32([room]));
        Ok(CopyColumns { count: 0, tensors: [column()?, column()?, column()?] })
    }

    /// Takes the copies of each run, in the order of the runs.
    pub(crate) fn fill<'a, B: Backend<Tensor = T>>(
        &mut self,
        backend: &B,
        runs: impl Iterator<Item = &'a [SlotCopy]>,
    ) -> Result<(), BackendError> {
        let mut columns: [Vec<u32>; 3] = Default::default();
        for (run, copy) in runs.enumerate().flat_map(|(run, copies)| copies.iter().map(move |copy| (run, copy))) {
            let values = [index_value(run), index_value(copy.after), copy.slot];
            columns.iter_mut().zip(values).for_each(|(column, value)| column.push(value));
        }
        self.count = columns[0].len();
        self.tensors.iter_mut().zip(&columns).try_for_each(|(tensor, column)| backend.write_u32(tensor, column))
    }

    pub(crate) fn snapshots(&self) -> Option<Snapshots<'_, T>> {
        let [run, rows, slot] = &self.tensors;
        (self.count > 0).then_some(Snapshots { count: self.count, run, rows, slot })
    }
}

/// Rows, positions and table entries are bounded by the limits, far below `u32::MAX`.
pub(crate) fn index_value(value: usize) -> u32 {
    u32::try_from(value).unwrap_or(u32::MAX)
}
