//! The driver: a launch runs to its end before it returns.

use std::collections::BTreeMap;
use std::ffi::CStr;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use libloading::os::unix::{Library, Symbol};
use perilune_backend::{BackendError, Download};
use perilune_gpu::{Artifact, Driver, DriverInfo, Launch, Region};
use perilune_kernels_dsl::Target;

use crate::compiler::{Compiler, CompilerError};
use crate::memory::{EmulatedMemory, Live};
use crate::native::{NativeKernel, NativeLaunch, NativeRegion, NativeRun};
use crate::recording::{EmulatedGraph, Node, OwnedLaunch};
use crate::traffic::{Traffic, TrafficByKernel};

/// What is emulated.
#[derive(Debug, Clone)]
pub struct EmulatorOptions {
    /// Units of a plane: 32 or 64.
    pub plane: usize,
    /// Decides the order in which cubes and units run.
    pub seed: u64,
    /// Folder of compiled code, kept for the next run.
    pub cache: PathBuf,
}

/// The emulated device.
pub struct Emulator {
    info: DriverInfo,
    compiler: Compiler,
    run: Symbol<NativeRun>,
    live: Arc<Live>,
    seed: AtomicU64,
    /// What was enqueued since a recording began; `None` outside of one.
    recording: Mutex<Option<EmulatedGraph>>,
    replays: Arc<AtomicU64>,
    traffic: TrafficByKernel,
}

/// A kernel in compiled form.
#[derive(Clone)]
pub struct EmulatedKernel {
    name: Arc<str>,
    plane: u32,
    entry: NativeKernel,
    /// Holds the code.
    _library: Arc<Library>,
}

impl Emulator {
    /// Compiles the runtime.
    ///
    /// # Errors
    /// No C++ compiler, or one that fails.
    pub fn new(options: EmulatorOptions) -> Result<Emulator, CompilerError> {
        let compiler = Compiler::new(&options.cache)?;
        // SAFETY: `emu_launch` has this type in `device/interface.h`.
        let run = unsafe { compiler.runtime()?.get::<NativeRun>(b"emu_launch\0") };
        let run = run.map_err(|e| CompilerError(e.to_string()))?;
        let info = DriverInfo {
            name: format!("emulator, planes of {}", options.plane),
            architecture: "emulated".into(),
            memory_bytes: 1 << 30,
            target: Target::emulated(options.plane),
        };
        Ok(Emulator {
            info,
            compiler,
            run,
            live: Arc::default(),
            seed: AtomicU64::new(options.seed),
            recording: Mutex::default(),
            replays: Arc::default(),
            traffic: TrafficByKernel::default(),
        })
    }

    /// How many recorded steps were replayed, also after the driver was given away.
    pub fn replays(&self) -> Arc<AtomicU64> {
        self.replays.clone()
    }

    /// From now on the bytes that launches read and write are counted, which takes time.
    pub fn count_traffic(&self) {
        self.traffic.begin();
    }

    /// What was counted, by kernel; several launches of one add up.
    pub fn traffic(&self) -> BTreeMap<String, Traffic> {
        self.traffic.all()
    }

    fn recording(&self) -> MutexGuard<'_, Option<EmulatedGraph>> {
        self.recording.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether this was added to a recording, and so must not happen now.
    fn is_recorded(&self, node: impl FnOnce() -> Node) -> bool {
        let mut recording = self.recording();
        if let Some(graph) = recording.as_mut() {
            graph.nodes.push(node());
        }
        recording.is_some()
    }

    /// As a device, whose recording would be spoiled.
    fn refuse_while_recording(&self, what: &str) -> Result<(), BackendError> {
        match *self.recording() {
            Some(_) => Err(BackendError::Device(format!("{what} while a step is recorded"))),
            None => Ok(()),
        }
    }

    fn check(&self, region: Region) -> Result<(), BackendError> {
        if region.bytes > 0 && !self.live.contains(region) {
            return Err(BackendError::Device(format!("{region:?} lies in no allocation")));
        }
        Ok(())
    }
}

/// The generated text with its dynamic shared memory taken from the runtime, and a function that calls its entry point.
fn host_text(text: &str, entry: &str) -> String {
    let mut out = String::with_capacity(text.len() + 256);
    let mut rest = text;
    while let Some((before, after)) = rest.split_once("extern __shared__ ") {
        let (declaration, after) = after.split_once("[];").unwrap_or((after, ""));
        let name = declaration.rsplit(' ').next().unwrap_or_default();
        out.push_str(before);
        out.push_str(&format!("char* const {name} = emu_shared();"));
        rest = after;
    }
    out.push_str(rest);
    out.push_str(&format!(
        "\nextern \"C\" EMU_UNCHECKED void emu_entry(const EmuLaunch* launch) {{ \
         emu_call({entry}, launch); }}\n"
    ));
    out
}

impl Driver for Emulator {
    type Memory = EmulatedMemory;
    type Function = EmulatedKernel;
    type Event = ();
    type Graph = EmulatedGraph;

    fn info(&self) -> &DriverInfo {
        &self.info
    }

    fn load(&self, artifact: &Artifact) -> Result<EmulatedKernel, BackendError> {
        self.refuse_while_recording("a kernel was loaded")?;
        let device = |what: String| BackendError::Device(what);
        let text = std::str::from_utf8(&artifact.code).map_err(|e| device(e.to_string()))?;
        let entry = &artifact.entry;
        let library = self.compiler.kernel(&entry.name, &host_text(text, &entry.entry), self.info.target.plane);
        let library = library.map_err(|e| device(e.to_string()))?;
        // SAFETY: `host_text` wrote the function with this type.
        let symbol = unsafe { library.get::<NativeKernel>(b"emu_entry\0") };
        let function = *symbol.map_err(|e| device(e.to_string()))?;
        let plane = entry.plane as u32;
        Ok(EmulatedKernel { name: entry.name.as_str().into(), plane, entry: function, _library: Arc::new(library) })
    }

