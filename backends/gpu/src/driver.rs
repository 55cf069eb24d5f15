//! What a device must be able to do: the whole difference between CUDA, HIP and the emulator.

use perilune_backend::{BackendError, Download};
use perilune_kernels_dsl::Target;

use crate::Artifact;

/// What a driver says of its device.
#[derive(Debug, Clone)]
pub struct DriverInfo {
    /// Driver and device in a few words, for people.
    pub name: String,
    /// Whose binaries it runs, as in the manifest of kernels: `sm_90a`, `gfx942`.
    pub architecture: String,
    /// Memory that allocations may use, in bytes.
    pub memory_bytes: usize,
    /// What kernels are planned for.
    pub target: Target,
}

/// A range of device memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Region {
    /// Device address of the first byte.
    pub address: u64,
    /// Length in bytes.
    pub bytes: usize,
}

impl Region {
    /// `bytes` from `offset` on; `None` where they leave the region.
    pub fn part(self, offset: usize, bytes: usize) -> Option<Region> {
        let fits = offset.checked_add(bytes).is_some_and(|end| end <= self.bytes);
        fits.then_some(Region { address: self.address + offset as u64, bytes })
    }
}

/// How many cubes a launch has along each axis.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Cubes {
    /// Up to 2³¹ - 1.
    pub x: u32,
    /// Up to 65535.
    pub y: u32,
    /// Up to 65535.
    pub z: u32,
}

/// One kernel launch, arguments packed.
#[derive(Debug, Clone, Copy)]
pub struct Launch<'a> {
    /// Cubes.
    pub cubes: Cubes,
    /// Units of a cube, what the kernel was compiled for.
    pub units: u32,
    /// Dynamic shared memory in bytes.
    pub shared_bytes: u32,
    /// Buffers in the kernel's order.
    pub buffers: &'a [Region],
    /// Regions that the kernel reaches by offsets from one of its buffers (weights of experts). A driver passes nothing
    /// of them; the emulator allows reads there.
    pub reach: &'a [Region],
    /// The structure of scalars and lengths; passed by value or by pointer as [`Artifact::entry`] says.
    pub info: &'a [u8],
}

/// A device and the one queue that work is enqueued on, in order.
///
/// Nothing but [`Driver::read`], [`Driver::wait`] and [`Driver::synchronize`] waits. Faults of enqueued work surface
/// there; the device is lost after one.
pub trait Driver: Send + Sync + 'static {
    /// An allocation; freed when dropped, after the work that was enqueued before.
    type Memory: Send + Sync + std::fmt::Debug + 'static;
    /// A loaded kernel.
    type Function: Send + Sync + 'static;
    /// A point in the queue.
    type Event: Send + Sync + 'static;
    /// A recorded sequence of launches.
    type Graph: Send + Sync + 'static;

    /// Facts about the device.
    fn info(&self) -> &DriverInfo;

    /// Loads a compiled kernel.
    ///
    /// # Errors
    /// `Device` where the device refuses the binary.
    fn load(&self, artifact: &Artifact) -> Result<Self::Function, BackendError>;

    /// Memory of at least one byte, aligned to 256 bytes; its contents are undefined.
    ///
    /// # Errors
    /// `OutOfMemory`.
    fn alloc(&self, bytes: usize) -> Result<Self::Memory, BackendError>;

    /// Where an allocation lies.
    fn region(&self, memory: &Self::Memory) -> Region;

    /// Copies from the host; `bytes` are taken before the call returns.
    ///
    /// # Errors
    /// `Device`.
    fn write(&self, dst: Region, bytes: &[u8]) -> Result<(), BackendError>;

    /// Starts a copy to the host.
    ///
    /// # Errors
    /// `Device`.
    fn read(&self, src: Region) -> Result<Download<Vec<u8>>, BackendError>;

    /// Copies within the device; the regions have equal lengths and do not overlap.
    ///
    /// # Errors
    /// `Device`.
    fn copy(&self, dst: Region, src: Region) -> Result<(), BackendError>;

    /// Sets memory to zero bytes.
    ///
    /// # Errors
    /// `Device`.
    fn zero(&self, dst: Region) -> Result<(), BackendError>;

    /// Enqueues a kernel.
    ///
    /// # Errors
    /// `Device`.
    fn launch(&self, function: &Self::Function, launch: &Launch<'_>) -> Result<(), BackendError>;

    /// Marks the current end of the queue.
    ///
    /// # Errors
    /// `Device`.
    fn record(&self) -> Result<Self::Event, BackendError>;

    /// Waits for everything before an event.
    ///
    /// # Errors
    /// The first fault of it.
    fn wait(&self, event: &Self::Event) -> Result<(), BackendError>;

    /// Waits for everything enqueued.
    ///
    /// # Errors
    /// The first fault of it.
    fn synchronize(&self) -> Result<(), BackendError>;

    /// Records what `body` enqueues instead of running it.
    ///
    /// # Errors
    /// `Unsupported` unless the driver overrides it.
    fn capture(&self, _body: &mut dyn FnMut() -> Result<(), BackendError>) -> Result<Self::Graph, BackendError> {
        Err(BackendError::Unsupported { op: "capture", what: "recording a step".into() })
    }

    /// Enqueues what was recorded.
    ///
    /// # Errors
    /// `Unsupported` unless the driver overrides it.
    fn replay(&self, _graph: &Self::Graph) -> Result<(), BackendError> {
        Err(BackendError::Unsupported { op: "replay", what: "recording a step".into() })
    }
}
