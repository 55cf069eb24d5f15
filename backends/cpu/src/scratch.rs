//! Working memory that operations borrow for the time of a call, so that a step does not allocate.

use std::ops::{Deref, DerefMut};
use std::sync::{Mutex, PoisonError};

use perilune_backend::{BackendError, DeviceTensor};
use perilune_tensor::TensorSpec;

use crate::tensor::CpuTensor;

/// Buffers that are not lent out.
#[derive(Default)]
pub(crate) struct Scratch {
    free: Mutex<Vec<CpuTensor>>,
}

/// A buffer of `f32` with any contents; goes back when dropped.
pub(crate) struct Loan<'a> {
    home: &'a Scratch,
    buffer: Option<CpuTensor>,
    len: usize,
}

impl Scratch {
    /// A buffer of `len` values on a cache line.
    ///
    /// # Errors
    /// `OutOfMemory`.
    pub(crate) fn take(&self, len: usize) -> Result<Loan<'_>, BackendError> {
        let mut free = self.free.lock().unwrap_or_else(PoisonError::into_inner);
        let fits = free.iter().position(|buffer| buffer.spec().shape.numel() >= len);
        let buffer = match fits {
            Some(index) => free.swap_remove(index),
            None => {
                // Too small for this call is too small for the next one, too.
                free.pop();
                CpuTensor::zeros(&TensorSpec::f32([len.next_power_of_two()]))?
            }
        };
        Ok(Loan { home: self, buffer: Some(buffer), len })
    }

    /// Frees a buffer that will not be needed again.
    pub(crate) fn forget(&self, mut loan: Loan<'_>) {
        loan.buffer = None;
    }
}

impl Drop for Loan<'_> {
    fn drop(&mut self) {
        let mut free = self.home.free.lock().unwrap_or_else(PoisonError::into_inner);
        free.extend(self.buffer.take());
    }
}

impl Deref for Loan<'_> {
    type Target = [f32];
    fn deref(&self) -> &[f32] {
        let all = self.buffer.as_ref().and_then(|buffer| buffer.f32().ok()).unwrap_or_default();
        &all[..self.len]
    }
}

impl DerefMut for Loan<'_> {
    fn deref_mut(&mut self) -> &mut [f32] {
        let all = self.buffer.as_mut().and_then(|buffer| buffer.elements_mut().ok()).unwrap_or_default();
        &mut all[..self.len]
    }
}

/// A part of one buffer for every thread of a loop.
pub(crate) struct ThreadScratch<'a> {
    data: *mut f32,
    per_thread: usize,
    /// Keeps the buffer.
    loan: Loan<'a>,
}

/// SAFETY: threads use parts of their own, by the promise of [`ThreadScratch::of`].
unsafe impl Sync for ThreadScratch<'_> {}
/// SAFETY: it owns its buffer.
unsafe impl Send for ThreadScratch<'_> {}

impl<'a> ThreadScratch<'a> {
    /// `per_thread` values for each of `threads`.
    ///
    /// # Errors
    /// `OutOfMemory`.
    pub(crate) fn new(home: &'a Scratch, threads: usize, per_thread: usize) -> Result<Self, BackendError> {
        // Parts begin on cache lines, as the buffer does.
        let per_thread = per_thread.next_multiple_of(16);
        let mut loan = home.take(threads * per_thread)?;
        Ok(ThreadScratch { data: loan.as_mut_ptr(), per_thread, loan })
    }

    /// The part of one thread, with any contents.
    ///
    /// # Safety
    /// No two borrows of the same thread's part may be alive at once.
    #[allow(clippy::mut_from_ref)] // this is the type's purpose
    pub(crate) unsafe fn of(&self, thread: usize) -> &mut [f32] {
        assert!((thread + 1) * self.per_thread <= self.loan.len, "thread {thread}");
        // SAFETY: in bounds, and borrowed once by the caller's promise.
        unsafe { std::slice::from_raw_parts_mut(self.data.add(thread * self.per_thread), self.per_thread) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_are_lent_again() {
        let scratch = Scratch::default();
        let first = scratch.take(100).unwrap().as_ptr();
        let (again, other) = (scratch.take(90).unwrap(), scratch.take(90).unwrap());
        assert_eq!(again.as_ptr(), first);
        assert_ne!(other.as_ptr(), first);
        assert_eq!((again.len(), other.len()), (90, 90));
    }
}
