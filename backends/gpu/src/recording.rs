//! Recording a step: what must live as long as the recording, and what may not happen while it is made.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use perilune_backend::{BackendError, StepGraph};

use crate::{Driver, Gpu};

/// A recorded step with the memory that it uses besides its tensors.
pub struct GpuGraph<D: Driver> {
    graph: D::Graph,
    /// Tables and scratch buffers; the maps that they came from may drop theirs.
    _memory: Vec<Arc<D::Memory>>,
    nodes: usize,
}

impl<D: Driver> std::fmt::Debug for GpuGraph<D> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "GpuGraph({} nodes)", self.nodes)
    }
}

impl<D: Driver> StepGraph for GpuGraph<D> {
    fn nodes(&self) -> usize {
        self.nodes
    }
}

/// Whether a step is being recorded, and what it used so far.
pub(crate) struct Recording<D: Driver>(Mutex<Option<Used<D>>>);

struct Used<D: Driver> {
    memory: Vec<Arc<D::Memory>>,
    nodes: usize,
}

impl<D: Driver> Default for Recording<D> {
    fn default() -> Self {
        Recording(Mutex::new(None))
    }
}

impl<D: Driver> Recording<D> {
    fn used(&self) -> MutexGuard<'_, Option<Used<D>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Something was enqueued.
    pub(crate) fn count_node(&self) {
        if let Some(used) = self.used().as_mut() {
            used.nodes += 1;
        }
    }

    /// A table or a scratch buffer is used.
    pub(crate) fn keep(&self, memory: &Arc<D::Memory>) {
        if let Some(used) = self.used().as_mut() {
            used.memory.push(memory.clone());
        }
    }

    /// `Unsupported` while a step is recorded: the device would refuse it, or do it once instead of with each replay.
    pub(crate) fn refuse(&self, op: &'static str) -> Result<(), BackendError> {
        match *self.used() {
            Some(_) => Err(BackendError::Unsupported { op, what: "use while a step is recorded".into() }),
            None => Ok(()),
        }
    }
}

/// Records `body`; `None` where it needs what was not there yet, or the driver cannot record.
pub(crate) fn record<D: Driver>(
    gpu: &Gpu<D>,
    body: &mut dyn FnMut() -> Result<(), BackendError>,
) -> Result<Option<GpuGraph<D>>, BackendError> {
    gpu.recording.refuse("record")?;
    *gpu.recording.used() = Some(Used { memory: Vec::new(), nodes: 0 });
    let outcome = gpu.driver().capture(body);
    let used = gpu.recording.used().take();
    match (outcome, used) {
        (Ok(graph), Some(Used { memory, nodes })) => Ok(Some(GpuGraph { graph, _memory: memory, nodes })),
        (Err(BackendError::Unsupported { .. }), _) | (Ok(_), None) => Ok(None),
        (Err(error), _) => Err(error),
    }
}

/// Enqueues a recorded step.
pub(crate) fn replay<D: Driver>(gpu: &Gpu<D>, graph: &GpuGraph<D>) -> Result<(), BackendError> {
    gpu.recording.refuse("replay")?;
    gpu.driver().replay(&graph.graph)
}
