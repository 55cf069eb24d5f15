//! Why a device cannot be opened.

/// A device that cannot be used, in a sentence that says what is missing.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CudaError {
    /// The driver's library is not on this machine.
    #[error(
        "CUDA's driver library (libcuda.so.1) is not on this machine: it comes with NVIDIA's driver, not the toolkit"
    )]
    NoLibrary,
    /// The driver is older than what this was built for.
    #[error("NVIDIA's driver speaks CUDA {}.{}, at least {}.{} is needed", .found / 1000, .found % 1000 / 10, .needed / 1000, .needed % 1000 / 10)]
    OldDriver {
        /// 1000 times the major version plus 10 times the minor one.
        found: i32,
        /// As above.
        needed: i32,
    },
    /// There is no such device.
    #[error("CUDA device {ordinal} was asked for, this machine has {count}")]
    NoDevice {
        /// Number of the device, from 0.
        ordinal: usize,
        /// Devices that the driver shows.
        count: usize,
    },
    /// A function of the library failed.
    #[error("cannot open the CUDA device: {0}")]
    Call(String),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_written_as_people_do() {
        let text = CudaError::OldDriver { found: 11080, needed: 12080 }.to_string();
        assert!(text.contains("CUDA 11.8") && text.contains("12.8"), "{text}");
    }
}