    fn alloc(&self, bytes: usize) -> Result<EmulatedMemory, BackendError> {
        self.refuse_while_recording("memory was allocated")?;
        EmulatedMemory::new(bytes, &self.live)
    }

    fn region(&self, memory: &EmulatedMemory) -> Region {
        memory.region()
    }

    fn write(&self, dst: Region, bytes: &[u8]) -> Result<(), BackendError> {
        self.refuse_while_recording("the host wrote")?;
        self.check(dst)?;
        if dst.bytes != bytes.len() {
            return Err(BackendError::Device(format!("{} bytes for {dst:?}", bytes.len())));
        }
        // SAFETY: the region is live and as long as `bytes`, which are host memory of another allocation.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), dst.address as *mut u8, bytes.len()) };
        Ok(())
    }

    fn read(&self, src: Region) -> Result<Download<Vec<u8>>, BackendError> {
        self.refuse_while_recording("the host read")?;
        self.check(src)?;
        let mut bytes = vec![0; src.bytes];
        // SAFETY: the region is live and as long as `bytes`.
        unsafe { std::ptr::copy_nonoverlapping(src.address as *const u8, bytes.as_mut_ptr(), src.bytes) };
        Ok(Download::ready(bytes))
    }

    fn copy(&self, dst: Region, src: Region) -> Result<(), BackendError> {
        self.check(dst)?;
        self.check(src)?;
        let apart = dst.address + dst.bytes as u64 <= src.address || src.address + src.bytes as u64 <= dst.address;
        if dst.bytes != src.bytes || !(apart || src.bytes == 0) {
            return Err(BackendError::Device(format!("copy of {src:?} to {dst:?}")));
        }
        if self.is_recorded(|| Node::Copy { dst, src }) {
            return Ok(());
        }
        // SAFETY: both regions are live, of one length, and apart.
        unsafe { std::ptr::copy_nonoverlapping(src.address as *const u8, dst.address as *mut u8, src.bytes) };
        Ok(())
    }

    fn zero(&self, dst: Region) -> Result<(), BackendError> {
        self.check(dst)?;
        if self.is_recorded(|| Node::Zero(dst)) {
            return Ok(());
        }
        // SAFETY: the region is live.
        unsafe { (dst.address as *mut u8).write_bytes(0, dst.bytes) };
        Ok(())
    }

    fn launch(&self, kernel: &EmulatedKernel, launch: &Launch<'_>) -> Result<(), BackendError> {
        let all = launch.buffers.iter().chain(launch.reach);
        all.clone().try_for_each(|region| self.check(*region))?;
        if self.is_recorded(|| Node::Launch { kernel: kernel.clone(), launch: OwnedLaunch::new(launch) }) {
            return Ok(());
        }
        let regions: Vec<NativeRegion> =
            all.map(|r| NativeRegion { address: r.address, bytes: r.bytes as u64 }).collect();
        let mut traffic = self.traffic.counters(regions.len());
        let native = NativeLaunch {
            cubes: [launch.cubes.x, launch.cubes.y, launch.cubes.z],
            units: launch.units,
            plane: kernel.plane,
            shared_bytes: launch.shared_bytes,
            seed: self.seed.fetch_add(1, Ordering::Relaxed),
            regions: regions.as_ptr(),
            region_count: regions.len() as u32,
            buffer_count: launch.buffers.len() as u32,
            info: launch.info.as_ptr(),
            info_bytes: launch.info.len() as u32,
            traffic: traffic.as_mut().map_or(std::ptr::null_mut(), |counters| counters.as_mut_ptr()),
        };
        let mut message = [0_u8; 512];
        // SAFETY: the kernel was compiled for this interface; what it touches is checked by the runtime against
        // `regions`, which are live.
        let failed = unsafe { (self.run)(kernel.entry, &native, message.as_mut_ptr().cast(), message.len() as u32) };
        if failed != 0 {
            let text = CStr::from_bytes_until_nul(&message).unwrap_or_default().to_string_lossy();
            return Err(BackendError::Device(format!("kernel {}: {text}", kernel.name)));
        }
        if let Some(counters) = traffic {
            self.traffic.add(&kernel.name, &counters);
        }
        Ok(())
    }

    fn record(&self) -> Result<(), BackendError> {
        Ok(())
    }

    fn wait(&self, _event: &()) -> Result<(), BackendError> {
        Ok(())
    }

    fn synchronize(&self) -> Result<(), BackendError> {
        self.refuse_while_recording("the host waited")
    }

    fn capture(&self, body: &mut dyn FnMut() -> Result<(), BackendError>) -> Result<EmulatedGraph, BackendError> {
        self.refuse_while_recording("another recording began")?;
        *self.recording() = Some(EmulatedGraph::default());
        let outcome = body();
        let graph = self.recording().take();
        outcome?;
        graph.ok_or_else(|| BackendError::Device("a recording was lost".into()))
    }

    fn replay(&self, graph: &EmulatedGraph) -> Result<(), BackendError> {
        self.refuse_while_recording("a replay")?;
        self.replays.fetch_add(1, Ordering::Relaxed);
        graph.nodes.iter().try_for_each(|node| match node {
            Node::Launch { kernel, launch } => self.launch(kernel, &launch.launch()),
            Node::Copy { dst, src } => self.copy(*dst, *src),
            Node::Zero(dst) => self.zero(*dst),
        })
    }
}
