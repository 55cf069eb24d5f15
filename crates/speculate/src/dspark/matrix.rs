//! Matrices in host memory cut and joined, so that what is multiplied by the same rows is multiplied at once and what is
//! multiplied by parts of a concatenation need not be concatenated.

use std::ops::Range;

use perilune_tensor::{DType, HostTensor, QuantFormat, TensorSpec};
use perilune_weights::{HostWeight, WeightsError};

/// `[a; b]`: the features of both. As `F32` where their formats differ.
pub(crate) fn stack(a: &HostWeight, b: &HostWeight) -> Result<HostWeight, WeightsError> {
    let rows = a.data.spec().shape.rows() + b.data.spec().shape.rows();
    let size = [rows, a.data.spec().shape.width()];
    check_float(a)?;
    check_float(b)?;
    if a.format == b.format {
        return made(a.format, size, [a.data.bytes(), b.data.bytes()].concat());
    }
    let values = [a.data.to_f32(), b.data.to_f32()].concat();
    made(QuantFormat::F32, size, bytemuck::cast_slice(&values).to_vec())
}

/// Some columns of all features.
pub(crate) fn columns(weight: &HostWeight, range: Range<usize>) -> Result<HostWeight, WeightsError> {
    check_float(weight)?;
    let spec = weight.data.spec();
    let element = spec.dtype.size_bytes();
    let rows = weight.data.bytes().chunks_exact(spec.shape.width() * element);
    let bytes = rows.flat_map(|row| &row[range.start * element..range.end * element]).copied().collect();
    made(weight.format, [spec.shape.rows(), range.len()], bytes)
}

/// The same values as `F32`.
pub(crate) fn widened(weight: &HostWeight) -> Result<HostWeight, WeightsError> {
    check_float(weight)?;
    let values = weight.data.to_f32();
    let spec = weight.data.spec();
    made(QuantFormat::F32, [spec.shape.rows(), spec.shape.width()], bytemuck::cast_slice(&values).to_vec())
}

/// Only numbers that stand for themselves can be cut and joined.
fn check_float(weight: &HostWeight) -> Result<(), WeightsError> {
    if weight.format.is_float() {
        return Ok(());
    }
    Err(WeightsError::Mismatch {
        name: "a matrix of the draft".into(),
        found: format!("{:?}", weight.format),
        expected: "F32, BF16 or F16: drafts are not rounded".into(),
    })
}

fn made(format: QuantFormat, size: [usize; 2], bytes: Vec<u8>) -> Result<HostWeight, WeightsError> {
    let dtype = match format {
        QuantFormat::Bf16 => DType::Bf16,
        QuantFormat::F16 => DType::F16,
        _ => DType::F32,
    };
    let (spec, count) = (TensorSpec::new(dtype, size), bytes.len());
    let mismatch = || WeightsError::Mismatch {
        name: "a matrix of the draft".into(),
        found: format!("{count} bytes"),
        expected: format!("{dtype} {size:?}"),
    };
    let data = HostTensor::from_vec(spec, bytes).ok_or_else(mismatch)?;
    Ok(HostWeight { format, data, scales: None })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn f32s(size: [usize; 2], values: &[f32]) -> HostWeight {
        HostWeight { format: QuantFormat::F32, data: HostTensor::from_f32(size, values).unwrap(), scales: None }
    }

    fn bf16s(size: [usize; 2], values: &[f32]) -> HostWeight {
        let bytes = values.iter().flat_map(|v| ((v.to_bits() >> 16) as u16).to_le_bytes()).collect();
        made(QuantFormat::Bf16, size, bytes).unwrap()
    }

    #[test]
    fn joined_and_cut() {
        let (a, b) = (f32s([1, 3], &[1.0, 2.0, 3.0]), f32s([2, 3], &[4.0, 5.0, 6.0, 7.0, 8.0, 9.0]));
        let both = stack(&a, &b).unwrap();
        assert_eq!(both.data.to_f32(), [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0]);
        assert_eq!(columns(&both, 1..3).unwrap().data.to_f32(), [2.0, 3.0, 5.0, 6.0, 8.0, 9.0]);
        let narrow = bf16s([1, 3], &[0.5, -2.0, 16.0]);
        let mixed = stack(&a, &narrow).unwrap();
        assert_eq!((mixed.format, mixed.data.to_f32()), (QuantFormat::F32, vec![1.0, 2.0, 3.0, 0.5, -2.0, 16.0]));
        assert_eq!(columns(&narrow, 2..3).unwrap().data.to_f32(), [16.0]);
        assert_eq!(stack(&narrow, &narrow).unwrap().format, QuantFormat::Bf16);
        let rounded = HostWeight { format: QuantFormat::Int8, ..narrow.clone() };
        assert!(stack(&narrow, &rounded).is_err() && columns(&rounded, 0..1).is_err() && widened(&rounded).is_err());
        assert_eq!(widened(&narrow).unwrap().data.to_f32(), [0.5, -2.0, 16.0]);
    }
}
