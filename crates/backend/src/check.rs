//! Shape checks shared by the operations' `dims()`.

use perilune_tensor::{DType, TensorSpec};

use crate::{BackendError, DeviceTensor};

/// Checks the fields of one operation.
#[derive(Clone, Copy)]
pub(crate) struct Checker {
    pub(crate) op: &'static str,
}

impl Checker {
    /// The tensor must have this element type, this width, and at least `rows` rows.
    pub(crate) fn rows<T: DeviceTensor>(
        self,
        field: &'static str,
        tensor: &T,
        wanted: (DType, usize, usize),
    ) -> Result<(), BackendError> {
        let (dtype, rows, width) = wanted;
        let spec = tensor.spec();
        if spec.dtype != dtype || spec.shape.width() != width || spec.shape.rows() < rows {
            return Err(self.fail(field, spec, format!("{dtype} [>= {rows}, {width}]")));
        }
        Ok(())
    }

    /// The tensor must be `dtype` with exactly these extents.
    pub(crate) fn exact<T: DeviceTensor>(
        self,
        field: &'static str,
        tensor: &T,
        wanted: TensorSpec,
    ) -> Result<(), BackendError> {
        if *tensor.spec() != wanted {
            return Err(self.fail(field, tensor.spec(), wanted.to_string()));
        }
        Ok(())
    }

    /// The tensor must be `dtype` with at least `len` elements.
    pub(crate) fn at_least<T: DeviceTensor>(
        self,
        field: &'static str,
        tensor: &T,
        wanted: (DType, usize),
    ) -> Result<(), BackendError> {
        let (dtype, len) = wanted;
        let spec = tensor.spec();
        if spec.dtype != dtype || spec.shape.numel() < len {
            return Err(self.fail(field, spec, format!("{dtype} with at least {len} elements")));
        }
        Ok(())
    }

    /// A plain condition on two values of the operation.
    pub(crate) fn equal(self, field: &'static str, found: usize, expected: usize) -> Result<(), BackendError> {
        if found != expected {
            return Err(self.fail(field, found, expected.to_string()));
        }
        Ok(())
    }

    pub(crate) fn fail(self, field: &'static str, found: impl ToString, expected: String) -> BackendError {
        BackendError::Mismatch { op: self.op, field, found: found.to_string(), expected }
    }
}
