//! Weights of a DSpark draft on a device.

use perilune_backend::{DraftAttention, Weight};

/// All of a draft but embedding and head, which are the target's.
#[derive(Debug)]
pub(super) struct Model<T> {
    pub(super) context: Context<T>,
    pub(super) layers: Vec<Layer<T>>,
    /// `F32 [H]`: norm before the heads.
    pub(super) norm: T,
    /// `F32 [H]`: the same with the factor on logits; `None` where that is 1.
    pub(super) scaled_norm: Option<T>,
    pub(super) markov: Option<Markov<T>>,
    pub(super) confidence: Option<Confidence<T>>,
    /// `F32 [R/2]`.
    pub(super) frequencies: T,
    /// Factor on cosines and sines.
    pub(super) amplitude: f32,
}

/// From the target's streams to what every layer projects its keys and values from.
#[derive(Debug)]
pub(super) struct Context<T> {
    /// `F32 [H]` per stream: norms before the projection; empty without.
    pub(super) tap_norms: Vec<T>,
    /// `[H, H]` per stream: the parts of one projection of their concatenation.
    pub(super) projections: Vec<Weight<T>>,
    /// `F32 [H]`: norm of the sum.
    pub(super) norm: T,
}

/// One layer.
#[derive(Debug)]
pub(super) struct Layer<T> {
    pub(super) attn_norm: T,
    pub(super) query: Query<T>,
    /// `[W, H]`: keys and values.
    pub(super) rows: Weight<T>,
    pub(super) attn: DraftAttention<T>,
    pub(super) out: Weight<T>,
    pub(super) ffn_norm: T,
    pub(super) gate: Weight<T>,
    pub(super) up: Weight<T>,
    pub(super) down: Weight<T>,
}

/// The query projection.
#[derive(Debug)]
pub(super) enum Query<T> {
    Full(Weight<T>),
    Low { low: Weight<T>, norm: T, high: Weight<T> },
}

/// The Markov head.
#[derive(Debug)]
pub(super) struct Markov<T> {
    pub(super) rank: usize,
    /// `[V, r]`: embedding of the token before.
    pub(super) w1: Weight<T>,
    /// `[V, r]`: bias on the logits.
    pub(super) w2: Weight<T>,
    pub(super) kind: Kind<T>,
}

/// What happens between embedding and bias.
#[derive(Debug)]
pub(super) enum Kind<T> {
    Vanilla,
    /// A gate on the embedding, `[r, ·]`.
    Gated(Joint<T>),
    /// Gate, candidate and output of a recurrent cell, `[3 r, ·]`; `state` is `[3 r, r]`.
    Rnn {
        joint: Joint<T>,
        state: Weight<T>,
    },
}

/// A projection of hidden row and embedding, in parts.
#[derive(Debug)]
pub(super) struct Joint<T> {
    pub(super) hidden: Weight<T>,
    pub(super) embedding: Weight<T>,
    pub(super) bias: Vec<f32>,
}

/// The confidence head, in parts.
#[derive(Debug)]
pub(super) struct Confidence<T> {
    /// `F32 [1, H]`.
    pub(super) hidden: Weight<T>,
    /// `F32 [1, r]`; `None` where the head does not see the embedding.
    pub(super) embedding: Option<Weight<T>>,
    pub(super) bias: f32,
}

impl<T> Markov<T> {
    /// The projection of hidden row and embedding, of a head that has one.
    pub(super) fn joint(&self) -> Option<&Joint<T>> {
        match &self.kind {
            Kind::Vanilla => None,
            Kind::Gated(joint) | Kind::Rnn { joint, .. } => Some(joint),
        }
    }

    /// Width of that projection.
    pub(super) fn joint_width(&self) -> usize {
        match &self.kind {
            Kind::Vanilla => 0,
            Kind::Gated(_) => self.rank,
            Kind::Rnn { .. } => 3 * self.rank,
        }
    }
}
