//! The structures of `device/interface.h`, and the functions of compiled code.

use std::ffi::c_char;

/// `EmuRegion`.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub(crate) struct NativeRegion {
    pub(crate) address: u64,
    pub(crate) bytes: u64,
}

/// `EmuTraffic`.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct NativeTraffic {
    pub(crate) read: u64,
    pub(crate) written: u64,
    pub(crate) distinct_read: u64,
    pub(crate) distinct_written: u64,
}

/// `EmuLaunch`.
#[repr(C)]
pub(crate) struct NativeLaunch {
    pub(crate) cubes: [u32; 3],
    pub(crate) units: u32,
    pub(crate) plane: u32,
    pub(crate) shared_bytes: u32,
    pub(crate) seed: u64,
    pub(crate) regions: *const NativeRegion,
    pub(crate) region_count: u32,
    pub(crate) buffer_count: u32,
    pub(crate) info: *const u8,
    pub(crate) info_bytes: u32,
    pub(crate) traffic: *mut NativeTraffic,
}

/// `EmuKernel`.
pub(crate) type NativeKernel = unsafe extern "C" fn(*const NativeLaunch);
/// `emu_launch`.
pub(crate) type NativeRun = unsafe extern "C" fn(NativeKernel, *const NativeLaunch, *mut c_char, u32) -> i32;
