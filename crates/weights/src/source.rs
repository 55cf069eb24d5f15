//! Where tensors come from, by name.

use std::collections::BTreeMap;

use perilune_tensor::{HostTensor, TensorSpec};

use crate::WeightsError;

/// A collection of named tensors.
pub trait WeightSource: Send + Sync {
    /// All names, in no particular order.
    fn names(&self) -> Box<dyn Iterator<Item = &str> + '_>;

    /// Shape and element type in words, for any stored tensor; `None` where there is none of that name.
    fn describe(&self, name: &str) -> Option<String>;

    /// Shape and element type; `None` where there is no tensor of that name or its element type is not one that
    /// models use.
    fn spec(&self, name: &str) -> Option<TensorSpec>;

    /// The tensor itself, without copying where it lies aligned.
    ///
    /// # Errors
    /// `Missing`; `Mismatch` for an element type that models do not use.
    fn get(&self, name: &str) -> Result<HostTensor, WeightsError>;

    /// Whether there is a tensor of that name.
    fn contains(&self, name: &str) -> bool {
        self.describe(name).is_some()
    }
}

/// Tensors held in memory.
#[derive(Debug, Clone, Default)]
pub struct MemorySource {
    tensors: BTreeMap<String, HostTensor>,
}

impl MemorySource {
    /// Without tensors.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds or replaces a tensor; returns the one it replaced.
    pub fn insert(&mut self, name: impl Into<String>, tensor: HostTensor) -> Option<HostTensor> {
        self.tensors.insert(name.into(), tensor)
    }

    /// Takes a tensor out.
    pub fn remove(&mut self, name: &str) -> Option<HostTensor> {
        self.tensors.remove(name)
    }
}

impl WeightSource for MemorySource {
    fn names(&self) -> Box<dyn Iterator<Item = &str> + '_> {
        Box::new(self.tensors.keys().map(String::as_str))
    }

    fn describe(&self, name: &str) -> Option<String> {
        self.spec(name).map(|spec| spec.to_string())
    }

    fn spec(&self, name: &str) -> Option<TensorSpec> {
        self.tensors.get(name).map(|tensor| tensor.spec().clone())
    }

    fn get(&self, name: &str) -> Result<HostTensor, WeightsError> {
        let found = self.tensors.get(name).cloned();
        found.ok_or_else(|| WeightsError::Missing { name: name.into(), expected: "any tensor".into() })
    }
}
