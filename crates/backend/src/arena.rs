//! Where the caches of a layer lie in the arena, the one tensor that holds what sequences leave behind.

use perilune_tensor::{DType, TensorSpec};

use crate::check::Checker;
use crate::{BackendError, DeviceTensor};

/// Units of one kind in an arena `F32 [n]`: unit `i` begins at element `offset + i * stride`.
///
/// A unit is a state slot or a latent block over all layers, so the stride is that of the whole unit and the offset
/// includes the layer's place in it. What lies between the ends of a layer's parts belongs to others.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UnitLayout {
    /// Element at which unit 0 begins.
    pub offset: usize,
    /// Elements from one unit to the next.
    pub stride: usize,
    /// Units that the arena has room for.
    pub count: usize,
}

impl UnitLayout {
    /// First element of unit `i`.
    pub fn start(&self, i: usize) -> usize {
        self.offset + i * self.stride
    }

    /// Checks that `count` parts of `len` elements lie within the arena, without overlap.
    pub(crate) fn check<T: DeviceTensor>(
        &self,
        c: Checker,
        (field, arena): (&'static str, &T),
        len: usize,
    ) -> Result<(), BackendError> {
        let spec = arena.spec();
        if spec.dtype != DType::F32 {
            return Err(c.fail("arena", spec, "F32".into()));
        }
        let end = (self.count > 0).then(|| {
            (self.count - 1).checked_mul(self.stride).and_then(|last| last.checked_add(self.offset)?.checked_add(len))
        });
        let fits = end.is_none_or(|end| end.is_some_and(|end| end <= spec.shape.numel()));
        if !fits || (self.count > 1 && self.stride < len) {
            let expected = format!("parts of {len} within {} elements", spec.shape.numel());
            return Err(c.fail(field, format!("{self:?}"), expected));
        }
        Ok(())
    }
}

/// Copies of states to be taken while runs are computed, as index tensors of which the first `count` entries count.
///
/// Copy `i` is what slot `slot[i]` would hold had run `run[i]` ended after its first `rows[i]` rows: recurrent states and
/// convolution tails. Slots of copies are distinct from each other and from the slots of runs.
#[derive(Debug, Clone, Copy)]
pub struct Snapshots<'a, T> {
    /// Number of copies `M`.
    pub count: usize,
    /// `U32 [>= M]`: index of the run, rising.
    pub run: &'a T,
    /// `U32 [>= M]`: rows of the run that the copy includes, at least 1 and at most all; rising within a run.
    pub rows: &'a T,
    /// `U32 [>= M]`: slot that takes the copy.
    pub slot: &'a T,
}

impl<T: DeviceTensor> Snapshots<'_, T> {
    pub(crate) fn check(&self, c: Checker) -> Result<(), BackendError> {
        for (name, t) in [("snapshots.run", self.run), ("snapshots.rows", self.rows), ("snapshots.slot", self.slot)] {
            c.at_least(name, t, (DType::U32, self.count))?;
        }
        Ok(())
    }
}

/// Checks that a range of elements lies within a tensor: for the copies between arena and host.
///
/// # Errors
/// `Mismatch`, naming `op` and both.
pub fn check_elements(op: &'static str, spec: &TensorSpec, range: &std::ops::Range<usize>) -> Result<(), BackendError> {
    let numel = spec.shape.numel();
    if range.start > range.end || range.end > numel {
        return Err(Checker { op }.fail("elements", format!("{range:?}"), format!("within 0..{numel}")));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug)]
    struct Shape(TensorSpec);

    impl DeviceTensor for Shape {
        fn spec(&self) -> &TensorSpec {
            &self.0
        }
    }

    #[test]
    fn units_must_lie_within_the_arena_and_apart() {
        let arena = Shape(TensorSpec::f32([100]));
        let check = |offset, stride, count, len| {
            UnitLayout { offset, stride, count }.check(Checker { op: "test" }, ("at", &arena), len).is_ok()
        };
        assert!(check(0, 10, 10, 10) && check(5, 10, 10, 5) && check(0, 0, 1, 100));
        assert!(!check(1, 10, 10, 10), "the last one leaves the arena");
        assert!(!check(0, 9, 2, 10), "two overlap");
        assert!(!check(0, usize::MAX, 3, 1), "overflow");
        assert!(check(1000, 1, 0, 10), "no units, nothing to check");
        let ids = Shape(TensorSpec::u32([100]));
        let units = UnitLayout { offset: 0, stride: 1, count: 1 };
        assert!(units.check(Checker { op: "test" }, ("at", &ids), 1).is_err());
    }
}
