//! How states are kept once they have left the device: as they are, or rounded to save memory.
//!
//! Working states and those stored on the device are `F32` always. A request that goes on from a rounded state is not the
//! one that computed all its tokens: the laws of equal bits hold for [`StateFormat::F32`] only.

use half::bf16;

/// Elements that share a scale.
const GROUP: usize = 64;

/// What a state's elements become in host memory and on disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum StateFormat {
    /// 4 bytes: nothing is lost.
    #[default]
    F32,
    /// 2 bytes: 8 bits of precision.
    Bf16,
    /// 1 byte, and 4 for each 64: the largest magnitude of a group is 127.
    Int8,
}

impl StateFormat {
    /// Bytes of so many elements.
    pub fn size_bytes(self, elements: usize) -> usize {
        match self {
            StateFormat::F32 => 4 * elements,
            StateFormat::Bf16 => 2 * elements,
            StateFormat::Int8 => elements + 4 * elements.div_ceil(GROUP),
        }
    }

    /// Rounds a state, `F32` elements as bytes of this machine.
    pub fn encode(self, state: &[u8]) -> Vec<u8> {
        let elements = || state.chunks_exact(4).map(element);
        match self {
            StateFormat::F32 => state.to_vec(),
            StateFormat::Bf16 => elements().flat_map(|v| bf16::from_f32(v).to_ne_bytes()).collect(),
            StateFormat::Int8 => state.chunks(4 * GROUP).flat_map(int8_group).collect(),
        }
    }

    /// The elements as bytes again.
    pub fn decode(self, kept: &[u8]) -> Vec<u8> {
        match self {
            StateFormat::F32 => kept.to_vec(),
            StateFormat::Bf16 => {
                let widen = |two: &[u8]| bf16::from_ne_bytes([two[0], two[1]]).to_f32().to_ne_bytes();
                kept.chunks_exact(2).flat_map(widen).collect()
            }
            StateFormat::Int8 => kept.chunks(4 + GROUP).flat_map(widen_group).collect(),
        }
    }
}

fn element(bytes: &[u8]) -> f32 {
    f32::from_ne_bytes([bytes[0], bytes[1], bytes[2], bytes[3]])
}

fn int8_group(group: &[u8]) -> Vec<u8> {
    let elements = || group.chunks_exact(4).map(element);
    let scale = elements().fold(0.0_f32, |largest, v| largest.max(v.abs())) / 127.0;
    let inverse = if scale > 0.0 { 1.0 / scale } else { 0.0 };
    let rounded = elements().map(|v| (v * inverse).round() as i8 as u8);
    scale.to_ne_bytes().into_iter().chain(rounded).collect()
}

fn widen_group(group: &[u8]) -> Vec<u8> {
    let (scale, rounded) = group.split_at(4.min(group.len()));
    let scale = if scale.len() == 4 { element(scale) } else { 0.0 };
    rounded.iter().flat_map(|q| (f32::from(*q as i8) * scale).to_ne_bytes()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn state(elements: usize) -> Vec<f32> {
        (0..elements).map(|i| ((i * i * 31 + 7) % 1000) as f32 / 100.0 - 5.0).collect()
    }

    fn bytes(values: &[f32]) -> Vec<u8> {
        values.iter().flat_map(|v| v.to_ne_bytes()).collect()
    }

    #[test]
    fn what_comes_back_is_near_and_as_long() {
        for elements in [0, 1, 63, 64, 65, 1000] {
            let values = state(elements);
            for (format, bound) in
                [(StateFormat::F32, 0.0), (StateFormat::Bf16, 5.0 / 256.0), (StateFormat::Int8, 5.0 / 253.0)]
            {
                let kept = format.encode(&bytes(&values));
                assert_eq!(kept.len(), format.size_bytes(elements), "{format:?}, {elements}");
                let back = format.decode(&kept);
                assert_eq!(back.len(), 4 * elements);
                for (v, b) in values.iter().zip(back.chunks_exact(4).map(element)) {
                    assert!((v - b).abs() <= bound, "{format:?}: {v} became {b}");
                }
            }
        }
    }

    #[test]
    fn rounding_twice_changes_nothing() {
        let once = |format: StateFormat, state: &[u8]| format.decode(&format.encode(state));
        for format in [StateFormat::Bf16, StateFormat::Int8] {
            let first = once(format, &bytes(&state(500)));
            let second = once(format, &first);
            let worst = first.chunks_exact(4).zip(second.chunks_exact(4)).map(|(a, b)| (element(a) - element(b)).abs());
            assert!(worst.fold(0.0, f32::max) < 1e-5, "{format:?}");
        }
    }
}
