//! Where the draft's tensors are, and of what numbers they are made.

use burn::tensor::{DType, Device, TensorCreationOptions};

/// A device and an element type.
#[derive(Debug, Clone)]
pub struct Place {
    /// The device.
    pub device: Device,
    /// `F32` to train; `F64` where gradients are checked.
    pub dtype: DType,
}

impl From<&Place> for TensorCreationOptions {
    fn from(place: &Place) -> Self {
        TensorCreationOptions::new(place.device.clone()).with_dtype(place.dtype)
    }
}

impl Place {
    /// Where drafts are trained: single precision on this device.
    pub fn training(device: Device) -> Self {
        Place { device, dtype: DType::F32 }
    }
}
