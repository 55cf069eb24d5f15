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

/// Number of consecutive input columns that share one scale of [`QuantFormat::Int8`] and [`QuantFormat::Int4`].
pub const INT_GROUP: usize = 32;
/// Output features that those formats store together.
pub const INT_FEATURES: usize = 16;

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
    /// Whole numbers from -127 to 127, a `BF16` scale for each group of 32 columns; made from a floating-point matrix when
    /// it is loaded. `U8 [out, in]` and `BF16 [out, in/32]`, each 16 features together: in the data, 4 columns of the
    /// first feature, of the second and so on, then the next 4 columns, every number plus 128; in the scales, one group
    /// of all 16, then the next. `out` is a multiple of 16, `in` of 32.
    Int8,
    /// As [`QuantFormat::Int8`] with numbers from -8 to 7: `U8 [out, in/2]`. Of 8 columns of a feature the first 4 are the
    /// low nibbles of 4 bytes, the others the high ones, every number plus 8.
    Int4,
}

impl QuantFormat {
    /// Whether the numbers are whole and share scales: what [`QuantFormat::Int8`] says of sizes holds.
    pub fn is_int(self) -> bool {
        matches!(self, QuantFormat::Int8 | QuantFormat::Int4)
    }

    /// Whether every element stands for itself.
    pub fn is_float(self) -> bool {
        matches!(self, QuantFormat::F32 | QuantFormat::Bf16 | QuantFormat::F16)
    }

    /// Type of the elements of the data tensor.
    pub fn dtype(self) -> DType {
        match self {
            QuantFormat::F32 => DType::F32,
            QuantFormat::Bf16 => DType::Bf16,
            QuantFormat::F16 => DType::F16,
            QuantFormat::Mxfp4 | QuantFormat::Int8 | QuantFormat::Int4 => DType::U8,
        }
    }

    /// Columns that one element of the data tensor holds.
    pub fn columns_per_element(self) -> usize {
        if matches!(self, QuantFormat::Mxfp4 | QuantFormat::Int4) { 2 } else { 1 }
    }

    /// Bytes that a matrix of `out` rows and `inp` columns occupies, scales included.
    pub fn matrix_bytes(self, out: usize, inp: usize) -> usize {
        match self {
            QuantFormat::F32 => out * inp * 4,
            QuantFormat::Bf16 | QuantFormat::F16 => out * inp * 2,
            QuantFormat::Mxfp4 => out * (inp / 2 + inp / MXFP4_GROUP),
            QuantFormat::Int8 => out * (inp + 2 * (inp / INT_GROUP)),
            QuantFormat::Int4 => out * (inp / 2 + 2 * (inp / INT_GROUP)),
        }
    }
}
