//! Element types and weight storage formats.

/// Type of one stored element.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum DType {
    /// IEEE single precision.
    F32,
    /// bfloat16.
    Bf16,
    /// IEEE half precision.
    F16,
    /// Unsigned 32-bit integers: token ids, slots, blocks, offsets.
    U32,
    /// Raw bytes: packed MXFP4 nibbles, E8M0 scales.
    U8,
}

impl DType {
    /// Size of one element in bytes.
    pub fn size_bytes(self) -> usize {
        match self {
            DType::F32 | DType::U32 => 4,
            DType::Bf16 | DType::F16 => 2,
            DType::U8 => 1,
        }
    }
}

impl std::fmt::Display for DType {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            DType::F32 => "F32",
            DType::Bf16 => "BF16",
            DType::F16 => "F16",
            DType::U32 => "U32",
            DType::U8 => "U8",
        })
    }
}

/// Number of consecutive input columns that share one MXFP4 scale.
pub const MXFP4_GROUP: usize = 32;

/// How a weight matrix `[out, in]` is stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum QuantFormat {
    /// `F32 [out, in]`.
    F32,
    /// `BF16 [out, in]`.
    Bf16,
    /// `F16 [out, in]`.
    F16,
    /// Packed E2M1 nibbles `U8 [out, in/2]`, low nibble first, with E8M0 scales `U8 [out, in/32]`
    /// (`kimi-k3.md` 2.4).
    Mxfp4,
}

impl QuantFormat {
    /// Bytes that a matrix of `out` rows and `inp` columns occupies, scales included.
    pub fn matrix_bytes(self, out: usize, inp: usize) -> usize {
        match self {
            QuantFormat::F32 => out * inp * 4,
            QuantFormat::Bf16 | QuantFormat::F16 => out * inp * 2,
            QuantFormat::Mxfp4 => out * (inp / 2 + inp / MXFP4_GROUP),
        }
    }
}
