//! What a plan must know of the hardware it is for, and how a cube is laid out on it.

/// The C++ that a kernel becomes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Dialect {
    /// CUDA C++.
    Cuda,
    /// HIP C++.
    Hip,
}

/// A compilation target.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Target {
    /// Which C++.
    pub dialect: Dialect,
    /// Units that run in lockstep: 32 on NVIDIA, 64 on AMD CDNA.
    pub plane: usize,
    /// Most units of one cube.
    pub max_units: usize,
}

impl Target {
    /// NVIDIA, every architecture we compile for.
    pub const CUDA: Target = Target { dialect: Dialect::Cuda, plane: 32, max_units: 1024 };
    /// AMD CDNA (gfx942, gfx950).
    pub const HIP: Target = Target { dialect: Dialect::Hip, plane: 64, max_units: 1024 };

    /// CUDA C++ for a plane of any width: no such device exists, the emulator runs it.
    pub const fn emulated(plane: usize) -> Target {
        Target { dialect: Dialect::Cuda, plane, max_units: 1024 }
    }
}

/// Geometry of a cube: how many units, in planes of how many.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Geometry {
    /// Units of a cube, a multiple of `plane`.
    pub units: usize,
    /// Units of a plane.
    pub plane: usize,
}

impl Geometry {
    /// One to eight planes, a power of two: the fewest that give each of `items` a unit of its own.
    ///
    /// A power of two keeps the number of compiled variants small.
    pub fn covering(items: usize, target: Target) -> Geometry {
        let most = 256.min(target.max_units);
        let units = items.max(1).next_power_of_two().clamp(target.plane, most);
        Geometry { units, plane: target.plane }
    }

    /// Planes of a cube.
    pub fn planes(self) -> usize {
        self.units / self.plane
    }
}

impl std::fmt::Display for Geometry {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "u{}_p{}", self.units, self.plane)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cubes_are_whole_planes_without_idle_ones() {
        for target in [Target::CUDA, Target::HIP] {
            for items in 0..2000 {
                let geometry = Geometry::covering(items, target);
                assert!(geometry.units.is_multiple_of(target.plane) && geometry.units <= 256, "{items}");
                assert!(geometry.units == target.plane || geometry.units < items * 2, "{items}: {geometry}");
            }
        }
    }
}
