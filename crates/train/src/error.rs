//! What can go wrong while a draft is trained.

use std::path::PathBuf;

use perilune_backend::BackendError;
use perilune_engine::SubmitError;
use perilune_model::ModelError;
use perilune_tokenizer::TokenizerError;
use perilune_weights::WeightsError;

/// A training that cannot start or go on.
#[derive(Debug, thiserror::Error)]
pub enum TrainError {
    /// An option that cannot work.
    #[error("{option} is {value}; {rule}")]
    Option {
        /// Its name on the command line.
        option: &'static str,
        /// What it was.
        value: String,
        /// What is accepted.
        rule: String,
    },
    /// A line of a prompt file that is no prompt.
    #[error("{path}, line {line}: {problem}")]
    Prompt {
        /// The file.
        path: PathBuf,
        /// Counted from 1.
        line: usize,
        /// Field, value and rule.
        problem: String,
    },
    /// A file that this command wrote and that does not hold what it wrote.
    #[error("{path}: {problem}")]
    File {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        problem: String,
    },
    /// A file or directory refused.
    #[error("{path}: {source}")]
    Io {
        /// Which.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// The target gave no answer.
    #[error("the answer to the prompt in line {line} failed: {message}")]
    Answer {
        /// Of the prompt file, counted from 1.
        line: usize,
        /// Why.
        message: String,
    },
    /// The loss is no number any more.
    #[error("the loss of step {step} is {loss}; a smaller --lr may help")]
    Diverged {
        /// The step.
        step: usize,
        /// Its loss.
        loss: f64,
    },
    /// The draft's device refused.
    #[error("the draft's device: {0}")]
    Device(String),
    /// The target's device refused.
    #[error(transparent)]
    Backend(#[from] BackendError),
    /// A draft's configuration cannot be read.
    #[error(transparent)]
    Config(#[from] perilune_config::ConfigError),
    /// The target cannot run the step.
    #[error(transparent)]
    Model(#[from] ModelError),
    /// Tensors are missing or of another shape.
    #[error(transparent)]
    Weights(#[from] WeightsError),
    /// A prompt cannot be rendered.
    #[error(transparent)]
    Tokenizer(#[from] TokenizerError),
    /// The engine refused a prompt.
    #[error(transparent)]
    Submit(#[from] SubmitError),
}

impl TrainError {
    /// Names the file that refused.
    pub(crate) fn io(path: &std::path::Path) -> impl FnOnce(std::io::Error) -> TrainError + use<> {
        let path = path.to_owned();
        move |source| TrainError::Io { path, source }
    }
}
