//! How GGUF stores numbers: blocks of 32 along a row.

use half::{bf16, f16};

/// Elements of a block.
const BLOCK: usize = 32;

/// What matrices are written as.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GgufFormat {
    /// 2 bytes, more mantissa.
    F16,
    /// 2 bytes, more exponent.
    Bf16,
    /// 8 bits with a 16-bit scale for 32.
    Q8_0,
    /// 4 bits with a 16-bit scale for 32; 8 in the head.
    Q4_0,
}

/// Any form of a tensor in the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stored {
    F32,
    Mxfp4,
    As(GgufFormat),
}

impl Stored {
    /// Number of the type in the file.
    pub(crate) fn code(self) -> u32 {
        match self {
            Stored::F32 => 0,
            Stored::As(GgufFormat::F16) => 1,
            Stored::As(GgufFormat::Q4_0) => 2,
            Stored::As(GgufFormat::Q8_0) => 8,
            Stored::As(GgufFormat::Bf16) => 30,
            Stored::Mxfp4 => 39,
        }
    }

    /// Bytes of so many elements, whole blocks.
    pub(crate) fn size_bytes(self, elements: usize) -> usize {
        match self {
            Stored::F32 => 4 * elements,
            Stored::As(GgufFormat::F16 | GgufFormat::Bf16) => 2 * elements,
            Stored::As(GgufFormat::Q8_0) => elements / BLOCK * (2 + BLOCK),
            Stored::As(GgufFormat::Q4_0) => elements / BLOCK * (2 + BLOCK / 2),
            Stored::Mxfp4 => elements / BLOCK * (1 + BLOCK / 2),
        }
    }

    /// The form for rows of this length: whole blocks, or two bytes each.
    pub(crate) fn for_rows(format: GgufFormat, columns: usize) -> Stored {
        match format {
            GgufFormat::Q8_0 | GgufFormat::Q4_0 if !columns.is_multiple_of(BLOCK) => Stored::As(GgufFormat::F16),
            format => Stored::As(format),
        }
    }

    /// Encodes values; MXFP4 is only moved, see [`mxfp4`].
    pub(crate) fn encode(self, values: &[f32]) -> Vec<u8> {
        match self {
            Stored::F32 | Stored::Mxfp4 => values.iter().flat_map(|v| v.to_le_bytes()).collect(),
            Stored::As(GgufFormat::F16) => values.iter().flat_map(|v| f16::from_f32(*v).to_le_bytes()).collect(),
            Stored::As(GgufFormat::Bf16) => values.iter().flat_map(|v| bf16::from_f32(*v).to_le_bytes()).collect(),
            Stored::As(GgufFormat::Q8_0) => values.chunks_exact(BLOCK).flat_map(q8_0).collect(),
            Stored::As(GgufFormat::Q4_0) => values.chunks_exact(BLOCK).flat_map(q4_0).collect(),
        }
    }
}

/// The largest magnitude is 127.
fn q8_0(block: &[f32]) -> [u8; 2 + BLOCK] {
    let largest = block.iter().fold(0.0_f32, |largest, v| largest.max(v.abs()));
    let scale = largest / 127.0;
    let inverse = if scale > 0.0 { 1.0 / scale } else { 0.0 };
    let mut bytes = [0; 2 + BLOCK];
    bytes[..2].copy_from_slice(&f16::from_f32(scale).to_le_bytes());
    for (byte, v) in bytes[2..].iter_mut().zip(block) {
        *byte = (v * inverse).round() as i8 as u8;
    }
    bytes
}

/// The value of the largest magnitude is -8; 8 is added, so that nibbles are not negative.
fn q4_0(block: &[f32]) -> [u8; 2 + BLOCK / 2] {
    let largest = block.iter().fold(0.0_f32, |largest, v| if v.abs() > largest.abs() { *v } else { largest });
    let scale = largest / -8.0;
    let inverse = if scale != 0.0 { 1.0 / scale } else { 0.0 };
    let nibble = |v: f32| (v * inverse + 8.5).clamp(0.0, 15.0) as u8;
    let mut bytes = [0; 2 + BLOCK / 2];
    bytes[..2].copy_from_slice(&f16::from_f32(scale).to_le_bytes());
    for (i, byte) in bytes[2..].iter_mut().enumerate() {
        *byte = nibble(block[i]) | (nibble(block[i + BLOCK / 2]) << 4);
    }
    bytes
}

/// MXFP4 blocks from nibbles in pairs (`2i` low, `2i + 1` high) and exponents: an exponent, then bytes that hold elements
/// `j` and `j + 16`. No value changes.
pub(crate) fn mxfp4(packed: &[u8], exponents: &[u8]) -> Vec<u8> {
    let nibble = |block: &[u8], i: usize| (block[i / 2] >> (4 * (i % 2))) & 15;
    let block = |(block, exponent): (&[u8], &u8)| {
        let pair = |j: usize| nibble(block, j) | (nibble(block, j + BLOCK / 2) << 4);
        std::iter::once(*exponent).chain((0..BLOCK / 2).map(pair)).collect::<Vec<u8>>()
    };
    packed.chunks_exact(BLOCK / 2).zip(exponents).flat_map(block).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ramp() -> Vec<f32> {
        (0..BLOCK).map(|i| (i as f32 - 20.0) / 8.0).collect()
    }

    #[test]
    fn blocks_decode_to_what_they_were_within_half_a_step() {
        let values = ramp();
        let bytes = Stored::As(GgufFormat::Q8_0).encode(&values);
        let scale = f16::from_le_bytes([bytes[0], bytes[1]]).to_f32();
        for (v, q) in values.iter().zip(&bytes[2..]) {
            assert!((v - scale * f32::from(*q as i8)).abs() <= 0.51 * scale, "{v}");
        }
        let bytes = Stored::As(GgufFormat::Q4_0).encode(&values);
        let scale = f16::from_le_bytes([bytes[0], bytes[1]]).to_f32();
        for (i, v) in values.iter().enumerate() {
            let q = i32::from((bytes[2 + i % 16] >> (4 * (i / 16))) & 15) - 8;
            assert!((v - scale * q as f32).abs() <= 0.51 * scale.abs(), "{v} is {q} of {scale}");
        }
    }

    #[test]
    fn zeros_stay_zeros_and_sizes_are_those_of_the_bytes() {
        for stored in [
            Stored::F32,
            Stored::As(GgufFormat::F16),
            Stored::As(GgufFormat::Bf16),
            Stored::As(GgufFormat::Q8_0),
            Stored::As(GgufFormat::Q4_0),
        ] {
            assert_eq!(stored.encode(&[0.0; 64]).len(), stored.size_bytes(64), "{stored:?}");
        }
        assert_eq!(Stored::As(GgufFormat::Q8_0).encode(&[0.0; 32]), [0; 34]);
        assert_eq!(Stored::As(GgufFormat::Q4_0).encode(&[0.0; 32])[2..], [0x88; 16]);
    }

    #[test]
    fn mxfp4_only_moves_nibbles() {
        let packed: Vec<u8> = (0..16).map(|i| ((2 * i) % 16) | (((2 * i + 1) % 16) << 4)).collect();
        let moved = mxfp4(&packed, &[130]);
        assert_eq!((moved[0], moved.len(), Stored::Mxfp4.size_bytes(32)), (130, 17, 17));
        // Element j is j modulo 16 here, so both halves of a byte agree.
        assert!(moved[1..].iter().enumerate().all(|(j, byte)| *byte == (j as u8 | ((j as u8) << 4))), "{moved:?}");
    }
}
