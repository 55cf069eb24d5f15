//! Device memory that an operation needs between its launches.
//!
//! One buffer per purpose, grown to the largest size asked for and never shrunk: after the first step of a size nothing is
//! allocated any more. The queue runs in order, so the next operation may use the same buffer.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use perilune_backend::BackendError;

use crate::launcher::Argument;
use crate::recording::Recording;
use crate::{Driver, Region};

/// What a buffer is for; two that are needed at once have different purposes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Purpose {
    /// Inner activations of experts.
    InnerOfExperts,
    /// Products of experts, one row per pair.
    ProductsOfExperts,
    /// Pairs of each expert.
    PairCounts,
    /// Tiles of pairs.
    PairTiles,
    /// Pairs by expert.
    PairList,
    /// Queries in the latent space.
    MlaQueries,
    /// Mixtures of latents, one per query and split.
    MlaMixtures,
    /// Maximum and sum of each mixture.
    MlaStats,
}

/// Buffers by purpose.
pub(crate) struct Scratch<D: Driver>(Mutex<HashMap<Purpose, Arc<D::Memory>>>);

impl<D: Driver> Default for Scratch<D> {
    fn default() -> Self {
        Scratch(Mutex::default())
    }
}

/// A buffer in use; the memory lives as long as it.
pub(crate) struct ScratchBuffer<D: Driver> {
    pub(crate) memory: Arc<D::Memory>,
    region: Region,
}

impl<D: Driver> ScratchBuffer<D> {
    /// As a kernel's buffer of elements of this size.
    pub(crate) fn argument(&self, element_bytes: usize) -> Argument {
        Argument { region: self.region, element_bytes }
    }
}

impl<D: Driver> Scratch<D> {
    /// A buffer of this many bytes; its contents are undefined.
    pub(crate) fn get(
        &self,
        (driver, recording): (&D, &Recording<D>),
        (purpose, bytes): (Purpose, usize),
    ) -> Result<ScratchBuffer<D>, BackendError> {
        let mut buffers = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let bytes = bytes.max(16);
        let large_enough = buffers.get(&purpose).filter(|m| driver.region(m).bytes >= bytes);
        let memory = match large_enough {
            Some(memory) => memory.clone(),
            None => {
                recording.refuse("growing a buffer")?;
                let memory = Arc::new(driver.alloc(bytes)?);
                buffers.insert(purpose, memory.clone());
                memory
            }
        };
        let region = driver.region(&memory).part(0, bytes);
        let region = region.ok_or_else(|| BackendError::Device(format!("{bytes} bytes for {purpose:?}")))?;
        Ok(ScratchBuffer { memory, region })
    }
}
