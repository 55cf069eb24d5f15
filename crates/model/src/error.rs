//! What can go wrong while a model is loaded or run.

use perilune_backend::BackendError;
use perilune_weights::WeightsError;

/// A model that cannot be loaded, or a step that cannot be computed.
#[derive(Debug, thiserror::Error)]
pub enum ModelError {
    /// The checkpoint does not fit the configuration.
    #[error(transparent)]
    Weights(#[from] WeightsError),
    /// The device refused or failed.
    #[error(transparent)]
    Backend(#[from] BackendError),
    /// A step is larger than what was allocated for it: a fault of the caller.
    #[error("a step with {found} {what} was planned, but there is room for {room}")]
    Limit {
        /// What there is too much of.
        what: &'static str,
        /// How much was planned.
        found: usize,
        /// How much fits.
        room: usize,
    },
    /// A run that makes no sense: a fault of the caller.
    #[error("run {index} of a step: {problem}")]
    Run {
        /// Its place in the plan.
        index: usize,
        /// What is wrong.
        problem: String,
    },
}
