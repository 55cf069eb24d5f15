//! Shapes, and shapes with an element type.

use crate::DType;

/// Extents of a tensor, outermost first, row-major without gaps.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Shape(Vec<usize>);

impl Shape {
    /// A shape with the given extents.
    pub fn new(dims: impl Into<Vec<usize>>) -> Self {
        Shape(dims.into())
    }

    /// The extents, outermost first.
    pub fn dims(&self) -> &[usize] {
        &self.0
    }

    /// Number of elements; 1 for a scalar.
    pub fn numel(&self) -> usize {
        self.0.iter().product()
    }

    /// Innermost extent; 1 for a scalar.
    pub fn width(&self) -> usize {
        self.0.last().copied().unwrap_or(1)
    }

    /// Product of all extents but the innermost: how many rows of [`Shape::width`] elements there are.
    pub fn rows(&self) -> usize {
        self.0.split_last().map_or(1, |(_, outer)| outer.iter().product())
    }
}

impl<const N: usize> From<[usize; N]> for Shape {
    fn from(dims: [usize; N]) -> Self {
        Shape(dims.to_vec())
    }
}

impl From<Vec<usize>> for Shape {
    fn from(dims: Vec<usize>) -> Self {
        Shape(dims)
    }
}

impl std::fmt::Display for Shape {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("[")?;
        for (i, d) in self.0.iter().enumerate() {
            if i > 0 {
                f.write_str(", ")?;
            }
            write!(f, "{d}")?;
        }
        f.write_str("]")
    }
}

/// Shape and element type of a tensor.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct TensorSpec {
    /// Extents, outermost first.
    pub shape: Shape,
    /// Element type.
    pub dtype: DType,
}

impl TensorSpec {
    /// A spec from an element type and extents.
    pub fn new(dtype: DType, shape: impl Into<Shape>) -> Self {
        TensorSpec { shape: shape.into(), dtype }
    }

    /// An `F32` spec.
    pub fn f32(shape: impl Into<Shape>) -> Self {
        Self::new(DType::F32, shape)
    }

    /// A `U32` spec.
    pub fn u32(shape: impl Into<Shape>) -> Self {
        Self::new(DType::U32, shape)
    }

    /// Size in bytes.
    pub fn size_bytes(&self) -> usize {
        self.shape.numel() * self.dtype.size_bytes()
    }
}

impl std::fmt::Display for TensorSpec {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} {}", self.dtype, self.shape)
    }
}
