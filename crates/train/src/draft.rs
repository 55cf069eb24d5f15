//! The draft: context features of the target's streams, blocks of masked tokens over them, Markov and confidence heads
//! (`kimi-k3.md` 6.1 and 6.2).
//!
//! Embedding and output head are the target's and frozen; they are not part of it.

use burn::module::{Module, Param};
use burn::tensor::activation::silu;
use burn::tensor::{Distribution, Int, Tensor};

use crate::attention::{Attention, Context};
use crate::block::BlockInput;
use crate::draft_config::DraftConfig;
use crate::place::Place;
use crate::rope::Rotation;

/// Weights of a draft; matrices are `[out, in]` as they are stored.
#[derive(Module, Debug)]
pub struct Draft {
    pub(crate) fc: Param<Tensor<2>>,
    pub(crate) hidden_norm: Param<Tensor<1>>,
    pub(crate) layers: Vec<DraftLayer>,
    pub(crate) norm: Param<Tensor<1>>,
    /// `[V, r]`, by the token before.
    pub(crate) markov_w1: Param<Tensor<2>>,
    /// `[V, r]`, by the token proposed.
    pub(crate) markov_w2: Param<Tensor<2>>,
    /// `[1, H + r]`.
    pub(crate) confidence: Param<Tensor<2>>,
    pub(crate) confidence_bias: Param<Tensor<1>>,
}

/// One layer.
#[derive(Module, Debug)]
pub struct DraftLayer {
    pub(crate) input_norm: Param<Tensor<1>>,
    pub(crate) attention: Attention,
    pub(crate) post_norm: Param<Tensor<1>>,
    pub(crate) gate: Param<Tensor<2>>,
    pub(crate) up: Param<Tensor<2>>,
    pub(crate) down: Param<Tensor<2>>,
}

/// What the draft says of every row of its blocks.
#[derive(Debug, Clone)]
pub(crate) struct RowOutput {
    /// After the final norm, `[R, H]`; times the target's head: the base logits.
    pub(crate) hidden: Tensor<2>,
    /// `W1` of the true token before, `[R, r]`.
    pub(crate) markov: Tensor<2>,
    /// Logit of the chance to be accepted, `[R, 1]`.
    pub(crate) confidence: Tensor<2>,
}

/// `x W^T`.
pub(crate) fn project(x: Tensor<2>, weight: &Param<Tensor<2>>) -> Tensor<2> {
    x.matmul(weight.val().transpose())
}

/// Root-mean-square norm over the last of two dimensions.
fn rms_norm(x: Tensor<2>, weight: &Param<Tensor<1>>, eps: f64) -> Tensor<2> {
    let scale = x.clone().square().mean_dim(1).add_scalar(eps).sqrt().recip();
    x * scale * weight.val().unsqueeze()
}

/// A parameter of normal numbers with this deviation; 0 makes zeros.
pub(crate) fn normal(shape: [usize; 2], deviation: f64, place: &Place) -> Param<Tensor<2>> {
    let value = match deviation {
        0.0 => Tensor::zeros(shape, place),
        _ => Tensor::random(shape, Distribution::Normal(0.0, deviation), place),
    };
    Param::from_tensor(value)
}

/// A norm that changes nothing yet.
pub(crate) fn ones(width: usize, place: &Place) -> Param<Tensor<1>> {
    Param::from_tensor(Tensor::ones([width], place))
}

/// Deviation that keeps the scale of what goes through a matrix of so many columns.
pub(crate) fn deviation(columns: usize) -> f64 {
    (columns as f64).sqrt().recip()
}

impl Draft {
    /// Fresh weights: the Markov correction and the confidence begin at nothing.
    pub fn new(config: &DraftConfig, place: &Place) -> Self {
        let (h, r) = (config.hidden, config.markov_rank);
        let taps = config.taps.len() * h;
        // What layers add begins small beside what they add to.
        let residual = deviation(config.intermediate) / (2.0 * config.num_layers as f64).sqrt();
        let layer = |_| DraftLayer {
            input_norm: ones(h, place),
            attention: Attention::new(config, place),
            post_norm: ones(h, place),
            gate: normal([config.intermediate, h], deviation(h), place),
            up: normal([config.intermediate, h], deviation(h), place),
            down: normal([h, config.intermediate], residual, place),
        };
        Draft {
            fc: normal([h, taps], deviation(taps), place),
            hidden_norm: ones(h, place),
            layers: (0..config.num_layers).map(layer).collect(),
            norm: ones(h, place),
            markov_w1: normal([config.vocabulary, r], deviation(r), place),
            markov_w2: normal([config.vocabulary, r], 0.0, place),
            confidence: normal([1, h + r], 0.0, place),
            confidence_bias: Param::from_tensor(Tensor::zeros([1], place)),
        }
    }

    /// Runs all blocks of a sequence at once.
    pub(crate) fn forward(&self, config: &DraftConfig, input: &BlockInput) -> RowOutput {
        let (eps, place) = (config.eps, input.place());
        let features = rms_norm(project(input.taps.clone(), &self.fc), &self.hidden_norm, eps);
        let context = Context {
            features,
            rotation: Rotation::new(config.rope, config.head_dim, &input.context_positions(), &place),
            visible: input.visible.clone(),
        };
        let rotation = Rotation::new(config.rope, config.head_dim, &input.positions, &place);
        let mut h = input.embedded.clone();
        for layer in &self.layers {
            let x = rms_norm(h.clone(), &layer.input_norm, eps);
            h = h + layer.attention.forward(config, x, (&context, &rotation));
            let x = rms_norm(h.clone(), &layer.post_norm, eps);
            h = h + project(silu(project(x.clone(), &layer.gate)) * project(x, &layer.up), &layer.down);
        }
        let hidden = rms_norm(h, &self.norm, eps);
        let markov = self.markov(input.previous.clone());
        let confidence = self.confidence(hidden.clone(), markov.clone());
        RowOutput { hidden, markov, confidence }
    }

    /// Rows of `W1`.
    pub(crate) fn markov(&self, previous: Tensor<1, Int>) -> Tensor<2> {
        self.markov_w1.val().select(0, previous)
    }

    fn confidence(&self, hidden: Tensor<2>, markov: Tensor<2>) -> Tensor<2> {
        project(Tensor::cat(vec![hidden, markov], 1), &self.confidence) + self.confidence_bias.val().unsqueeze()
    }
}
