//! Rounds floating-point matrices to whole numbers with shared scales as they are loaded.

use perilune_tensor::{DType, HostTensor, INT_FEATURES, INT_GROUP, QuantFormat, TensorSpec};

use crate::HostWeight;

/// Elements from which on several threads pay.
const PARALLEL_ELEMENTS: usize = 1 << 20;

/// What a model's matrices are rounded to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Quantize {
    /// [`QuantFormat::Int8`].
    Int8,
    /// [`QuantFormat::Int4`]; the head, whose errors nothing after it corrects, becomes [`QuantFormat::Int8`].
    Int4,
}

impl Quantize {
    /// The format for a matrix of this name, format and size; `None` where it stays as it is: formats that are packed
    /// already, sizes that do not fit, the embedding (rows of it are looked up), routers (small, and a choice of expert
    /// is all or nothing), and the matrix that MLA absorbs.
    pub fn format(self, name: &str, stored: QuantFormat, [out, inp]: [usize; 2]) -> Option<QuantFormat> {
        let kept = ["embed_tokens.weight", "kv_b_proj.weight", "block_sparse_moe.gate.weight"];
        let fits = out.is_multiple_of(INT_FEATURES) && inp.is_multiple_of(INT_GROUP) && out * inp > 0;
        if !stored.is_float() || !fits || kept.iter().any(|kept| name.ends_with(kept)) {
            return None;
        }
        match self {
            Quantize::Int4 if !name.ends_with("lm_head.weight") => Some(QuantFormat::Int4),
            Quantize::Int8 | Quantize::Int4 => Some(QuantFormat::Int8),
        }
    }
}

/// The matrix in a format of whole numbers; `None` where it does not fit [`Quantize::format`].
///
/// Int8 takes the largest magnitude of a group as 127, Int4 the value of the largest magnitude as -8. Scales are rounded
/// to bfloat16 first, so that numbers are rounded with the scale that they will be multiplied by.
pub(crate) fn quantize(host: &HostWeight, format: QuantFormat) -> Option<HostWeight> {
    let [out, inp] = host.data.spec().shape.dims() else { return None };
    let (out, inp) = (*out, *inp);
    if !format.is_int()
        || !host.format.is_float()
        || !out.is_multiple_of(INT_FEATURES)
        || !inp.is_multiple_of(INT_GROUP)
    {
        return None;
    }
    let width = inp / format.columns_per_element();
    let (mut data, mut scales) = (vec![0; out * width], vec![0; 2 * out * (inp / INT_GROUP)]);
    let source = Source { bytes: host.data.bytes(), dtype: host.data.spec().dtype, columns: inp };
    let blocks = out / INT_FEATURES;
    let threads =
        if out * inp < PARALLEL_ELEMENTS { 1 } else { std::thread::available_parallelism().map_or(1, usize::from) };
    let share = blocks.div_ceil(threads).max(1);
    let (data_block, scale_block) = (INT_FEATURES * width, 2 * INT_FEATURES * (inp / INT_GROUP));
    let round = |first: usize, data: &mut [u8], scales: &mut [u8]| {
        for (i, (data, scales)) in data.chunks_mut(data_block).zip(scales.chunks_mut(scale_block)).enumerate() {
            for feature in 0..INT_FEATURES {
                source.round((first + i) * INT_FEATURES + feature, format, (data, scales));
            }
        }
    };
    std::thread::scope(|scope| {
        let parts = data.chunks_mut(share * data_block).zip(scales.chunks_mut(share * scale_block));
        for (i, (data, scales)) in parts.enumerate() {
            if threads == 1 {
                round(i * share, data, scales);
            } else {
                let round = &round;
                scope.spawn(move || round(i * share, data, scales));
            }
        }
    });
    Some(HostWeight {
        format,
        data: HostTensor::from_vec(TensorSpec::new(DType::U8, [out, width]), data)?,
        scales: Some(HostTensor::from_vec(TensorSpec::new(DType::Bf16, [out, inp / INT_GROUP]), scales)?),
    })
}

/// Rows of a stored matrix.
#[derive(Clone, Copy)]
struct Source<'a> {
    bytes: &'a [u8],
    dtype: DType,
    columns: usize,
}

