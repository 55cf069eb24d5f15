//! Why a device cannot be opened.

/// A device that cannot be used, in a sentence that says what is missing.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum HipError {
    /// The run-time library is not on this machine.
    #[error("HIP's run-time library ({names}) is not on this machine: it comes with ROCm's package hip-runtime-amd")]
    NoLibrary {
        /// Names that were tried.
        names: String,
    },
    /// The library lacks a function.
    #[error("HIP's run-time library has no function {name}: ROCm 6.0 or newer is needed")]
    NoFunction {
        /// The function.
        name: String,
    },
    /// There is no such device.
    #[error("HIP device {ordinal} was asked for, this machine has {count}")]
    NoDevice {
        /// Number of the device, from 0.
        ordinal: usize,
        /// Devices that the library shows.
        count: usize,
    },
    /// A function of the library failed.
    #[error("cannot open the HIP device: {0}")]
    Call(String),
}
