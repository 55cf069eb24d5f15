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

/// The largest power of two up to `most` that divides `width`: how many elements a load may take.
pub(crate) fn widest_vector(width: usize, most: usize) -> usize {
    let mut vector = most;
    while !width.is_multiple_of(vector) {
        vector /= 2;
    }
    vector
}
