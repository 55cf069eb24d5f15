//! Objects of the vendor's library that give themselves back.

use std::sync::Arc;

use super::{Handle, LoadedKernel, StreamApi};
use crate::Region;

/// Runs `release` on an idle queue. Errors follow a fault that somebody has seen already.
fn when_idle<A: StreamApi>(api: &A, release: impl FnOnce(&A)) {
    let _ = api.make_current();
    let _ = api.synchronize();
    release(api);
}

/// An allocation.
pub struct StreamMemory<A: StreamApi> {
    pub(super) api: Arc<A>,
    pub(super) region: Region,
}

impl<A: StreamApi> std::fmt::Debug for StreamMemory<A> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:?}", self.region)
    }
}

impl<A: StreamApi> Drop for StreamMemory<A> {
    fn drop(&mut self) {
        // SAFETY: `alloc` made it, the queue is idle, and this is its only owner.
        when_idle(&*self.api, |api| drop(unsafe { api.free(self.region.address) }));
    }
}

/// A loaded kernel.
pub struct StreamFunction<A: StreamApi> {
    pub(super) api: Arc<A>,
    pub(super) kernel: LoadedKernel,
    pub(super) name: String,
}

impl<A: StreamApi> Drop for StreamFunction<A> {
    fn drop(&mut self) {
        // SAFETY: `load` made it, the queue is idle, and this is its only owner.
        when_idle(&*self.api, |api| drop(unsafe { api.unload(self.kernel.module) }));
    }
}

/// A point in the queue.
pub struct StreamEvent<A: StreamApi> {
    pub(super) api: Arc<A>,
    pub(super) handle: Handle,
}

impl<A: StreamApi> Drop for StreamEvent<A> {
    fn drop(&mut self) {
        let _ = self.api.make_current();
        // SAFETY: `record_event` made it and this is its only owner; libraries let unfinished events be given back.
        let _ = unsafe { self.api.destroy_event(self.handle) };
    }
}

/// A recorded step.
pub struct StreamRecording<A: StreamApi> {
    pub(super) api: Arc<A>,
    pub(super) handle: Handle,
}

impl<A: StreamApi> Drop for StreamRecording<A> {
    fn drop(&mut self) {
        // SAFETY: `end_capture` made it, the queue is idle, and this is its only owner.
        when_idle(&*self.api, |api| drop(unsafe { api.destroy_graph(self.handle) }));
    }
}
