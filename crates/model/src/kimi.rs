//! The model: its weights, layer by layer.

use perilune_backend::{Activation, Weight};
use perilune_config::ModelConfig;

use perilune_backend::Backend;

use crate::feed_forward::FeedForward;
use crate::kda::KdaLayer;
use crate::mla::MlaLayer;
use crate::residual::{Mix, Norm};

/// A loaded model.
#[derive(Debug)]
pub struct Kimi<B: Backend> {
    pub(crate) config: ModelConfig,
    pub(crate) act: Activation,
    pub(crate) embedding: Weight<B::Tensor>,
    pub(crate) layers: Vec<Layer<B::Tensor>>,
    /// Final mixture; `None` for a plain residual stream.
    pub(crate) mix: Option<Mix<B::Tensor>>,
    pub(crate) norm: Norm<B::Tensor>,
    /// `None` where the embedding serves as the head.
    pub(crate) head: Option<Weight<B::Tensor>>,
}

/// One layer.
#[derive(Debug)]
pub(crate) struct Layer<T> {
    /// Mixture before the attention; `None` for a plain residual stream.
    pub(crate) attn_mix: Option<Mix<T>>,
    pub(crate) attn_norm: Norm<T>,
    pub(crate) attn: Attention<T>,
    /// Mixture before the feed-forward network.
    pub(crate) ffn_mix: Option<Mix<T>>,
    pub(crate) ffn_norm: Norm<T>,
    pub(crate) ffn: FeedForward<T>,
}

/// The sequence mixer of a layer.
#[derive(Debug)]
pub(crate) enum Attention<T> {
    Kda(Box<KdaLayer<T>>),
    Mla(Box<MlaLayer<T>>),
}

impl<B: Backend> Kimi<B> {
    /// The configuration it was loaded with.
    pub fn config(&self) -> &ModelConfig {
        &self.config
    }

    /// The token embedding, `[V, H]`.
    pub fn embedding(&self) -> &Weight<B::Tensor> {
        &self.embedding
    }

    /// The output head, `[V, H]`: its own, or the embedding.
    pub fn head(&self) -> &Weight<B::Tensor> {
        self.head.as_ref().unwrap_or(&self.embedding)
    }
}
