//! HIP's functions in the words of [`StreamApi`].

use std::ffi::{CStr, c_char, c_int};
use std::ptr;

use perilune_gpu::stream::{ApiError, Handle, LoadedKernel, RawLaunch, StreamApi};

use crate::library::{Hip, Pointer, Status};

/// `hipErrorOutOfMemory`.
const OUT_OF_MEMORY: Status = 2;
/// `hipStreamNonBlocking`.
const NON_BLOCKING: u32 = 1;
/// `hipEventDisableTiming`.
const DISABLE_TIMING: u32 = 2;
/// `hipStreamCaptureModeThreadLocal`.
const THREAD_LOCAL: c_int = 1;

/// A device and a stream of its own.
#[derive(Debug)]
pub struct HipApi {
    hip: Hip,
    device: c_int,
    stream: Pointer,
}

// SAFETY: HIP's handles may be used from any thread whose current device is the right one.
unsafe impl Send for HipApi {}
// SAFETY: as above; the library locks what it shares.
unsafe impl Sync for HipApi {}

/// The outcome of a call of this name.
pub(crate) fn check(hip: &Hip, function: &str, status: Status) -> Result<(), ApiError> {
    let text = |ask: unsafe extern "C" fn(Status) -> *const c_char| {
        // SAFETY: takes any number, and gives constant text or nothing.
        let words = unsafe { ask(status) };
        // SAFETY: as above.
        if words.is_null() { String::new() } else { unsafe { CStr::from_ptr(words) }.to_string_lossy().into_owned() }
    };
    match status {
        0 => Ok(()),
        OUT_OF_MEMORY => Err(ApiError::OutOfMemory),
        _ => Err(ApiError::Fault(format!("{function}: {}, {}", text(hip.error_name), text(hip.error_text)))),
    }
}

impl HipApi {
    /// Makes the device current and creates a stream.
    pub(crate) fn open(hip: Hip, device: c_int) -> Result<HipApi, ApiError> {
        let mut api = HipApi { hip, device, stream: ptr::null_mut() };
        api.make_current()?;
        // SAFETY: the pointer is to a live variable.
        let created = unsafe { (api.hip.stream_create)(&mut api.stream, NON_BLOCKING) };
        api.check("hipStreamCreateWithFlags", created)?;
        Ok(api)
    }

    /// Device memory that nobody has.
    pub(crate) fn free_bytes(&self) -> Result<usize, ApiError> {
        let (mut free, mut total) = (0, 0);
        // SAFETY: the pointers are to live variables.
        self.check("hipMemGetInfo", unsafe { (self.hip.memory_info)(&mut free, &mut total) })?;
        Ok(free)
    }

    fn check(&self, function: &str, status: Status) -> Result<(), ApiError> {
        check(&self.hip, function, status)
    }
}

impl Drop for HipApi {
    fn drop(&mut self) {
        if !self.stream.is_null() && self.make_current().is_ok() {
            // SAFETY: created with this object, and nothing made with it is left.
            unsafe { (self.hip.stream_destroy)(self.stream) };
        }
    }
}

fn pointer(address: u64) -> Pointer {
    address as Pointer
}

// SAFETY, for all of it: handles were made by this object, addresses and pointers are valid as the trait's callers promise,
// results go to live variables.
#[allow(clippy::undocumented_unsafe_blocks)]
impl StreamApi for HipApi {
    fn make_current(&self) -> Result<(), ApiError> {
        self.check("hipSetDevice", unsafe { (self.hip.set_device)(self.device) })
    }

    fn alloc(&self, bytes: usize) -> Result<u64, ApiError> {
        let mut memory = ptr::null_mut();
        self.check("hipMalloc", unsafe { (self.hip.malloc)(&mut memory, bytes) })?;
        Ok(memory as u64)
    }

    unsafe fn free(&self, address: u64) -> Result<(), ApiError> {
        self.check("hipFree", unsafe { (self.hip.free)(pointer(address)) })
    }

    fn alloc_host(&self, bytes: usize) -> Result<*mut u8, ApiError> {
        let mut memory = ptr::null_mut();
        self.check("hipHostMalloc", unsafe { (self.hip.host_malloc)(&mut memory, bytes, 0) })?;
        Ok(memory.cast())
    }

    unsafe fn free_host(&self, memory: *mut u8) -> Result<(), ApiError> {
        self.check("hipHostFree", unsafe { (self.hip.host_free)(memory.cast()) })
    }

    unsafe fn copy_in(&self, dst: u64, src: &[u8]) -> Result<(), ApiError> {
        // Copies from ordinary memory end before this returns.
        let from = src.as_ptr().cast_mut().cast();
        let copied = unsafe { (self.hip.copy_in)(pointer(dst), from, src.len(), self.stream) };
        self.check("hipMemcpyHtoDAsync", copied)
    }

