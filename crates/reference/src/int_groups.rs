//! Whole numbers with one scale for 32 columns, stored 16 features together (`QuantFormat::Int8` and `Int4`).

/// Features stored together.
const FEATURES: usize = 16;
/// Columns under one scale.
const GROUP: usize = 32;

/// Bits of a number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Bits {
    /// From -128 to 127, four columns of a feature together.
    Eight,
    /// From -8 to 7, eight columns of a feature together.
    Four,
}

/// All values `[out, columns]` of a matrix: `data` and `scales` (bfloat16 bits) in the order of the format.
pub fn dequantize(bits: Bits, data: &[u8], scales: &[u16], columns: usize) -> Vec<f32> {
    let features = scales.len() / (columns / GROUP);
    let value = |feature: usize, column: usize| {
        let (block, f) = (feature / FEATURES, feature % FEATURES);
        let number = match bits {
            Bits::Eight => {
                let byte = data[(block * columns + column / 4 * 4) * FEATURES + f * 4 + column % 4];
                i32::from(byte) - 128
            }
            Bits::Four => {
                let byte = data[(block * columns / 2 + column / 8 * 4) * FEATURES + f * 4 + column % 4];
                i32::from(if column % 8 < 4 { byte & 15 } else { byte >> 4 }) - 8
            }
        };
        let scale = scales[(block * (columns / GROUP) + column / GROUP) * FEATURES + f];
        number as f32 * f32::from_bits(u32::from(scale) << 16)
    };
    (0..features)
        .flat_map(|feature| (0..columns).map(move |column| (feature, column)))
        .map(|(f, c)| value(f, c))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_of_numbers() {
        const TWO: u16 = 0x4000;
        let mut scales = vec![0x3f80_u16; 16];
        scales[3] = TWO;
        let mut data = vec![128_u8; 16 * 32];
        // Feature 3, column 6.
        data[64 + 3 * 4 + 2] = 128 - 5;
        let values = dequantize(Bits::Eight, &data, &scales, 32);
        assert_eq!(values[3 * 32 + 6], -10.0);
        assert_eq!(values.iter().filter(|v| **v != 0.0).count(), 1);
        let mut data = vec![0x88_u8; 16 * 16];
        // Feature 3, columns 10 and 14.
        data[64 + 3 * 4 + 2] = 0xF0;
        let values = dequantize(Bits::Four, &data, &scales, 32);
        assert_eq!((values[3 * 32 + 10], values[3 * 32 + 14]), (-16.0, 14.0));
        assert_eq!(values.iter().filter(|v| **v != 0.0).count(), 2);
    }
}
