//! What CUDA's driver library and HIP's have in common, function by function.

use std::ffi::{CStr, c_void};

/// An object of the vendor's library: a module, a function, an event, a graph.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Handle(pub *mut c_void);

// SAFETY: vendors' handles may be used from any thread; the pointer is never followed here.
unsafe impl Send for Handle {}
// SAFETY: as above.
unsafe impl Sync for Handle {}

/// A call that failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ApiError {
    /// Device or pinned host memory is exhausted.
    OutOfMemory,
    /// Everything else: the function and what the library says of it.
    Fault(String),
}

/// A loaded kernel: what to unload, and what to launch.
#[derive(Debug, Clone, Copy)]
pub struct LoadedKernel {
    /// The module.
    pub module: Handle,
    /// The entry point in it.
    pub function: Handle,
}

/// A launch in the form that both libraries take.
#[derive(Debug)]
pub struct RawLaunch<'a> {
    /// Blocks along x, y and z.
    pub grid: [u32; 3],
    /// Threads of a block, along x.
    pub threads: u32,
    /// Dynamic shared memory in bytes.
    pub shared_bytes: u32,
    /// One pointer per parameter to its value.
    pub parameters: &'a mut [*mut c_void],
}

/// A device and one queue on it.
///
/// The driver calls [`StreamApi::make_current`] on the calling thread before anything else. Addresses, pointers and handles
/// come from the same object and are valid; that is what callers of the `unsafe` functions promise.
#[allow(clippy::missing_safety_doc)] // said once, above
pub trait StreamApi: Send + Sync + 'static {
    /// Makes the device the calling thread's.
    ///
    /// # Errors
    /// As every function here: what the library says.
    fn make_current(&self) -> Result<(), ApiError>;

    /// Device memory, aligned to 256 bytes.
    fn alloc(&self, bytes: usize) -> Result<u64, ApiError>;

    /// Frees it; nothing that is enqueued uses it any more.
    unsafe fn free(&self, address: u64) -> Result<(), ApiError>;

    /// Host memory that the device copies to by itself.
    fn alloc_host(&self, bytes: usize) -> Result<*mut u8, ApiError>;

    /// Frees it; nothing that is enqueued uses it any more.
    unsafe fn free_host(&self, pointer: *mut u8) -> Result<(), ApiError>;

    /// Enqueues a copy from ordinary host memory, whose bytes are taken before the call returns.
    unsafe fn copy_in(&self, dst: u64, src: &[u8]) -> Result<(), ApiError>;

    /// Enqueues a copy to memory of [`StreamApi::alloc_host`].
    unsafe fn copy_out(&self, dst: *mut u8, src: u64, bytes: usize) -> Result<(), ApiError>;

    /// Enqueues a copy within the device.
    unsafe fn copy(&self, dst: u64, src: u64, bytes: usize) -> Result<(), ApiError>;

    /// Enqueues zero bytes.
    unsafe fn clear(&self, dst: u64, bytes: usize) -> Result<(), ApiError>;

    /// Loads a binary and finds an entry point that may use this much dynamic shared memory.
    fn load(&self, image: &[u8], entry: &CStr, shared_bytes: u32) -> Result<LoadedKernel, ApiError>;

    /// Unloads a module; nothing that is enqueued uses it any more.
    unsafe fn unload(&self, module: Handle) -> Result<(), ApiError>;

    /// Enqueues a launch.
    unsafe fn launch(&self, function: Handle, launch: RawLaunch<'_>) -> Result<(), ApiError>;

    /// An event at the end of the queue.
    fn record_event(&self) -> Result<Handle, ApiError>;

    /// Waits for everything before an event.
    unsafe fn wait_event(&self, event: Handle) -> Result<(), ApiError>;

    /// Gives an event back.
    unsafe fn destroy_event(&self, event: Handle) -> Result<(), ApiError>;

    /// From now on, what this thread enqueues is recorded instead of run.
    fn begin_capture(&self) -> Result<(), ApiError>;

    /// Ends it; the recording can be launched.
    fn end_capture(&self) -> Result<Handle, ApiError>;

    /// Enqueues a recording.
    unsafe fn launch_graph(&self, graph: Handle) -> Result<(), ApiError>;

    /// Gives a recording back; nothing that is enqueued uses it any more.
    unsafe fn destroy_graph(&self, graph: Handle) -> Result<(), ApiError>;

    /// Waits for everything enqueued.
    fn synchronize(&self) -> Result<(), ApiError>;
}
