//! CUDA's functions in the words of [`StreamApi`].

use std::ffi::{CStr, c_char, c_void};
use std::ptr;

use cudarc::driver::sys;
use perilune_gpu::stream::{ApiError, Handle, LoadedKernel, RawLaunch, StreamApi};

/// Dynamic shared memory that a kernel may use without being asked.
const PLAIN_SHARED_BYTES: u32 = 48 << 10;

/// A device's primary context and a stream of its own.
#[derive(Debug)]
pub struct CudaApi {
    device: sys::CUdevice,
    context: sys::CUcontext,
    stream: sys::CUstream,
}

// SAFETY: handles of the driver may be used from any thread whose current context is the right one.
unsafe impl Send for CudaApi {}
// SAFETY: as above; the driver locks what it shares.
unsafe impl Sync for CudaApi {}

/// The outcome of a call of this name.
pub(crate) fn check(function: &str, result: sys::CUresult) -> Result<(), ApiError> {
    match result {
        sys::CUresult::CUDA_SUCCESS => Ok(()),
        sys::CUresult::CUDA_ERROR_OUT_OF_MEMORY => Err(ApiError::OutOfMemory),
        other => Err(ApiError::Fault(format!("{function}: {}", text(other)))),
    }
}

/// `CUDA_ERROR_ILLEGAL_ADDRESS, an illegal memory access was encountered`.
fn text(result: sys::CUresult) -> String {
    type Ask = unsafe fn(sys::CUresult, *mut *const c_char) -> sys::CUresult;
    let ask = |function: Ask| {
        let mut words: *const c_char = ptr::null();
        // SAFETY: the library is loaded, where results come from; the pointer is to a live variable.
        let known = unsafe { function(result, &mut words) } == sys::CUresult::CUDA_SUCCESS && !words.is_null();
        // SAFETY: the library's own constant text.
        known.then(|| unsafe { CStr::from_ptr(words) }.to_string_lossy().into_owned())
    };
    match (ask(sys::cuGetErrorName), ask(sys::cuGetErrorString)) {
        (Some(name), Some(sentence)) => format!("{name}, {sentence}"),
        _ => format!("error {}", result as u32),
    }
}

impl CudaApi {
    /// Retains the device's context, makes it current, and creates a stream.
    ///
    /// # Safety
    /// The library is loaded and initialised and the device one of its own.
    pub(crate) unsafe fn open(device: sys::CUdevice) -> Result<CudaApi, ApiError> {
        let mut api = CudaApi { device, context: ptr::null_mut(), stream: ptr::null_mut() };
        // SAFETY: the caller's promise; the pointers are to live variables.
        unsafe {
            check("cuDevicePrimaryCtxRetain", sys::cuDevicePrimaryCtxRetain(&mut api.context, device))?;
            check("cuCtxSetCurrent", sys::cuCtxSetCurrent(api.context))?;
            let flags = sys::CUstream_flags::CU_STREAM_NON_BLOCKING as u32;
            check("cuStreamCreate", sys::cuStreamCreate(&mut api.stream, flags))?;
        }
        Ok(api)
    }
}

impl Drop for CudaApi {
    fn drop(&mut self) {
        // SAFETY: both were created with this object and nothing made with it is left.
        unsafe {
            if !self.stream.is_null() {
                sys::cuCtxSetCurrent(self.context);
                sys::cuStreamDestroy_v2(self.stream);
            }
            if !self.context.is_null() {
                sys::cuDevicePrimaryCtxRelease_v2(self.device);
            }
        }
    }
}

// SAFETY, for all of it: handles were made by this object, addresses and pointers are valid as the trait's callers promise,
// results go to live variables.
#[allow(clippy::undocumented_unsafe_blocks)]
impl StreamApi for CudaApi {
    fn make_current(&self) -> Result<(), ApiError> {
        check("cuCtxSetCurrent", unsafe { sys::cuCtxSetCurrent(self.context) })
    }

    fn alloc(&self, bytes: usize) -> Result<u64, ApiError> {
        let mut address = 0;
        check("cuMemAlloc", unsafe { sys::cuMemAlloc_v2(&mut address, bytes) })?;
        Ok(address)
    }

    unsafe fn free(&self, address: u64) -> Result<(), ApiError> {
        check("cuMemFree", unsafe { sys::cuMemFree_v2(address) })
    }

    fn alloc_host(&self, bytes: usize) -> Result<*mut u8, ApiError> {
        let mut pointer = ptr::null_mut();
        check("cuMemHostAlloc", unsafe { sys::cuMemHostAlloc(&mut pointer, bytes, 0) })?;
        Ok(pointer.cast())
    }

    unsafe fn free_host(&self, pointer: *mut u8) -> Result<(), ApiError> {
        check("cuMemFreeHost", unsafe { sys::cuMemFreeHost(pointer.cast()) })
    }

    unsafe fn copy_in(&self, dst: u64, src: &[u8]) -> Result<(), ApiError> {
        // Ordinary memory is copied to the driver's own before this returns.
        let copied = unsafe { sys::cuMemcpyHtoDAsync_v2(dst, src.as_ptr().cast(), src.len(), self.stream) };
        check("cuMemcpyHtoDAsync", copied)
    }

