//! Steps that are recorded once and replayed: what a decode step launches depends on its sizes alone, everything else is
//! in index tensors that [`crate::ForwardBatch::fill`] rewrites in place.

use std::collections::HashMap;

use perilune_backend::{Backend, BackendError};

/// Recordings that are kept; beyond, the one that was not used for longest goes.
const MOST: usize = 128;

/// Everything that decides which operations a step has, and their sizes. Two steps of one shape launch the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct StepShape {
    /// Token rows.
    pub rows: usize,
    /// Runs that are only verified.
    pub verified: usize,
    /// Other runs, all of them short.
    pub runs: usize,
    /// Rows whose logits are computed.
    pub logit_rows: usize,
}

/// Recordings by shape. They refer to one model's weights, workspace, batch and caches, and are of use with no others.
#[derive(Debug)]
pub struct StepGraphs<B: Backend> {
    graphs: HashMap<StepShape, Entry<B::Graph>>,
    /// Steps so far.
    clock: u64,
}

#[derive(Debug)]
struct Entry<G> {
    /// `None` until the shape comes a second time: the first run makes what a recording may not make.
    graph: Option<G>,
    used: u64,
}

impl<B: Backend> Default for StepGraphs<B> {
    fn default() -> Self {
        StepGraphs { graphs: HashMap::new(), clock: 0 }
    }
}

impl<B: Backend> StepGraphs<B> {
    /// Runs a step: as it is the first time that its shape occurs and where it has none, from a recording afterwards.
    ///
    /// # Errors
    /// Those of `step`; `Device`.
    pub fn run(
        &mut self,
        (backend, shape): (&B, Option<StepShape>),
        mut step: impl FnMut() -> Result<(), BackendError>,
    ) -> Result<(), BackendError> {
        let Some(shape) = shape else { return step() };
        self.clock += 1;
        let used = self.clock;
        let Some(entry) = self.graphs.get_mut(&shape) else {
            step()?;
            self.make_room();
            self.graphs.insert(shape, Entry { graph: None, used });
            return Ok(());
        };
        entry.used = used;
        if entry.graph.is_none() {
            entry.graph = backend.record(&mut step)?;
        }
        match &entry.graph {
            Some(graph) => backend.replay(graph),
            None => step(),
        }
    }

    /// Recordings at hand.
    pub fn recorded(&self) -> usize {
        self.graphs.values().filter(|entry| entry.graph.is_some()).count()
    }

    fn make_room(&mut self) {
        if self.graphs.len() >= MOST
            && let Some(oldest) = self.graphs.iter().min_by_key(|(_, entry)| entry.used).map(|(shape, _)| *shape)
        {
            self.graphs.remove(&oldest);
        }
    }
}
