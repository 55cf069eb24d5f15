//! Steps that a device records once and replays on other contents of the same tensors.

/// What [`crate::Backend::record`] returns.
///
/// It refers to the tensors of its operations: they must live as long as it is replayed.
pub trait StepGraph: Send + std::fmt::Debug + 'static {
    /// What a replay enqueues: launches, copies, clears.
    fn nodes(&self) -> usize;
}

/// The graph of a backend that cannot record: there is none.
#[derive(Debug)]
pub enum NoGraph {}

impl StepGraph for NoGraph {
    fn nodes(&self) -> usize {
        match *self {}
    }
}
