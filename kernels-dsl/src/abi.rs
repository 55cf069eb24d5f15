//! How a generated kernel takes its arguments: buffers in order, then one structure with everything else.
//!
//! The structure holds the scalars grouped by type, each group padded to 8 bytes, then the buffers' lengths in elements. It
//! is passed by value, so a recorded launch carries its own.

/// What a kernel does with a buffer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// Reads it.
    Read,
    /// Writes it, or both.
    Write,
}

/// Type of a scalar argument.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ScalarType {
    /// 32-bit float.
    F32,
    /// Unsigned 32-bit integer.
    U32,
    /// Unsigned 64-bit integer; a kernel's `usize`.
    U64,
}

impl ScalarType {
    /// Size of one scalar.
    pub fn size_bytes(self) -> usize {
        match self {
            ScalarType::F32 | ScalarType::U32 => 4,
            ScalarType::U64 => 8,
        }
    }
}

/// A scalar argument.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Scalar {
    /// For an `f32`.
    F32(f32),
    /// For a `u32`.
    U32(u32),
    /// For a `usize`.
    U64(u64),
}

impl Scalar {
    /// The scalar's type.
    pub fn scalar_type(self) -> ScalarType {
        match self {
            Scalar::F32(_) => ScalarType::F32,
            Scalar::U32(_) => ScalarType::U32,
            Scalar::U64(_) => ScalarType::U64,
        }
    }
}

impl From<usize> for Scalar {
    fn from(value: usize) -> Scalar {
        Scalar::U64(value as u64)
    }
}

impl From<f32> for Scalar {
    fn from(value: f32) -> Scalar {
        Scalar::F32(value)
    }
}

impl From<u32> for Scalar {
    fn from(value: u32) -> Scalar {
        Scalar::U32(value)
    }
}

/// All scalars of one type, in the order of the kernel's parameters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ScalarGroup {
    /// Their type.
    pub scalar_type: ScalarType,
    /// How many.
    pub count: usize,
    /// Bytes from the start of the structure.
    pub offset: usize,
}

/// Where the buffers' lengths lie: 64 bits each, in elements of the kernel's parameter type.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Lengths {
    /// How many.
    pub count: usize,
    /// Bytes from the start of the structure.
    pub offset: usize,
}

/// Everything a launcher must know to call one kernel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Abi {
    /// One entry per buffer, in order.
    pub buffers: Vec<Access>,
    /// Scalar groups by rising offset.
    pub scalars: Vec<ScalarGroup>,
    /// Lengths of the buffers.
    pub lengths: Option<Lengths>,
    /// Size of the structure, which is passed by value as the last parameter.
    pub info_bytes: usize,
}
