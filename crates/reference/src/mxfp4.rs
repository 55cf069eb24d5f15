//! MXFP4: packed E2M1 nibbles with one E8M0 scale for 32 columns (`kimi-k3.md` 2.4).

/// Magnitudes of the lower three bits of a nibble.
const E2M1: [f32; 8] = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0];

/// Value of an E8M0 byte: `2^(s - 127)`; 255 is not a number.
pub fn scale(byte: u8) -> f32 {
    if byte == 255 { f32::NAN } else { 2.0_f32.powi(i32::from(byte) - 127) }
}

/// Value of a nibble, before its scale.
pub fn nibble(bits: u8) -> f32 {
    let magnitude = E2M1[usize::from(bits & 7)];
    if bits & 8 == 0 { magnitude } else { -magnitude }
}

/// One row: `packed` has two columns a byte, the lower one in the low nibble; `scales` one byte for 32 columns.
pub fn dequantize_row(packed: &[u8], scales: &[u8]) -> Vec<f32> {
    let columns = packed.iter().flat_map(|byte| [byte & 15, byte >> 4]);
    columns.enumerate().map(|(i, bits)| nibble(bits) * scale(scales[i / 32])).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_of_the_specification() {
        let mut packed = [0_u8; 16];
        packed[..2].copy_from_slice(&[0x7F, 0x23]);
        assert_eq!(dequantize_row(&packed, &[125])[..4], [-1.5, 1.5, 0.375, 0.25]);
    }

    #[test]
    fn scale_zero_is_a_tiny_number_not_zero() {
        assert_eq!(scale(0), 2.0_f32.powi(-127));
        assert_eq!(scale(127), 1.0);
        assert!(scale(255).is_nan());
    }
}
