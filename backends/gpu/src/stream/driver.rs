//! The driver over a vendor's functions.

use std::ffi::{CString, c_void};
use std::sync::Arc;

use perilune_backend::{BackendError, Download};

use super::owned::{StreamEvent, StreamFunction, StreamMemory, StreamRecording};
use super::staging::Staging;
use super::{ApiError, RawLaunch, StreamApi};
use crate::{Artifact, Driver, DriverInfo, Launch, Region};

/// A device with one queue.
pub struct StreamDriver<A: StreamApi> {
    api: Arc<A>,
    info: DriverInfo,
    staging: Arc<Staging<A>>,
}

impl<A: StreamApi> StreamDriver<A> {
    /// A driver on an opened device.
    pub fn new(api: A, info: DriverInfo) -> StreamDriver<A> {
        let api = Arc::new(api);
        StreamDriver { staging: Staging::new(api.clone()), api, info }
    }

    /// The functions, with the device made current.
    fn api(&self) -> Result<&A, BackendError> {
        self.api.make_current().map_err(fault)?;
        Ok(&self.api)
    }
}

fn fault(error: ApiError) -> BackendError {
    BackendError::Device(match error {
        ApiError::OutOfMemory => "out of memory".into(),
        ApiError::Fault(what) => what,
    })
}

fn memory(error: ApiError, (requested_bytes, what): (usize, &str)) -> BackendError {
    match error {
        ApiError::OutOfMemory => BackendError::OutOfMemory { requested_bytes, what: what.into() },
        ApiError::Fault(what) => BackendError::Device(what),
    }
}

impl<A: StreamApi> Driver for StreamDriver<A> {
    type Memory = StreamMemory<A>;
    type Function = StreamFunction<A>;
    type Event = StreamEvent<A>;
    type Graph = StreamRecording<A>;

    fn info(&self) -> &DriverInfo {
        &self.info
    }

    fn load(&self, artifact: &Artifact) -> Result<StreamFunction<A>, BackendError> {
        let entry = &artifact.entry;
        let named = |what: String| BackendError::Device(format!("kernel {}: {what}", entry.name));
        let name = CString::new(entry.entry.as_str()).map_err(|e| named(e.to_string()))?;
        let shared_bytes = u32::try_from(entry.shared_bytes).map_err(|e| named(e.to_string()))?;
        match self.api()?.load(&artifact.code, &name, shared_bytes) {
            Ok(kernel) => Ok(StreamFunction { api: self.api.clone(), kernel, name: entry.name.clone() }),
            Err(ApiError::OutOfMemory) => Err(named("out of memory while loading".into())),
            Err(ApiError::Fault(what)) => Err(named(what)),
        }
    }

    fn alloc(&self, bytes: usize) -> Result<StreamMemory<A>, BackendError> {
        let bytes = bytes.max(1);
        let address = self.api()?.alloc(bytes).map_err(|e| memory(e, (bytes, "a tensor")))?;
        Ok(StreamMemory { api: self.api.clone(), region: Region { address, bytes } })
    }

    fn region(&self, memory: &StreamMemory<A>) -> Region {
        memory.region
    }

    fn write(&self, dst: Region, bytes: &[u8]) -> Result<(), BackendError> {
        if dst.bytes != bytes.len() {
            return Err(BackendError::Device(format!("{} bytes for {dst:?}", bytes.len())));
        }
        if bytes.is_empty() {
            return Ok(());
        }
        // SAFETY: a region of a live allocation, as long as the bytes.
        unsafe { self.api()?.copy_in(dst.address, bytes) }.map_err(fault)
    }

    fn read(&self, src: Region) -> Result<Download<Vec<u8>>, BackendError> {
        if src.bytes == 0 {
            return Ok(Download::ready(Vec::new()));
        }
        let api = self.api()?;
        let staged = self.staging.take(src.bytes).map_err(|e| memory(e, (src.bytes, "a result")))?;
        // SAFETY: the buffer has so many bytes and stays until the event was waited for or the queue is idle.
        unsafe { api.copy_out(staged.pointer(), src.address, src.bytes) }.map_err(fault)?;
        let event = self.record()?;
        Ok(Download::pending(move || {
            event.api.make_current().map_err(fault)?;
            // SAFETY: a live event of this object.
            unsafe { event.api.wait_event(event.handle) }.map_err(fault)?;
            Ok(staged.to_vec(src.bytes))
        }))
    }

