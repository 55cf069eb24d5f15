//! Speculation on KDA: verification that leaves the state alone, and the fold that replays what was committed.
//!
//! A verification stores the inputs of its steps instead of a state per step: about one row of each kind against a state
//! of `D` rows. The fold of the first `c` steps gives the bits that `c` decode steps would have given.

use perilune_tensor::DType;

use crate::check::Checker;
use crate::{BackendError, DeviceTensor, Kda, KdaDims, Segments, Snapshots, UnitLayout};

impl KdaDims {
    /// Width of a row of replay inputs, `6 P + num_heads`: `v` and `k` after the convolution and before any norm, the log
    /// decay per channel, then the rows of q, k and v before the convolution, each `P`; then β per head.
    pub fn replay_width(&self) -> usize {
        6 * self.width() + self.num_heads
    }
}

/// [`crate::Backend::kda_verify`]: the outputs of a decode without its effect on the state.
#[derive(Debug)]
pub struct KdaVerify<'a, T> {
    /// The operation over runs of 1 to 8 rows. Its arena is only read, and it has no snapshots.
    pub kda: Kda<'a, T>,
    /// `F32 [>= M, replay_width]`, where the runs end at row `M`: inputs of each row, for [`KdaFold`]. Only rows of the
    /// runs are written.
    pub replay: &'a mut T,
}

impl<T: DeviceTensor> KdaVerify<'_, T> {
    /// Checks every shape; returns the number of slots.
    ///
    /// # Errors
    /// `Mismatch`.
    pub fn dims(&self) -> Result<usize, BackendError> {
        let c = Checker { op: "kda_verify" };
        let slots = self.kda.dims()?;
        if let Some(snapshots) = &self.kda.snapshots {
            return Err(c.fail("snapshots", format!("{} snapshots", snapshots.count), "none".into()));
        }
        c.rows("replay", &*self.replay, (DType::F32, 0, self.kda.params.dims.replay_width()))?;
        Ok(slots)
    }
}

/// [`crate::Backend::kda_fold`]: replays stored steps into the states of some slots.
#[derive(Debug)]
pub struct KdaFold<'a, T> {
    /// Sizes of the layer.
    pub dims: KdaDims,
    /// Runs of rows of `replay`, at most 8 each. A run of no rows leaves its slot as it is; `position` is not read.
    pub segments: Segments<'a, T>,
    /// `F32 [N, replay_width]`: what [`KdaVerify`] stored.
    pub replay: &'a T,
    /// `F32 [n]`: where the slots lie.
    pub arena: &'a mut T,
    /// Convolution tails, as in [`Kda::conv_at`].
    pub conv_at: UnitLayout,
    /// Recurrent states, as in [`Kda::state_at`].
    pub state_at: UnitLayout,
    /// Copies of states to take on the way.
    pub snapshots: Option<Snapshots<'a, T>>,
}

impl<T: DeviceTensor> KdaFold<'_, T> {
    /// Checks every shape; returns the number of slots.
    ///
    /// # Errors
    /// `Mismatch`.
    pub fn check(&self) -> Result<usize, BackendError> {
        let c = Checker { op: "kda_fold" };
        c.rows("replay", self.replay, (DType::F32, 0, self.dims.replay_width()))?;
        self.state_at.check(c, ("state_at", &*self.arena), self.dims.state_len())?;
        self.conv_at.check(c, ("conv_at", &*self.arena), self.dims.conv_state_len())?;
        c.equal("conv_at.count", self.conv_at.count, self.state_at.count)?;
        self.segments.check(c)?;
        self.snapshots.as_ref().map_or(Ok(()), |snapshots| snapshots.check(c))?;
        Ok(self.state_at.count)
    }
}
