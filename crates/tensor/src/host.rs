//! Bytes of a tensor in host memory, owned or borrowed from a shared mapping.

use std::ops::Range;
use std::sync::Arc;

use crate::{DType, TensorSpec};

/// A shared byte buffer: a heap allocation or a memory-mapped file.
pub type HostBytes = Arc<dyn AsRef<[u8]> + Send + Sync>;

/// A tensor in host memory. Cloning shares the bytes.
#[derive(Clone)]
pub struct HostTensor {
    spec: TensorSpec,
    bytes: HostBytes,
    range: Range<usize>,
}

impl HostTensor {
    /// A tensor over `range` of a shared buffer; `None` where the range does not lie in the buffer or its length is
    /// not what `spec` needs.
    pub fn from_shared(spec: TensorSpec, bytes: HostBytes, range: Range<usize>) -> Option<Self> {
        let fits = range.start <= range.end && range.end <= (*bytes).as_ref().len();
        (fits && range.len() == spec.size_bytes()).then_some(HostTensor { spec, bytes, range })
    }

    /// A tensor that owns `bytes`; `None` where their length is not what `spec` needs.
    pub fn from_vec(spec: TensorSpec, bytes: Vec<u8>) -> Option<Self> {
        let range = 0..bytes.len();
        Self::from_shared(spec, Arc::new(bytes), range)
    }

    /// An `F32` tensor of the given extents; `None` where the count of values differs from them.
    pub fn from_f32(shape: impl Into<crate::Shape>, values: &[f32]) -> Option<Self> {
        Self::from_vec(TensorSpec::f32(shape), bytemuck::cast_slice(values).to_vec())
    }

    /// A `U32` tensor of the given extents; `None` where the count of values differs from them.
    pub fn from_u32(shape: impl Into<crate::Shape>, values: &[u32]) -> Option<Self> {
        Self::from_vec(TensorSpec::u32(shape), bytemuck::cast_slice(values).to_vec())
    }

    /// Shape and element type.
    pub fn spec(&self) -> &TensorSpec {
        &self.spec
    }

    /// The raw little-endian bytes.
    pub fn bytes(&self) -> &[u8] {
        &(*self.bytes).as_ref()[self.range.clone()]
    }

    /// The shared buffer and this tensor's byte range in it, for a backend that uses weights where they lie.
    pub fn shared(&self) -> (HostBytes, Range<usize>) {
        (self.bytes.clone(), self.range.clone())
    }

    /// All elements widened to `f32`; integers by value.
    pub fn to_f32(&self) -> Vec<f32> {
        let bytes = self.bytes();
        match self.spec.dtype {
            DType::F32 => bytes.chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect(),
            DType::Bf16 => bytes.chunks_exact(2).map(|b| half::bf16::from_le_bytes([b[0], b[1]]).to_f32()).collect(),
            DType::F16 => bytes.chunks_exact(2).map(|b| half::f16::from_le_bytes([b[0], b[1]]).to_f32()).collect(),
            DType::U32 => bytes.chunks_exact(4).map(|b| u32::from_le_bytes([b[0], b[1], b[2], b[3]]) as f32).collect(),
            DType::U8 => bytes.iter().map(|&b| f32::from(b)).collect(),
        }
    }
}

impl std::fmt::Debug for HostTensor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "HostTensor({})", self.spec)
    }
}
