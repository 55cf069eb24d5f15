//! What a plan must know of the hardware it is for.

/// A compilation target.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Target {
    /// Units that run in lockstep: 32 on NVIDIA, 64 on AMD CDNA.
    pub plane: usize,
    /// Most units of one cube.
    pub max_units: usize,
}

impl Target {
    /// NVIDIA, every architecture we compile for.
    pub const CUDA: Target = Target { plane: 32, max_units: 1024 };
    /// AMD CDNA (gfx942, gfx950).
    pub const HIP: Target = Target { plane: 64, max_units: 1024 };
}