impl Source<'_> {
    /// One group of a row, widened.
    fn group(&self, row: usize, group: usize) -> [f32; INT_GROUP] {
        let size = self.dtype.size_bytes();
        let start = (row * self.columns + group * INT_GROUP) * size;
        let bytes = &self.bytes[start..start + INT_GROUP * size];
        let mut values = [0.0; INT_GROUP];
        match self.dtype {
            DType::Bf16 => values.iter_mut().zip(bytes.chunks_exact(2)).for_each(|(value, b)| {
                *value = half::bf16::from_le_bytes([b[0], b[1]]).to_f32();
            }),
            DType::F16 => values.iter_mut().zip(bytes.chunks_exact(2)).for_each(|(value, b)| {
                *value = half::f16::from_le_bytes([b[0], b[1]]).to_f32();
            }),
            _ => values.iter_mut().zip(bytes.chunks_exact(4)).for_each(|(value, b)| {
                *value = f32::from_le_bytes([b[0], b[1], b[2], b[3]]);
            }),
        }
        values
    }

    /// Rounds a row into its places in the block of its sixteen.
    fn round(&self, row: usize, format: QuantFormat, (data, scales): (&mut [u8], &mut [u8])) {
        let feature = row % INT_FEATURES;
        for group in 0..self.columns / INT_GROUP {
            let values = self.group(row, group);
            let largest = values.iter().fold(0.0_f32, |best, v| if v.abs() > best.abs() { *v } else { best });
            let scale = match format {
                QuantFormat::Int4 => half::bf16::from_f32(largest / -8.0),
                _ => half::bf16::from_f32(largest.abs() / 127.0),
            };
            let at = 2 * (group * INT_FEATURES + feature);
            scales[at..at + 2].copy_from_slice(&scale.to_le_bytes());
            let inverse = if scale.to_f32() == 0.0 { 0.0 } else { 1.0 / scale.to_f32() };
            if format == QuantFormat::Int4 {
                for (half, eight) in values.chunks_exact(8).enumerate() {
                    let number = |v: f32| (v * inverse).round_ties_even().clamp(-8.0, 7.0) as i8;
                    for j in 0..4 {
                        let (low, high) = ((number(eight[j]) + 8) as u8, (number(eight[4 + j]) + 8) as u8);
                        data[((group * 4 + half) * INT_FEATURES + feature) * 4 + j] = low | high << 4;
                    }
                }
            } else {
                for (step, four) in values.chunks_exact(4).enumerate() {
                    let at = ((group * 8 + step) * INT_FEATURES + feature) * 4;
                    for (byte, v) in data[at..at + 4].iter_mut().zip(four) {
                        *byte = ((v * inverse).round_ties_even().clamp(-127.0, 127.0) as i16 + 128) as u8;
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use perilune_reference::int_groups::{Bits, dequantize};

    use super::*;

    fn weight(out: usize, inp: usize) -> HostWeight {
        let values: Vec<f32> = (0..out * inp).map(|i| ((i * 7919 % 1009) as f32 - 504.0) / 300.0).collect();
        HostWeight { format: QuantFormat::F32, data: HostTensor::from_f32([out, inp], &values).unwrap(), scales: None }
    }

    #[test]
    fn values_come_back_within_half_a_step() {
        let host = weight(32, 96);
        for (format, bits, step) in [(QuantFormat::Int8, Bits::Eight, 127.0), (QuantFormat::Int4, Bits::Four, 8.0)] {
            let rounded = quantize(&host, format).unwrap();
            let scales: Vec<u16> = rounded
                .scales
                .as_ref()
                .unwrap()
                .bytes()
                .chunks_exact(2)
                .map(|b| u16::from_le_bytes([b[0], b[1]]))
                .collect();
            let back = dequantize(bits, rounded.data.bytes(), &scales, 96);
            for (group, (got, want)) in back.chunks_exact(32).zip(host.data.to_f32().chunks_exact(32)).enumerate() {
                let largest = want.iter().fold(0.0_f32, |m, v| m.max(v.abs()));
                for (got, want) in got.iter().zip(want) {
                    // The end of the range that has one number fewer may be a whole step off.
                    let allowed = if bits == Bits::Four { 1.02 } else { 0.51 } * largest / step;
                    assert!((got - want).abs() <= allowed, "{format:?}, group {group}: {got} for {want}");
                }
            }
        }
    }

    #[test]
    fn what_is_rounded() {
        let format = |name: &str, stored, size| Quantize::Int4.format(name, stored, size);
        assert_eq!(
            format("model.layers.0.self_attn.q_proj.weight", QuantFormat::Bf16, [64, 64]),
            Some(QuantFormat::Int4)
        );
        assert_eq!(format("lm_head.weight", QuantFormat::Bf16, [64, 64]), Some(QuantFormat::Int8));
        for name in ["model.embed_tokens.weight", "l.self_attn.kv_b_proj.weight", "l.block_sparse_moe.gate.weight"] {
            assert_eq!(format(name, QuantFormat::Bf16, [64, 64]), None);
        }
        assert_eq!(format("x.weight", QuantFormat::Mxfp4, [64, 64]), None);
        assert_eq!(format("x.weight", QuantFormat::Bf16, [8, 64]), None);
        assert_eq!(format("x.weight", QuantFormat::Bf16, [64, 48]), None);
    }
}
