//! One file per operation: operation → problem → plan → launches.

pub(crate) mod activation;
pub(crate) mod experts;
pub(crate) mod gather;
pub(crate) mod kda;
pub(crate) mod linear;
pub(crate) mod mla;
pub(crate) mod norm;
pub(crate) mod residual;
pub(crate) mod route;
pub(crate) mod sample;

use perilune_backend::BackendError;
use perilune_kernels_dsl::Element;
use perilune_tensor::QuantFormat;

use crate::launcher::Argument;
use crate::{Driver, GpuTensor};

/// A tensor as a kernel's buffer of elements of this size.
pub(crate) fn buffer<D: Driver>(tensor: &GpuTensor<D>, element_bytes: usize) -> Argument {
    Argument { region: tensor.region(), element_bytes }
}

/// The element type of a format that is not packed.
pub(crate) fn element(op: &'static str, format: QuantFormat) -> Result<Element, BackendError> {
    match format {
        QuantFormat::F32 => Ok(Element::F32),
        QuantFormat::Bf16 => Ok(Element::Bf16),
        QuantFormat::F16 => Ok(Element::F16),
        QuantFormat::Mxfp4 | QuantFormat::Int8 | QuantFormat::Int4 => {
            Err(BackendError::Unsupported { op, what: format!("a matrix in {format:?}") })
        }
    }
}
