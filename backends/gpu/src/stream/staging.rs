//! Host memory that a device copies results into, kept for the next result: to allocate it costs more than to fill it.

use std::sync::{Arc, Mutex, PoisonError};

use super::{ApiError, StreamApi};

/// Smallest buffer.
const LEAST: usize = 4 << 10;
/// Bytes that are kept without use.
const KEPT: usize = 64 << 20;

/// Free buffers.
pub(super) struct Staging<A: StreamApi> {
    api: Arc<A>,
    free: Mutex<Vec<Buffer>>,
}

#[derive(Clone, Copy)]
struct Buffer {
    pointer: *mut u8,
    bytes: usize,
}

// SAFETY: plain memory that one owner at a time uses.
unsafe impl Send for Buffer {}

/// A buffer in use. It goes back when dropped; a copy into it may still be under way, which the queue's order makes
/// harmless: the next copy into it comes later.
pub(super) struct Staged<A: StreamApi> {
    buffer: Buffer,
    pool: Arc<Staging<A>>,
}

impl<A: StreamApi> Staging<A> {
    pub(super) fn new(api: Arc<A>) -> Arc<Staging<A>> {
        Arc::new(Staging { api, free: Mutex::default() })
    }

    /// A buffer of at least so many bytes.
    pub(super) fn take(self: &Arc<Self>, bytes: usize) -> Result<Staged<A>, ApiError> {
        let bytes = bytes.max(LEAST).checked_next_power_of_two().ok_or(ApiError::OutOfMemory)?;
        let mut free = self.free.lock().unwrap_or_else(PoisonError::into_inner);
        let found = free.iter().position(|buffer| buffer.bytes == bytes);
        let kept = found.map(|i| free.swap_remove(i));
        drop(free);
        let buffer = match kept {
            Some(buffer) => buffer,
            None => Buffer { pointer: self.api.alloc_host(bytes)?, bytes },
        };
        Ok(Staged { buffer, pool: self.clone() })
    }

    fn release(&self, buffer: Buffer) {
        let mut free = self.free.lock().unwrap_or_else(PoisonError::into_inner);
        let kept: usize = free.iter().map(|b| b.bytes).sum();
        if kept + buffer.bytes <= KEPT {
            free.push(buffer);
            return;
        }
        drop(free);
        self.give_back(buffer);
    }

    fn give_back(&self, buffer: Buffer) {
        // Errors here follow a fault that its reader has seen.
        let _ = self.api.make_current();
        let _ = self.api.synchronize();
        // SAFETY: `alloc_host` made it, and the queue is empty.
        let _ = unsafe { self.api.free_host(buffer.pointer) };
    }
}

impl<A: StreamApi> Drop for Staging<A> {
    fn drop(&mut self) {
        let free = std::mem::take(&mut *self.free.lock().unwrap_or_else(PoisonError::into_inner));
        free.into_iter().for_each(|buffer| self.give_back(buffer));
    }
}

impl<A: StreamApi> Staged<A> {
    pub(super) fn pointer(&self) -> *mut u8 {
        self.buffer.pointer
    }

    /// The first bytes, once a copy into them has ended.
    pub(super) fn to_vec(&self, bytes: usize) -> Vec<u8> {
        let bytes = bytes.min(self.buffer.bytes);
        // SAFETY: the buffer has so many bytes, written by the copy that has ended.
        unsafe { std::slice::from_raw_parts(self.buffer.pointer, bytes) }.to_vec()
    }
}

impl<A: StreamApi> Drop for Staged<A> {
    fn drop(&mut self) {
        self.pool.release(self.buffer);
    }
}