    fn copy(&self, dst: Region, src: Region) -> Result<(), BackendError> {
        if dst.bytes != src.bytes {
            return Err(BackendError::Device(format!("copy of {src:?} to {dst:?}")));
        }
        if src.bytes == 0 {
            return Ok(());
        }
        // SAFETY: regions of live allocations, of one length.
        unsafe { self.api()?.copy(dst.address, src.address, src.bytes) }.map_err(fault)
    }

    fn zero(&self, dst: Region) -> Result<(), BackendError> {
        if dst.bytes == 0 {
            return Ok(());
        }
        // SAFETY: a region of a live allocation.
        unsafe { self.api()?.clear(dst.address, dst.bytes) }.map_err(fault)
    }

    fn launch(&self, function: &StreamFunction<A>, launch: &Launch<'_>) -> Result<(), BackendError> {
        let mut addresses: Vec<u64> = launch.buffers.iter().map(|region| region.address).collect();
        // Words, so that the structure is aligned as its 64-bit members are.
        let mut info = vec![0_u64; launch.info.len().div_ceil(8)];
        for (word, bytes) in info.iter_mut().zip(launch.info.chunks(8)) {
            let mut padded = [0; 8];
            padded[..bytes.len()].copy_from_slice(bytes);
            *word = u64::from_ne_bytes(padded);
        }
        let mut parameters: Vec<*mut c_void> = addresses.iter_mut().map(|a| std::ptr::from_mut(a).cast()).collect();
        if !info.is_empty() {
            parameters.push(info.as_mut_ptr().cast());
        }
        let raw = RawLaunch {
            grid: [launch.cubes.x, launch.cubes.y, launch.cubes.z],
            threads: launch.units,
            shared_bytes: launch.shared_bytes,
            parameters: &mut parameters,
        };
        // SAFETY: the launcher checked number and layout of the parameters against the kernel's manifest entry; both
        // libraries copy them before they return.
        let launched = unsafe { self.api()?.launch(function.kernel.function, raw) };
        launched.map_err(|error| match fault(error) {
            BackendError::Device(what) => BackendError::Device(format!("kernel {}: {what}", function.name)),
            other => other,
        })
    }

    fn record(&self) -> Result<StreamEvent<A>, BackendError> {
        let handle = self.api()?.record_event().map_err(fault)?;
        Ok(StreamEvent { api: self.api.clone(), handle })
    }

    fn wait(&self, event: &StreamEvent<A>) -> Result<(), BackendError> {
        // SAFETY: a live event of this object.
        unsafe { self.api()?.wait_event(event.handle) }.map_err(fault)
    }

    fn synchronize(&self) -> Result<(), BackendError> {
        self.api()?.synchronize().map_err(fault)
    }

    fn capture(&self, body: &mut dyn FnMut() -> Result<(), BackendError>) -> Result<StreamRecording<A>, BackendError> {
        self.api()?.begin_capture().map_err(fault)?;
        let outcome = body();
        // Ended in any case: a queue that goes on recording would compute nothing any more.
        let recording = self.api()?.end_capture().map(|handle| StreamRecording { api: self.api.clone(), handle });
        outcome?;
        recording.map_err(fault)
    }

    fn replay(&self, graph: &StreamRecording<A>) -> Result<(), BackendError> {
        // SAFETY: a live recording of this object.
        unsafe { self.api()?.launch_graph(graph.handle) }.map_err(fault)
    }
}

#[cfg(test)]
mod tests {
    use perilune_kernels_dsl::{Abi, Target};

    use super::super::fake::Fake;
    use super::*;
    use crate::{Cubes, KernelEntry};

    fn driver() -> (StreamDriver<Fake>, Arc<Fake>) {
        let info = DriverInfo {
            name: "fake".into(),
            architecture: "sm_90a".into(),
            memory_bytes: 1 << 20,
            target: Target::CUDA,
        };
        let driver = StreamDriver::new(Fake::default(), info);
        let api = driver.api.clone();
        (driver, api)
    }

    fn kernel() -> Artifact {
        let abi = Abi { buffers: vec![], scalars: vec![], lengths: None, info_bytes: 12 };
        let (name, entry) = ("norm".to_owned(), "norm_entry".to_owned());
        let entry = KernelEntry {
            name,
            entry,
            file: String::new(),
            sha256: String::new(),
            units: 32,
            plane: 32,
            shared_bytes: 64,
            abi,
        };
        Artifact { entry, code: [7, 7][..].into() }
    }

    fn part(region: Region, bytes: usize) -> Region {
        region.part(0, bytes).unwrap()
    }

