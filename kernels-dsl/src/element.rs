//! Types of stored elements that kernels widen to `f32`.

/// Storage type of a buffer's elements.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Element {
    /// `f32`.
    F32,
    /// bfloat16.
    Bf16,
    /// IEEE half precision.
    F16,
}

impl Element {
    /// Size of one element.
    pub fn size_bytes(self) -> usize {
        match self {
            Element::F32 => 4,
            Element::Bf16 | Element::F16 => 2,
        }
    }
}

impl std::fmt::Display for Element {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Element::F32 => "f32",
            Element::Bf16 => "bf16",
            Element::F16 => "f16",
        })
    }
}

/// Storage of a weight matrix.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Weights {
    /// One element per weight.
    Plain(Element),
    /// E2M1 nibbles, two to a byte, and an E8M0 scale for 32 of them.
    Mxfp4,
}

impl Weights {
    /// Bytes of this many weights, without scales.
    pub fn size_bytes(self, weights: usize) -> usize {
        match self {
            Weights::Plain(element) => weights * element.size_bytes(),
            Weights::Mxfp4 => weights / 2,
        }
    }
}

impl std::fmt::Display for Weights {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Weights::Plain(element) => element.fmt(f),
            Weights::Mxfp4 => f.write_str("mxfp4"),
        }
    }
}

/// The largest power of two up to `most` that divides `width`: how many elements a load may take.
pub(crate) fn widest_vector(width: usize, most: usize) -> usize {
    let mut vector = most;
    while !width.is_multiple_of(vector) {
        vector /= 2;
    }
    vector
}
