//! What sequences leave behind between steps: latent blocks of MLA layers, state slots of KDA layers.

use perilune_backend::{Backend, BackendError};
use perilune_config::{LayerKind, ModelConfig};
use perilune_tensor::TensorSpec;

/// How much room the caches have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CacheShape {
    /// Latent blocks.
    pub num_blocks: usize,
    /// Tokens per block.
    pub block_size: usize,
    /// State slots.
    pub num_slots: usize,
}

impl CacheShape {
    /// Bytes of one state slot over all KDA layers: recurrent state and convolution tail, `F32`.
    pub fn slot_bytes(config: &ModelConfig) -> usize {
        let d = config.kda;
        let per_layer = d.width() * d.head_dim + 3 * (d.conv_kernel - 1) * d.width();
        config.count(LayerKind::Kda) * per_layer * 4
    }

    /// Bytes of one block of `block_size` tokens over all MLA layers, `F32`.
    pub fn block_bytes(config: &ModelConfig, block_size: usize) -> usize {
        config.count(LayerKind::Mla) * block_size * config.mla.latent_width() * 4
    }
}

/// Cache of one layer.
#[derive(Debug)]
pub(crate) enum LayerCache<T> {
    /// `state [slots, heads, D, D]`, `conv [slots, 3, taps - 1, P]`.
    Kda { state: T, conv: T },
    /// `[blocks, block_size, C + r]`.
    Mla { latent: T },
}

/// Caches of all layers.
#[derive(Debug)]
pub struct Caches<B: Backend> {
    pub(crate) layers: Vec<LayerCache<B::Tensor>>,
    shape: CacheShape,
}

impl<B: Backend> Caches<B> {
    /// Zeroed caches.
    ///
    /// # Errors
    /// `OutOfMemory`.
    pub fn new(backend: &B, config: &ModelConfig, shape: CacheShape) -> Result<Self, BackendError> {
        let (kda, mla) = (config.kda, config.mla);
        let layer = |kind: &LayerKind| match kind {
            LayerKind::Kda => {
                let state = [shape.num_slots, kda.num_heads, kda.head_dim, kda.head_dim];
                let conv = [shape.num_slots, 3, kda.conv_kernel - 1, kda.width()];
                Ok(LayerCache::Kda {
                    state: backend.alloc(&TensorSpec::f32(state))?,
                    conv: backend.alloc(&TensorSpec::f32(conv))?,
                })
            }
            LayerKind::Mla => {
                let latent = [shape.num_blocks, shape.block_size, mla.latent_width()];
                Ok(LayerCache::Mla { latent: backend.alloc(&TensorSpec::f32(latent))? })
            }
        };
        Ok(Caches { layers: config.layers.iter().map(layer).collect::<Result<_, BackendError>>()?, shape })
    }

    /// How much room there is.
    pub fn shape(&self) -> CacheShape {
        self.shape
    }

    /// Clears a slot in every KDA layer: a sequence starts from zeros, whoever had the slot before.
    ///
    /// # Errors
    /// `Mismatch` where there is no such slot.
    pub fn zero_slot(&mut self, backend: &B, slot: usize) -> Result<(), BackendError> {
        for layer in &mut self.layers {
            if let LayerCache::Kda { state, conv } = layer {
                backend.zero(state, slot..slot + 1)?;
                backend.zero(conv, slot..slot + 1)?;
            }
        }
        Ok(())
    }

    /// The recurrent state of a KDA layer, `[slots, heads, D, D]`; `None` for an MLA layer.
    pub fn kda_state(&self, layer: usize) -> Option<&B::Tensor> {
        match self.layers.get(layer)? {
            LayerCache::Kda { state, .. } => Some(state),
            LayerCache::Mla { .. } => None,
        }
    }

    /// The convolution tail of a KDA layer, `[slots, 3, taps - 1, P]`; `None` for an MLA layer.
    pub fn kda_conv(&self, layer: usize) -> Option<&B::Tensor> {
        match self.layers.get(layer)? {
            LayerCache::Kda { conv, .. } => Some(conv),
            LayerCache::Mla { .. } => None,
        }
    }

    /// The latents of an MLA layer, `[blocks, block_size, C + r]`; `None` for a KDA layer.
    pub fn mla_latent(&self, layer: usize) -> Option<&B::Tensor> {
        match self.layers.get(layer)? {
            LayerCache::Mla { latent } => Some(latent),
            LayerCache::Kda { .. } => None,
        }
    }
}
