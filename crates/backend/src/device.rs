//! Facts about a device, its tensors, and results that arrive later.

use perilune_tensor::{QuantFormat, TensorSpec};

use crate::BackendError;

/// What a backend says of itself.
#[derive(Debug, Clone)]
pub struct DeviceInfo {
    /// Backend and device in a few words, for people.
    pub name: String,
    /// Memory that tensors may use, in bytes.
    pub memory_bytes: usize,
    /// Weight formats that `linear` and `moe_experts` accept.
    pub formats: Vec<QuantFormat>,
}

/// A tensor that lives on a device. Row-major, without gaps.
pub trait DeviceTensor: Send + Sync + std::fmt::Debug + 'static {
    /// Shape and element type.
    fn spec(&self) -> &TensorSpec;
}

/// A result on its way from the device.
pub struct Download<D>(State<D>);

enum State<D> {
    Ready(D),
    Pending(Box<dyn FnOnce() -> Result<D, BackendError> + Send>),
}

impl<D> Download<D> {
    /// A result that is already here.
    pub fn ready(data: D) -> Self {
        Download(State::Ready(data))
    }

    /// A result that `wait` will fetch.
    pub fn pending(wait: impl FnOnce() -> Result<D, BackendError> + Send + 'static) -> Self {
        Download(State::Pending(Box::new(wait)))
    }

    /// Blocks until the result is here.
    ///
    /// # Errors
    /// Faults of the operations enqueued before it.
    pub fn wait(self) -> Result<D, BackendError> {
        match self.0 {
            State::Ready(data) => Ok(data),
            State::Pending(wait) => wait(),
        }
    }
}
