//! From an ordinal to a driver: the library, the device, what it is.

use std::ffi::{CStr, c_char};

use cudarc::driver::sys;
use perilune_gpu::DriverInfo;
use perilune_gpu::stream::{ApiError, StreamDriver};
use perilune_kernels_dsl::Target;

use crate::api::{CudaApi, check};
use crate::error::CudaError;

/// Oldest driver: the first whose graphs, streams and binaries are those used here (CUDA 12.0).
const NEEDED: i32 = 12_000;

/// Opens a device.
///
/// # Errors
/// What is missing.
pub fn open(ordinal: usize) -> Result<StreamDriver<CudaApi>, CudaError> {
    // SAFETY: loads the driver's library, whose initialisers have no preconditions.
    if !unsafe { sys::is_culib_present() } {
        return Err(CudaError::NoLibrary);
    }
    // SAFETY: so for all calls here: the library is there, pointers are to live variables of the types asked for.
    unsafe {
        call("cuInit", sys::cuInit(0))?;
        let (mut found, mut count, mut device) = (0, 0, 0);
        call("cuDriverGetVersion", sys::cuDriverGetVersion(&mut found))?;
        if found < NEEDED {
            return Err(CudaError::OldDriver { found, needed: NEEDED });
        }
        call("cuDeviceGetCount", sys::cuDeviceGetCount(&mut count))?;
        let count = usize::try_from(count).unwrap_or(0);
        let number = i32::try_from(ordinal).ok().filter(|_| ordinal < count);
        let number = number.ok_or(CudaError::NoDevice { ordinal, count })?;
        call("cuDeviceGet", sys::cuDeviceGet(&mut device, number))?;
        let architecture = architecture(device)?;
        let name = name(device)?;
        let api = CudaApi::open(device).map_err(called)?;
        let (mut free, mut total) = (0, 0);
        call("cuMemGetInfo", sys::cuMemGetInfo_v2(&mut free, &mut total))?;
        let info = DriverInfo { name, architecture, memory_bytes: free, target: Target::CUDA };
        Ok(StreamDriver::new(api, info))
    }
}

fn called(error: ApiError) -> CudaError {
    match error {
        ApiError::OutOfMemory => CudaError::Call("out of memory".into()),
        ApiError::Fault(what) => CudaError::Call(what),
    }
}

fn call(function: &str, result: sys::CUresult) -> Result<(), CudaError> {
    check(function, result).map_err(called)
}

/// As the compiler calls it, with everything that the architecture has: `sm_90a`.
///
/// # Safety
/// The library is there and the device one of its own.
unsafe fn architecture(device: sys::CUdevice) -> Result<String, CudaError> {
    use sys::CUdevice_attribute::{
        CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR,
    };
    let ask = |attribute| {
        let mut value = 0;
        // SAFETY: the caller's promise.
        call("cuDeviceGetAttribute", unsafe { sys::cuDeviceGetAttribute(&mut value, attribute, device) })?;
        Ok(value)
    };
    let (major, minor) =
        (ask(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?, ask(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?);
    Ok(architecture_name(major, minor))
}

fn architecture_name(major: i32, minor: i32) -> String {
    let specific = if major >= 9 { "a" } else { "" };
    format!("sm_{major}{minor}{specific}")
}

/// # Safety
/// As [`architecture`].
unsafe fn name(device: sys::CUdevice) -> Result<String, CudaError> {
    let mut text: [c_char; 256] = [0; 256];
    // SAFETY: the caller's promise; the length is that of the buffer.
    call("cuDeviceGetName", unsafe { sys::cuDeviceGetName(text.as_mut_ptr(), text.len() as i32 - 1, device) })?;
    // SAFETY: the last byte is zero.
    Ok(unsafe { CStr::from_ptr(text.as_ptr()) }.to_string_lossy().into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn architectures_are_named_as_binaries_are_built_for() {
        assert_eq!([architecture_name(9, 0), architecture_name(10, 0)], ["sm_90a", "sm_100a"]);
        assert_eq!([architecture_name(8, 9), architecture_name(10, 3)], ["sm_89", "sm_103a"]);
    }

    /// On a machine with a device it is opened, on others the sentence says what is missing: it never panics.
    #[test]
    fn a_machine_without_the_library_is_told_so() {
        match open(0) {
            Ok(driver) => assert!(perilune_gpu::Driver::info(&driver).architecture.starts_with("sm_")),
            Err(CudaError::NoLibrary) => assert!(CudaError::NoLibrary.to_string().contains("libcuda.so.1")),
            Err(other) => assert!(!other.to_string().is_empty()),
        }
    }
}
