//! A weight matrix on a device, in the format it is stored in.

use perilune_tensor::{DType, INT_FEATURES, INT_GROUP, MXFP4_GROUP, QuantFormat};

use crate::{BackendError, DeviceTensor};

/// A matrix `[out, in]`; `y = x Wᵀ`.
#[derive(Debug)]
pub struct Weight<T> {
    /// How `data` and `scales` are to be read.
    pub format: QuantFormat,
    /// `[out, in]` of the format's element type; MXFP4, Int4: `U8 [out, in/2]`.
    pub data: T,
    /// MXFP4: `U8 [out, in/32]`; Int8, Int4: `BF16 [out, in/32]`; else `None`.
    pub scales: Option<T>,
}

impl<T: DeviceTensor> Weight<T> {
    /// Number of output features.
    pub fn out_features(&self) -> usize {
        self.data.spec().shape.rows()
    }

    /// Number of input features.
    pub fn in_features(&self) -> usize {
        self.data.spec().shape.width() * self.format.columns_per_element()
    }

    /// Checks that data and scales have the shapes their format asks for.
    ///
    /// # Errors
    /// `Mismatch`, naming `op`.
    pub fn check(&self, op: &'static str) -> Result<(), BackendError> {
        let dtype = self.format.dtype();
        let mismatch = |field, found: String, expected: String| BackendError::Mismatch { op, field, found, expected };
        let spec = self.data.spec();
        let whole = !self.format.is_int() || self.out_features().is_multiple_of(INT_FEATURES);
        if spec.dtype != dtype || spec.shape.dims().len() != 2 || !whole {
            let rows = if whole { "" } else { ", rows in sixteens" };
            return Err(mismatch("weight.data", spec.to_string(), format!("{dtype} of two dimensions{rows}")));
        }
        let (scale_dtype, group) = match self.format {
            QuantFormat::Mxfp4 => (DType::U8, MXFP4_GROUP),
            QuantFormat::Int8 | QuantFormat::Int4 => (DType::Bf16, INT_GROUP),
            QuantFormat::F32 | QuantFormat::Bf16 | QuantFormat::F16 if self.scales.is_none() => return Ok(()),
            QuantFormat::F32 | QuantFormat::Bf16 | QuantFormat::F16 => {
                return Err(mismatch("weight.scales", format!("{:?}", self.scales), "none".into()));
            }
        };
        let wanted = [self.out_features(), self.in_features() / group];
        let scales = self.scales.as_ref().map(|s| s.spec());
        let fits = scales.is_some_and(|s| s.dtype == scale_dtype && s.shape.dims() == wanted.as_slice());
        if !fits || !self.in_features().is_multiple_of(group) {
            let expected = format!("{scale_dtype} {wanted:?}, whole groups of {group}");
            return Err(mismatch("weight.scales", format!("{scales:?}"), expected));
        }
        Ok(())
    }
}
