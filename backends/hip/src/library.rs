//! The functions of HIP's run-time library that are used, found by name when it is loaded.
//!
//! Signatures are those of `hip/hip_runtime_api.h` since ROCm 6.0; results are the enumeration `hipError_t`.

use std::ffi::{c_char, c_int, c_uint, c_void};

use libloading::Library;

use crate::error::HipError;

/// `hipError_t`: 0 is success.
pub(crate) type Status = c_int;
/// Any of HIP's handles.
pub(crate) type Pointer = *mut c_void;

/// File names, newest first; the last is the development link.
const NAMES: [&str; 4] = ["libamdhip64.so.8", "libamdhip64.so.7", "libamdhip64.so.6", "libamdhip64.so"];

macro_rules! functions {
    ($($(#[$doc:meta])* $field:ident = $symbol:literal: fn($($argument:ty),*) -> $result:ty;)*) => {
        /// The loaded library.
        #[derive(Debug)]
        pub(crate) struct Hip {
            $($(#[$doc])* pub(crate) $field: unsafe extern "C" fn($($argument),*) -> $result,)*
            /// Last, so that it is closed last.
            _library: Library,
        }

        impl Hip {
            /// The functions of an open library.
            ///
            /// # Errors
            /// `NoFunction`.
            fn of(library: Library) -> Result<Hip, HipError> {
                Ok(Hip {
                    $($field: {
                        // SAFETY: the type is the documented signature of this name.
                        let symbol = unsafe { library.get::<unsafe extern "C" fn($($argument),*) -> $result>($symbol) };
                        *symbol.map_err(|_| HipError::NoFunction { name: name_of($symbol) })?
                    },)*
                    _library: library,
                })
            }
        }
    };
}

functions! {
    init = b"hipInit\0": fn(c_uint) -> Status;
    device_count = b"hipGetDeviceCount\0": fn(*mut c_int) -> Status;
    set_device = b"hipSetDevice\0": fn(c_int) -> Status;
    /// Fills a structure whose size and layout differ between versions.
    properties = b"hipGetDevicePropertiesR0600\0": fn(Pointer, c_int) -> Status;
    memory_info = b"hipMemGetInfo\0": fn(*mut usize, *mut usize) -> Status;
    error_name = b"hipGetErrorName\0": fn(Status) -> *const c_char;
    error_text = b"hipGetErrorString\0": fn(Status) -> *const c_char;
    malloc = b"hipMalloc\0": fn(*mut Pointer, usize) -> Status;
    free = b"hipFree\0": fn(Pointer) -> Status;
    host_malloc = b"hipHostMalloc\0": fn(*mut Pointer, usize, c_uint) -> Status;
    host_free = b"hipHostFree\0": fn(Pointer) -> Status;
    copy_in = b"hipMemcpyHtoDAsync\0": fn(Pointer, Pointer, usize, Pointer) -> Status;
    copy_out = b"hipMemcpyDtoHAsync\0": fn(Pointer, Pointer, usize, Pointer) -> Status;
    copy = b"hipMemcpyDtoDAsync\0": fn(Pointer, Pointer, usize, Pointer) -> Status;
    clear = b"hipMemsetAsync\0": fn(Pointer, c_int, usize, Pointer) -> Status;
    module_load = b"hipModuleLoadData\0": fn(*mut Pointer, *const c_void) -> Status;
    module_unload = b"hipModuleUnload\0": fn(Pointer) -> Status;
    module_function = b"hipModuleGetFunction\0": fn(*mut Pointer, Pointer, *const c_char) -> Status;
    /// Function; grid; block; shared bytes; stream; parameters; extra.
    launch = b"hipModuleLaunchKernel\0": fn(
        Pointer, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, Pointer, *mut Pointer, *mut Pointer
    ) -> Status;
    event_create = b"hipEventCreateWithFlags\0": fn(*mut Pointer, c_uint) -> Status;
    event_record = b"hipEventRecord\0": fn(Pointer, Pointer) -> Status;
    event_wait = b"hipEventSynchronize\0": fn(Pointer) -> Status;
    event_destroy = b"hipEventDestroy\0": fn(Pointer) -> Status;
    stream_create = b"hipStreamCreateWithFlags\0": fn(*mut Pointer, c_uint) -> Status;
    stream_destroy = b"hipStreamDestroy\0": fn(Pointer) -> Status;
    stream_wait = b"hipStreamSynchronize\0": fn(Pointer) -> Status;
    capture_begin = b"hipStreamBeginCapture\0": fn(Pointer, c_int) -> Status;
    capture_end = b"hipStreamEndCapture\0": fn(Pointer, *mut Pointer) -> Status;
    graph_ready = b"hipGraphInstantiate\0": fn(*mut Pointer, Pointer, *mut Pointer, *mut c_char, usize) -> Status;
    graph_destroy = b"hipGraphDestroy\0": fn(Pointer) -> Status;
    graph_launch = b"hipGraphLaunch\0": fn(Pointer, Pointer) -> Status;
    graph_ready_destroy = b"hipGraphExecDestroy\0": fn(Pointer) -> Status;
}

fn name_of(symbol: &[u8]) -> String {
    String::from_utf8_lossy(symbol).trim_end_matches('\0').to_owned()
}

impl Hip {
    /// Loads the library.
    ///
    /// # Errors
    /// `NoLibrary`, `NoFunction`.
    pub(crate) fn load() -> Result<Hip, HipError> {
        Hip::load_named(&NAMES)
    }

    fn load_named(names: &[&str]) -> Result<Hip, HipError> {
        // SAFETY: the library's initialisers have no preconditions.
        let opened = names.iter().find_map(|name| unsafe { Library::new(*name) }.ok());
        Hip::of(opened.ok_or_else(|| HipError::NoLibrary { names: names.join(", ") })?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_library_is_named() {
        let error = Hip::load_named(&["libno-such-library.so"]).unwrap_err();
        assert!(error.to_string().contains("libno-such-library.so"), "{error}");
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn a_library_without_the_functions_is_not_taken_for_hip() {
        let error = Hip::load_named(&["libc.so.6"]).unwrap_err();
        assert_eq!(error, HipError::NoFunction { name: "hipInit".into() });
    }
}