    #[test]
    fn bytes_come_back_and_buffers_are_used_again() {
        let (driver, api) = driver();
        let memory = driver.alloc(64).unwrap();
        let region = part(driver.region(&memory), 5);
        driver.write(region, &[1, 2, 3, 4, 5]).unwrap();
        for _ in 0..3 {
            assert_eq!(driver.read(region).unwrap().wait().unwrap(), [1, 2, 3, 4, 5]);
        }
        // One that nobody waits for goes back as well.
        drop(driver.read(region).unwrap());
        driver.read(region).unwrap().wait().unwrap();
        assert_eq!(api.count("alloc_host"), 1);
        driver.zero(region).unwrap();
        assert_eq!(driver.read(region).unwrap().wait().unwrap(), [0; 5]);
        assert!(driver.write(region, &[1]).is_err());
        assert!(driver.read(part(region, 0)).unwrap().wait().unwrap().is_empty());
        drop(memory);
        drop(driver);
        assert_eq!((api.live(), api.count("record_event")), (0, api.count("destroy_event")));
    }

    #[test]
    fn nothing_is_given_back_before_the_queue_is_idle() {
        let (driver, api) = driver();
        let memory = driver.alloc(64).unwrap();
        let function = driver.load(&kernel()).unwrap();
        let recording = driver.capture(&mut || Ok(())).unwrap();
        for (object, call) in [
            (Box::new(memory) as Box<dyn std::any::Any>, "free"),
            (Box::new(function), "unload"),
            (Box::new(recording), "destroy_graph"),
        ] {
            drop(object);
            let calls = api.calls();
            assert_eq!(calls[calls.len() - 2..], ["synchronize", call]);
        }
    }

    #[test]
    fn parameters_are_addresses_and_then_the_structure() {
        let (driver, api) = driver();
        let function = driver.load(&kernel()).unwrap();
        let buffers = [Region { address: 4096, bytes: 8 }, Region { address: 8192, bytes: 8 }];
        let launch = Launch {
            cubes: Cubes { x: 3, y: 2, z: 1 },
            units: 32,
            shared_bytes: 64,
            buffers: &buffers,
            reach: &[],
            info: &[1, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0],
        };
        driver.launch(&function, &launch).unwrap();
        assert_eq!(api.launched(), [("norm_entry".to_owned(), [3, 2, 1], vec![4096, 8192, 1, 2])]);
        api.fail_next("launch", ApiError::Fault("cuLaunchKernel: illegal address".into()));
        let error = driver.launch(&function, &launch).unwrap_err().to_string();
        assert!(error.contains("kernel norm") && error.contains("illegal address"), "{error}");
    }

    #[test]
    fn a_recording_ends_even_where_its_body_fails() {
        let (driver, api) = driver();
        let refused = driver.capture(&mut || Err(BackendError::Unsupported { op: "x", what: "y".into() }));
        assert!(matches!(refused.err(), Some(BackendError::Unsupported { op: "x", .. })));
        assert!(!api.captures());
        assert_eq!(api.count("destroy_graph"), 1);
        api.fail_next("end_capture", ApiError::Fault("the recording is spoiled".into()));
        assert!(driver.capture(&mut || Ok(())).err().unwrap().to_string().contains("spoiled"));
        let graph = driver.capture(&mut || Ok(())).unwrap();
        driver.replay(&graph).unwrap();
        assert_eq!(api.count("launch_graph"), 1);
    }

    #[test]
    fn exhausted_memory_says_how_much_was_asked_for() {
        let (driver, api) = driver();
        api.fail_next("alloc", ApiError::OutOfMemory);
        let error = driver.alloc(12345).unwrap_err();
        assert!(matches!(error, BackendError::OutOfMemory { requested_bytes: 12345, .. }), "{error}");
        api.fail_next("load", ApiError::Fault("no kernel image is available".into()));
        let error = driver.load(&kernel()).err().unwrap().to_string();
        assert!(error.contains("kernel norm: no kernel image"), "{error}");
    }

    #[test]
    fn a_fault_of_earlier_work_surfaces_where_a_result_is_waited_for() {
        let (driver, api) = driver();
        let memory = driver.alloc(8).unwrap();
        let result = driver.read(driver.region(&memory)).unwrap();
        api.fail_next("wait_event", ApiError::Fault("cuEventSynchronize: unspecified launch failure".into()));
        assert!(result.wait().unwrap_err().to_string().contains("unspecified launch failure"));
    }
}