    unsafe fn copy_out(&self, dst: *mut u8, src: u64, bytes: usize) -> Result<(), ApiError> {
        check("cuMemcpyDtoHAsync", unsafe { sys::cuMemcpyDtoHAsync_v2(dst.cast(), src, bytes, self.stream) })
    }

    unsafe fn copy(&self, dst: u64, src: u64, bytes: usize) -> Result<(), ApiError> {
        check("cuMemcpyDtoDAsync", unsafe { sys::cuMemcpyDtoDAsync_v2(dst, src, bytes, self.stream) })
    }

    unsafe fn clear(&self, dst: u64, bytes: usize) -> Result<(), ApiError> {
        check("cuMemsetD8Async", unsafe { sys::cuMemsetD8Async(dst, 0, bytes, self.stream) })
    }

    fn load(&self, image: &[u8], entry: &CStr, shared_bytes: u32) -> Result<LoadedKernel, ApiError> {
        let (mut module, mut function) = (ptr::null_mut(), ptr::null_mut());
        check("cuModuleLoadData", unsafe { sys::cuModuleLoadData(&mut module, image.as_ptr().cast()) })?;
        let found =
            check("cuModuleGetFunction", unsafe { sys::cuModuleGetFunction(&mut function, module, entry.as_ptr()) });
        let ready = found.and_then(|()| {
            if shared_bytes <= PLAIN_SHARED_BYTES {
                return Ok(());
            }
            let limit = sys::CUfunction_attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
            check("cuFuncSetAttribute", unsafe { sys::cuFuncSetAttribute(function, limit, shared_bytes as i32) })
        });
        if let Err(error) = ready {
            unsafe { sys::cuModuleUnload(module) };
            return Err(error);
        }
        Ok(LoadedKernel { module: Handle(module.cast()), function: Handle(function.cast()) })
    }

    unsafe fn unload(&self, module: Handle) -> Result<(), ApiError> {
        check("cuModuleUnload", unsafe { sys::cuModuleUnload(module.0.cast()) })
    }

    unsafe fn launch(&self, function: Handle, launch: RawLaunch<'_>) -> Result<(), ApiError> {
        let ([x, y, z], parameters) = (launch.grid, launch.parameters.as_mut_ptr());
        let (threads, shared, none) = (launch.threads, launch.shared_bytes, ptr::null_mut::<*mut c_void>());
        let function = function.0.cast();
        let launched =
            unsafe { sys::cuLaunchKernel(function, x, y, z, threads, 1, 1, shared, self.stream, parameters, none) };
        check("cuLaunchKernel", launched)
    }

    fn record_event(&self) -> Result<Handle, ApiError> {
        let mut event = ptr::null_mut();
        let flags = sys::CUevent_flags::CU_EVENT_DISABLE_TIMING as u32;
        check("cuEventCreate", unsafe { sys::cuEventCreate(&mut event, flags) })?;
        if let Err(error) = check("cuEventRecord", unsafe { sys::cuEventRecord(event, self.stream) }) {
            unsafe { sys::cuEventDestroy_v2(event) };
            return Err(error);
        }
        Ok(Handle(event.cast()))
    }

    unsafe fn wait_event(&self, event: Handle) -> Result<(), ApiError> {
        check("cuEventSynchronize", unsafe { sys::cuEventSynchronize(event.0.cast()) })
    }

    unsafe fn destroy_event(&self, event: Handle) -> Result<(), ApiError> {
        check("cuEventDestroy", unsafe { sys::cuEventDestroy_v2(event.0.cast()) })
    }

    fn begin_capture(&self) -> Result<(), ApiError> {
        let mode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
        check("cuStreamBeginCapture", unsafe { sys::cuStreamBeginCapture_v2(self.stream, mode) })
    }

    fn end_capture(&self) -> Result<Handle, ApiError> {
        let (mut graph, mut ready) = (ptr::null_mut(), ptr::null_mut());
        check("cuStreamEndCapture", unsafe { sys::cuStreamEndCapture(self.stream, &mut graph) })?;
        let made = check("cuGraphInstantiate", unsafe { sys::cuGraphInstantiateWithFlags(&mut ready, graph, 0) });
        unsafe { sys::cuGraphDestroy(graph) };
        made.map(|()| Handle(ready.cast()))
    }

    unsafe fn launch_graph(&self, graph: Handle) -> Result<(), ApiError> {
        check("cuGraphLaunch", unsafe { sys::cuGraphLaunch(graph.0.cast(), self.stream) })
    }

    unsafe fn destroy_graph(&self, graph: Handle) -> Result<(), ApiError> {
        check("cuGraphExecDestroy", unsafe { sys::cuGraphExecDestroy(graph.0.cast()) })
    }

    fn synchronize(&self) -> Result<(), ApiError> {
        check("cuStreamSynchronize", unsafe { sys::cuStreamSynchronize(self.stream) })
    }
}
