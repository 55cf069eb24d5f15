//! The parts of the target that the draft borrows: embedding and output head, in full precision.

use perilune_config::{HeadKind, ModelConfig};
use perilune_weights::{Checkpoint, WeightsError};

use crate::TrainError;

/// The target's embedding, `[V, H]`.
#[derive(Debug, Clone)]
pub struct Embedding {
    values: Vec<f32>,
    hidden: usize,
}

impl Embedding {
    /// Of rows that lie one after the other.
    pub fn new(values: Vec<f32>, hidden: usize) -> Self {
        Embedding { values, hidden }
    }

    /// A token's row; the first one's for tokens that are not there.
    pub(crate) fn row(&self, token: u32) -> &[f32] {
        let start = token as usize * self.hidden;
        self.values.get(start..start + self.hidden).unwrap_or(&self.values[..self.hidden])
    }
}

/// What a draft needs of its target besides what it says.
#[derive(Debug, Clone)]
pub struct TargetEnds {
    /// Rows of the inputs.
    pub embedding: Embedding,
    /// The output head, `[V, H]`.
    pub head: Vec<f32>,
}

impl TargetEnds {
    /// Reads both from a checkpoint.
    ///
    /// # Errors
    /// `Weights`, also for matrices that are packed.
    pub fn read(config: &ModelConfig, checkpoint: &Checkpoint<'_>) -> Result<Self, TrainError> {
        let embedding = matrix(checkpoint, "model.embed_tokens.weight")?;
        let head = match config.head {
            HeadKind::Separate => matrix(checkpoint, "lm_head.weight")?,
            HeadKind::Tied => embedding.clone(),
        };
        Ok(TargetEnds { embedding: Embedding::new(embedding, config.hidden_size), head })
    }
}

fn matrix(checkpoint: &Checkpoint<'_>, name: &str) -> Result<Vec<f32>, TrainError> {
    let stored = checkpoint.matrix(name)?;
    if !stored.format.is_float() {
        let found = format!("{:?}", stored.format);
        let expected = "a matrix in floating point: a draft is trained beside it".to_owned();
        return Err(WeightsError::Mismatch { name: name.to_owned(), found, expected }.into());
    }
    Ok(stored.data.to_f32())
}
