//! How far reading a checkpoint has come.

/// What is being done with the tensors.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stage {
    /// Every value is read and checked.
    Checking,
    /// Tensors are handed to the device.
    Loading,
}

/// A report after some tensors of a stage are done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Progress {
    /// The stage.
    pub stage: Stage,
    /// Tensors finished.
    pub tensors_done: usize,
    /// Tensors of the model.
    pub tensors_total: usize,
    /// Bytes finished.
    pub bytes_done: u64,
    /// Bytes of the model's tensors as they are stored.
    pub bytes_total: u64,
}

impl Progress {
    /// The report of a stage that has not begun.
    pub fn start(stage: Stage, tensors_total: usize, bytes_total: u64) -> Self {
        Progress { stage, tensors_done: 0, tensors_total, bytes_done: 0, bytes_total }
    }
}
