//! A weight matrix on a device, in the format it is stored in.

use perilune_tensor::{DType, MXFP4_GROUP, QuantFormat};

use crate::{BackendError, DeviceTensor};

/// A matrix `[out, in]`; `y = x Wᵀ`.
#[derive(Debug)]
pub struct Weight<T> {
    /// How `data` and `scales` are to be read.
    pub format: QuantFormat,
    /// `[out, in]` of the format's element type; MXFP4: `U8 [out, in/2]`.
    pub data: T,
    /// MXFP4: `U8 [out, in/32]`; else `None`.
    pub scales: Option<T>,
}

impl<T: DeviceTensor> Weight<T> {
    /// Number of output features.
    pub fn out_features(&self) -> usize {
        self.data.spec().shape.rows()
    }

    /// Number of input features.
    pub fn in_features(&self) -> usize {
        let width = self.data.spec().shape.width();
        if self.format == QuantFormat::Mxfp4 { width * 2 } else { width }
    }

    /// Checks that data and scales have the shapes their format asks for.
    ///
    /// # Errors
    /// `Mismatch`, naming `op`.
    pub fn check(&self, op: &'static str) -> Result<(), BackendError> {
        let (dtype, wants_scales) = match self.format {
            QuantFormat::F32 => (DType::F32, false),
            QuantFormat::Bf16 => (DType::Bf16, false),
            QuantFormat::F16 => (DType::F16, false),
            QuantFormat::Mxfp4 => (DType::U8, true),
        };
        let mismatch = |field, found: String, expected: String| BackendError::Mismatch { op, field, found, expected };
        let spec = self.data.spec();
        if spec.dtype != dtype || spec.shape.dims().len() != 2 {
            return Err(mismatch("weight.data", spec.to_string(), format!("{dtype} of two dimensions")));
        }
        let scales = self.scales.as_ref().map(|s| s.spec());
        let wanted = wants_scales.then(|| [self.out_features(), self.in_features().div_ceil(MXFP4_GROUP)]);
        let found = scales.map(|s| s.shape.dims().to_vec());
        let fits = found.as_deref() == wanted.as_ref().map(|w| w.as_slice())
            && scales.is_none_or(|s| s.dtype == DType::U8)
            && (!wants_scales || self.in_features().is_multiple_of(MXFP4_GROUP));
        if !fits {
            return Err(mismatch("weight.scales", format!("{scales:?}"), format!("U8 {wanted:?}, whole groups of 32")));
        }
        Ok(())
    }
}
