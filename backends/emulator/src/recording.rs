//! Recorded steps: what was enqueued, to be run again.

use perilune_gpu::{Cubes, Launch, Region};

use crate::driver::EmulatedKernel;

/// A recorded sequence; it runs in order.
#[derive(Default)]
pub struct EmulatedGraph {
    pub(crate) nodes: Vec<Node>,
}

/// One entry of it.
pub(crate) enum Node {
    Launch { kernel: EmulatedKernel, launch: OwnedLaunch },
    Copy { dst: Region, src: Region },
    Zero(Region),
}

/// A launch that owns its arguments.
pub(crate) struct OwnedLaunch {
    cubes: Cubes,
    units: u32,
    shared_bytes: u32,
    buffers: Vec<Region>,
    reach: Vec<Region>,
    info: Vec<u8>,
}

impl OwnedLaunch {
    pub(crate) fn new(launch: &Launch<'_>) -> OwnedLaunch {
        OwnedLaunch {
            cubes: launch.cubes,
            units: launch.units,
            shared_bytes: launch.shared_bytes,
            buffers: launch.buffers.to_vec(),
            reach: launch.reach.to_vec(),
            info: launch.info.to_vec(),
        }
    }

    pub(crate) fn launch(&self) -> Launch<'_> {
        let OwnedLaunch { cubes, units, shared_bytes, buffers, reach, info } = self;
        Launch { cubes: *cubes, units: *units, shared_bytes: *shared_bytes, buffers, reach, info }
    }
}
