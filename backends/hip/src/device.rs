//! From an ordinal to a driver: the library, the device, what it is.

use std::ffi::c_int;

use perilune_gpu::DriverInfo;
use perilune_gpu::stream::{ApiError, StreamDriver};
use perilune_kernels_dsl::Target;

use crate::api::{HipApi, check};
use crate::error::HipError;
use crate::library::Hip;

/// More than any version's `hipDeviceProp_t`.
const PROPERTIES: usize = 16 << 10;

/// Opens a device.
///
/// # Errors
/// What is missing.
pub fn open(ordinal: usize) -> Result<StreamDriver<HipApi>, HipError> {
    let hip = Hip::load()?;
    let called = |error| match error {
        ApiError::OutOfMemory => HipError::Call("out of memory".into()),
        ApiError::Fault(what) => HipError::Call(what),
    };
    let mut count: c_int = 0;
    let mut properties = vec![0_u64; PROPERTIES / 8];
    // SAFETY: pointers are to live variables of the types asked for; the structure has room.
    unsafe {
        check(&hip, "hipInit", (hip.init)(0)).map_err(called)?;
        check(&hip, "hipGetDeviceCount", (hip.device_count)(&mut count)).map_err(called)?;
    }
    let count = usize::try_from(count).unwrap_or(0);
    let device = c_int::try_from(ordinal).ok().filter(|_| ordinal < count);
    let device = device.ok_or(HipError::NoDevice { ordinal, count })?;
    // SAFETY: as above.
    let asked = unsafe { (hip.properties)(properties.as_mut_ptr().cast(), device) };
    check(&hip, "hipGetDeviceProperties", asked).map_err(called)?;
    let bytes: Vec<u8> = properties.iter().flat_map(|word| word.to_ne_bytes()).collect();
    let Some((name, architecture)) = read_properties(&bytes) else {
        return Err(HipError::Call("the device's properties name no architecture (gfx…)".into()));
    };
    let api = HipApi::open(hip, device).map_err(called)?;
    let memory_bytes = api.free_bytes().map_err(called)?;
    Ok(StreamDriver::new(api, DriverInfo { name, architecture, memory_bytes, target: Target::HIP }))
}

/// Name and architecture. The name comes first in every version of the structure; the architecture has moved, but nothing
/// else in it begins with `gfx`. Its features (`gfx942:sramecc+:xnack-`) do not matter to our binaries.
fn read_properties(bytes: &[u8]) -> Option<(String, String)> {
    let text = |bytes: &[u8]| {
        let end = bytes.iter().position(|b| *b == 0).unwrap_or(bytes.len());
        String::from_utf8_lossy(&bytes[..end]).into_owned()
    };
    let (name, rest) = bytes.split_at_checked(256)?;
    let at = rest.windows(3).position(|window| window == b"gfx")?;
    let architecture: String = text(&rest[at..]).chars().take_while(char::is_ascii_alphanumeric).collect();
    Some((text(name), architecture))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn name_and_architecture_are_found_wherever_they_lie() {
        for at in [300, 1160, 1500] {
            let mut bytes = vec![0; PROPERTIES];
            bytes[..19].copy_from_slice(b"AMD Instinct MI300X");
            bytes[at..at + 22].copy_from_slice(b"gfx942:sramecc+:xnack-");
            let found = read_properties(&bytes).unwrap();
            assert_eq!(found, ("AMD Instinct MI300X".to_owned(), "gfx942".to_owned()));
        }
        assert_eq!(read_properties(&[0; PROPERTIES]), None);
        assert_eq!(read_properties(b"gfx942"), None);
    }

    /// On a machine with a device it is opened, on others the sentence says what is missing: it never panics.
    #[test]
    fn a_machine_without_the_library_is_told_so() {
        match open(0) {
            Ok(driver) => assert!(perilune_gpu::Driver::info(&driver).architecture.starts_with("gfx")),
            Err(error) => assert!(error.to_string().contains("HIP"), "{error}"),
        }
    }
}
