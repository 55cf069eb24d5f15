//! What is to be done on the device before the next step, in order.

use crate::{HostId, Place, RecordId, UnitKind};

/// One operation on whole units.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CacheOp {
    /// A sequence starts from nothing: its slot is to be zeroed.
    ZeroSlot(Place),
    /// Contents of one unit go to another, which they replace.
    Copy {
        /// Kind of both.
        kind: UnitKind,
        /// From where.
        from: Place,
        /// To where.
        to: Place,
    },
    /// A unit's contents are to be kept in host memory; its place may be overwritten afterwards.
    Save {
        /// Kind of the unit.
        kind: UnitKind,
        /// Where it lies.
        from: Place,
        /// Under which id its contents are kept.
        to: HostId,
    },
    /// Contents kept in host memory come back; they stay there until forgotten.
    Load {
        /// Kind of the unit.
        kind: UnitKind,
        /// Under which id its contents are kept.
        from: HostId,
        /// Where they go.
        to: Place,
    },
    /// Contents kept in host memory are to be written to disk as well. Nothing waits for that.
    Archive {
        /// Under which id they are kept; they may be forgotten before they are written.
        from: HostId,
        /// The record that they become.
        to: RecordId,
    },
    /// Contents kept in host memory are not needed any more.
    Forget(HostId),
}