    unsafe fn copy_out(&self, dst: *mut u8, src: u64, bytes: usize) -> Result<(), ApiError> {
        let copied = unsafe { (self.hip.copy_out)(dst.cast(), pointer(src), bytes, self.stream) };
        self.check("hipMemcpyDtoHAsync", copied)
    }

    unsafe fn copy(&self, dst: u64, src: u64, bytes: usize) -> Result<(), ApiError> {
        let copied = unsafe { (self.hip.copy)(pointer(dst), pointer(src), bytes, self.stream) };
        self.check("hipMemcpyDtoDAsync", copied)
    }

    unsafe fn clear(&self, dst: u64, bytes: usize) -> Result<(), ApiError> {
        self.check("hipMemsetAsync", unsafe { (self.hip.clear)(pointer(dst), 0, bytes, self.stream) })
    }

    fn load(&self, image: &[u8], entry: &CStr, _shared_bytes: u32) -> Result<LoadedKernel, ApiError> {
        // All 64 KiB of a CDNA unit's shared memory may be used without being asked.
        let (mut module, mut function) = (ptr::null_mut(), ptr::null_mut());
        let loaded = unsafe { (self.hip.module_load)(&mut module, image.as_ptr().cast()) };
        self.check("hipModuleLoadData", loaded)?;
        let found = unsafe { (self.hip.module_function)(&mut function, module, entry.as_ptr()) };
        if let Err(error) = self.check("hipModuleGetFunction", found) {
            unsafe { (self.hip.module_unload)(module) };
            return Err(error);
        }
        Ok(LoadedKernel { module: Handle(module), function: Handle(function) })
    }

    unsafe fn unload(&self, module: Handle) -> Result<(), ApiError> {
        self.check("hipModuleUnload", unsafe { (self.hip.module_unload)(module.0) })
    }

    unsafe fn launch(&self, function: Handle, launch: RawLaunch<'_>) -> Result<(), ApiError> {
        let ([x, y, z], parameters) = (launch.grid, launch.parameters.as_mut_ptr());
        let (threads, shared, none) = (launch.threads, launch.shared_bytes, ptr::null_mut());
        let launched =
            unsafe { (self.hip.launch)(function.0, x, y, z, threads, 1, 1, shared, self.stream, parameters, none) };
        self.check("hipModuleLaunchKernel", launched)
    }

    fn record_event(&self) -> Result<Handle, ApiError> {
        let mut event = ptr::null_mut();
        let created = unsafe { (self.hip.event_create)(&mut event, DISABLE_TIMING) };
        self.check("hipEventCreateWithFlags", created)?;
        let recorded = unsafe { (self.hip.event_record)(event, self.stream) };
        if let Err(error) = self.check("hipEventRecord", recorded) {
            unsafe { (self.hip.event_destroy)(event) };
            return Err(error);
        }
        Ok(Handle(event))
    }

    unsafe fn wait_event(&self, event: Handle) -> Result<(), ApiError> {
        self.check("hipEventSynchronize", unsafe { (self.hip.event_wait)(event.0) })
    }

    unsafe fn destroy_event(&self, event: Handle) -> Result<(), ApiError> {
        self.check("hipEventDestroy", unsafe { (self.hip.event_destroy)(event.0) })
    }

    fn begin_capture(&self) -> Result<(), ApiError> {
        self.check("hipStreamBeginCapture", unsafe { (self.hip.capture_begin)(self.stream, THREAD_LOCAL) })
    }

    fn end_capture(&self) -> Result<Handle, ApiError> {
        let (mut graph, mut ready) = (ptr::null_mut(), ptr::null_mut());
        self.check("hipStreamEndCapture", unsafe { (self.hip.capture_end)(self.stream, &mut graph) })?;
        let made = unsafe { (self.hip.graph_ready)(&mut ready, graph, ptr::null_mut(), ptr::null_mut(), 0) };
        let made = self.check("hipGraphInstantiate", made);
        unsafe { (self.hip.graph_destroy)(graph) };
        made.map(|()| Handle(ready))
    }

    unsafe fn launch_graph(&self, graph: Handle) -> Result<(), ApiError> {
        self.check("hipGraphLaunch", unsafe { (self.hip.graph_launch)(graph.0, self.stream) })
    }

    unsafe fn destroy_graph(&self, graph: Handle) -> Result<(), ApiError> {
        self.check("hipGraphExecDestroy", unsafe { (self.hip.graph_ready_destroy)(graph.0) })
    }

    fn synchronize(&self) -> Result<(), ApiError> {
        self.check("hipStreamSynchronize", unsafe { (self.hip.stream_wait)(self.stream) })
    }
}
