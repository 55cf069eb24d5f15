//! One file per operation: operation → problem → plan → launches.

pub(crate) mod norm;

use crate::launcher::Argument;
use crate::{Driver, GpuTensor};

/// A tensor as a kernel's buffer of elements of this size.
pub(crate) fn buffer<D: Driver>(tensor: &GpuTensor<D>, element_bytes: usize) -> Argument {
    Argument { region: tensor.region(), element_bytes }
}
