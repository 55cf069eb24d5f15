//! What a tensor is before it has a device.
