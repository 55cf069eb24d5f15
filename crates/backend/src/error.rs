//! What can go wrong on a device.

/// An operation that could not be enqueued or did not finish.
#[derive(Debug, Clone, thiserror::Error)]
pub enum BackendError {
    /// Shapes, element types or indices of an operation do not fit together: a fault in the calling code.
    #[error("{op}: `{field}` is {found}, expected {expected}")]
    Mismatch {
        /// The operation.
        op: &'static str,
        /// The field of its struct.
        field: &'static str,
        /// What was passed.
        found: String,
        /// What fits the other fields.
        expected: String,
    },
    /// The backend does not implement this.
    #[error("{op}: {what} is not supported by this backend")]
    Unsupported {
        /// The operation.
        op: &'static str,
        /// What is missing.
        what: String,
    },
    /// Device memory is exhausted.
    #[error("out of device memory: {requested_bytes} bytes requested for {what}")]
    OutOfMemory {
        /// Size of the failed request.
        requested_bytes: usize,
        /// What it was for.
        what: String,
    },
    /// The device failed; its state is lost.
    #[error("device fault: {0}")]
    Device(String),
}
