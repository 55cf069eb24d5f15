//! A device of host memory that runs everything at once and writes down what it was asked.

use std::collections::HashMap;
use std::ffi::{CStr, c_void};
use std::sync::{Mutex, MutexGuard};

use super::{ApiError, Handle, LoadedKernel, RawLaunch, StreamApi};

/// A launch: entry point, grid, parameters as words.
pub(super) type Launched = (String, [u32; 3], Vec<u64>);

#[derive(Default)]
pub(super) struct Fake(Mutex<State>);

#[derive(Default)]
struct State {
    calls: Vec<&'static str>,
    fails: HashMap<&'static str, ApiError>,
    memory: HashMap<u64, Box<[u8]>>,
    entries: Vec<String>,
    launched: Vec<Launched>,
    capturing: bool,
}

impl Fake {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap()
    }

    fn called(&self, name: &'static str) -> Result<MutexGuard<'_, State>, ApiError> {
        let mut state = self.state();
        state.calls.push(name);
        match state.fails.remove(name) {
            Some(error) => Err(error),
            None => Ok(state),
        }
    }

    fn allocate(&self, name: &'static str, bytes: usize) -> Result<u64, ApiError> {
        let mut state = self.called(name)?;
        let memory = vec![0xff; bytes].into_boxed_slice();
        let address = memory.as_ptr() as u64;
        state.memory.insert(address, memory);
        Ok(address)
    }

    /// The next call of this name fails.
    pub(super) fn fail_next(&self, name: &'static str, error: ApiError) {
        self.state().fails.insert(name, error);
    }

    pub(super) fn calls(&self) -> Vec<&'static str> {
        self.state().calls.clone()
    }

    pub(super) fn count(&self, name: &str) -> usize {
        self.state().calls.iter().filter(|call| **call == name).count()
    }

    /// Allocations of either kind that were not given back.
    pub(super) fn live(&self) -> usize {
        self.state().memory.len()
    }

    pub(super) fn captures(&self) -> bool {
        self.state().capturing
    }

    pub(super) fn launched(&self) -> Vec<Launched> {
        self.state().launched.clone()
    }
}

fn handle(number: usize) -> Handle {
    Handle(number as *mut c_void)
}

impl StreamApi for Fake {
    fn make_current(&self) -> Result<(), ApiError> {
        Ok(())
    }

    fn alloc(&self, bytes: usize) -> Result<u64, ApiError> {
        self.allocate("alloc", bytes)
    }

    unsafe fn free(&self, address: u64) -> Result<(), ApiError> {
        self.called("free")?.memory.remove(&address).map(drop).ok_or(ApiError::Fault("freed twice".into()))
    }

    fn alloc_host(&self, bytes: usize) -> Result<*mut u8, ApiError> {
        self.allocate("alloc_host", bytes).map(|address| address as *mut u8)
    }

    unsafe fn free_host(&self, pointer: *mut u8) -> Result<(), ApiError> {
        self.called("free_host")?
            .memory
            .remove(&(pointer as u64))
            .map(drop)
            .ok_or(ApiError::Fault("freed twice".into()))
    }

    unsafe fn copy_in(&self, dst: u64, src: &[u8]) -> Result<(), ApiError> {
        drop(self.called("copy_in")?);
        // SAFETY: the caller's promise; so for the functions below.
        unsafe { std::ptr::copy_nonoverlapping(src.as_ptr(), dst as *mut u8, src.len()) };
        Ok(())
    }

    unsafe fn copy_out(&self, dst: *mut u8, src: u64, bytes: usize) -> Result<(), ApiError> {
        drop(self.called("copy_out")?);
        // SAFETY: as above.
        unsafe { std::ptr::copy_nonoverlapping(src as *const u8, dst, bytes) };
        Ok(())
    }

    unsafe fn copy(&self, dst: u64, src: u64, bytes: usize) -> Result<(), ApiError> {
        drop(self.called("copy")?);
        // SAFETY: as above.
        unsafe { std::ptr::copy_nonoverlapping(src as *const u8, dst as *mut u8, bytes) };
        Ok(())
    }

    unsafe fn clear(&self, dst: u64, bytes: usize) -> Result<(), ApiError> {
        drop(self.called("clear")?);
        // SAFETY: as above.
        unsafe { (dst as *mut u8).write_bytes(0, bytes) };
        Ok(())
    }

    fn load(&self, image: &[u8], entry: &CStr, _shared_bytes: u32) -> Result<LoadedKernel, ApiError> {
        assert!(!image.is_empty());
        let mut state = self.called("load")?;
        state.entries.push(entry.to_str().unwrap().to_owned());
        let number = handle(state.entries.len());
        Ok(LoadedKernel { module: number, function: number })
    }

    unsafe fn unload(&self, _module: Handle) -> Result<(), ApiError> {
        self.called("unload").map(drop)
    }

    unsafe fn launch(&self, function: Handle, launch: RawLaunch<'_>) -> Result<(), ApiError> {
        let mut state = self.called("launch")?;
        let mut words: Vec<u64> = Vec::new();
        let last = launch.parameters.len() - 1;
        for (i, parameter) in launch.parameters.iter().enumerate() {
            // SAFETY: a pointer to one word each; the structure of the test has two.
            words.extend(unsafe { std::slice::from_raw_parts(parameter.cast::<u64>(), if i == last { 2 } else { 1 }) });
        }
        let entry = state.entries[function.0 as usize - 1].clone();
        state.launched.push((entry, launch.grid, words));
        Ok(())
    }

    fn record_event(&self) -> Result<Handle, ApiError> {
        self.called("record_event").map(|_| handle(1))
    }

    unsafe fn wait_event(&self, _event: Handle) -> Result<(), ApiError> {
        self.called("wait_event").map(drop)
    }

    unsafe fn destroy_event(&self, _event: Handle) -> Result<(), ApiError> {
        self.called("destroy_event").map(drop)
    }

    fn begin_capture(&self) -> Result<(), ApiError> {
        self.called("begin_capture")?.capturing = true;
        Ok(())
    }

    fn end_capture(&self) -> Result<Handle, ApiError> {
        self.state().capturing = false;
        self.called("end_capture").map(|_| handle(1))
    }

    unsafe fn launch_graph(&self, _graph: Handle) -> Result<(), ApiError> {
        self.called("launch_graph").map(drop)
    }

    unsafe fn destroy_graph(&self, _graph: Handle) -> Result<(), ApiError> {
        self.called("destroy_graph").map(drop)
    }

    fn synchronize(&self) -> Result<(), ApiError> {
        self.called("synchronize").map(drop)
    }
}
