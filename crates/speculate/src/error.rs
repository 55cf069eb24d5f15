//! What can go wrong while a draft is loaded.

use perilune_backend::BackendError;
use perilune_config::ConfigError;
use perilune_weights::WeightsError;

/// A draft that cannot be loaded.
#[derive(Debug, thiserror::Error)]
pub enum SpeculateError {
    /// It was made for another target.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// Its checkpoint does not fit its configuration.
    #[error(transparent)]
    Weights(#[from] WeightsError),
    /// The device refused: it has no room, or does not run drafts.
    #[error(transparent)]
    Backend(#[from] BackendError),
}
