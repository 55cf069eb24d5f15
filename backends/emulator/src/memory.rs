//! Device memory: host allocations that are never read before they are written.

use std::alloc::{Layout, alloc, dealloc};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use perilune_backend::BackendError;
use perilune_gpu::Region;

const ALIGNMENT: usize = 256;

/// All live allocations: address and length.
#[derive(Debug, Default)]
pub(crate) struct Live(Mutex<BTreeMap<u64, usize>>);

impl Live {
    /// Whether a region lies in one live allocation.
    pub(crate) fn contains(&self, region: Region) -> bool {
        let live = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let before = live.range(..=region.address).next_back();
        before.is_some_and(|(start, bytes)| region.address + region.bytes as u64 <= start + *bytes as u64)
    }
}

/// One allocation.
#[derive(Debug)]
pub struct EmulatedMemory {
    address: u64,
    layout: Layout,
    live: Arc<Live>,
}

impl EmulatedMemory {
    /// Memory full of NaN.
    pub(crate) fn new(bytes: usize, live: &Arc<Live>) -> Result<EmulatedMemory, BackendError> {
        let out_of_memory = || BackendError::OutOfMemory { requested_bytes: bytes, what: "an emulated tensor".into() };
        let layout = Layout::from_size_align(bytes.max(1), ALIGNMENT).map_err(|_| out_of_memory())?;
        // SAFETY: the layout is not empty.
        let start = unsafe { alloc(layout) };
        if start.is_null() {
            return Err(out_of_memory());
        }
        // SAFETY: `layout.size()` bytes were just allocated.
        unsafe { start.write_bytes(0xff, layout.size()) };
        let address = start as u64;
        live.0.lock().unwrap_or_else(PoisonError::into_inner).insert(address, layout.size());
        Ok(EmulatedMemory { address, layout, live: live.clone() })
    }

    pub(crate) fn region(&self) -> Region {
        Region { address: self.address, bytes: self.layout.size() }
    }
}

impl Drop for EmulatedMemory {
    fn drop(&mut self) {
        self.live.0.lock().unwrap_or_else(PoisonError::into_inner).remove(&self.address);
        // SAFETY: allocated with this layout; launches finish before they return, so nothing uses it any more.
        unsafe { dealloc(self.address as *mut u8, self.layout) };
    }
}
