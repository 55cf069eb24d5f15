//! From the blocks of a sequence to the loss and its gradient.
//!
//! Autodiff ends at the draft's last hidden rows: logits and everything after them are computed outside of it, a few hundred
//! rows at a time, and [`row_loss`] hands back the gradient by the logits. The gradient by the hidden rows, the Markov rows
//! and `W2` follows by matrix products; multiplied with the rows they belong to they make a number whose gradient by the
//! weights is that of the loss, and autodiff does the rest.

use burn::tensor::{Element, Gradients, Tensor, TensorData};
use num_traits::Float;
use perilune_tensor::TokenId;

use crate::TrainError;
use crate::block::{BlockInput, Blocks};
use crate::draft::{Draft, RowOutput};
use crate::draft_config::DraftConfig;
use crate::loss::{LossWeights, RowLoss, RowTarget, row_loss, softmax};
use crate::place::Place;
use crate::target::{Embedding, TargetEnds};

/// Rows whose logits exist at a time; a few hundred keep them in the cache of a core.
const ROWS_AT_ONCE: usize = 256;

/// One sequence as the target said it.
#[derive(Debug, Clone, PartialEq)]
pub struct Spoken {
    /// Prompt and answer.
    pub tokens: Vec<TokenId>,
    /// Where the answer begins.
    pub answer: usize,
    /// The target's streams, `[T, taps * H]`.
    pub taps: Vec<f32>,
    /// The target's logits after each token from the last one of the prompt on, `[T - answer + 1, V]`.
    pub logits: Vec<f32>,
}

/// Everything but the weights.
#[derive(Debug)]
pub struct Objective {
    pub(crate) config: DraftConfig,
    pub(crate) weights: LossWeights,
    /// Of the draft, without autodiff.
    pub(crate) place: Place,
    pub(crate) embedding: Embedding,
    /// `[V, H]`, without autodiff.
    pub(crate) head: Tensor<2>,
}

/// Losses of rows, in order, without those that predict nothing known.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Evaluated {
    /// Sum of what each row adds to the loss.
    pub loss: f64,
    /// Position in its block, and the parts, of every row.
    pub(crate) rows: Vec<(usize, RowLoss)>,
}

/// What the rows of a sequence are held against.
struct Known<F> {
    /// `[T - answer + 1, V]`.
    probabilities: Vec<F>,
    /// Per row of the blocks: row of `probabilities`, and the token that came; `None` beyond the end.
    rows: Vec<Option<(usize, usize)>>,
}

impl Objective {
    /// Puts the frozen parts of the target on the draft's device.
    pub fn new(config: DraftConfig, weights: LossWeights, (ends, place): (TargetEnds, Place)) -> Self {
        let head = TensorData::new(ends.head, [config.vocabulary, config.hidden]);
        let head = Tensor::from_data(head, &place);
        Objective { config, weights, place, embedding: ends.embedding, head }
    }

    /// Shape of the draft.
    pub fn config(&self) -> &DraftConfig {
        &self.config
    }

    /// Positions that can be anchors: tokens of the answer with at least one more after them.
    pub fn anchors(&self, spoken: &Spoken) -> std::ops::Range<usize> {
        spoken.answer..spoken.tokens.len().saturating_sub(1)
    }

    /// Sum of the weights of all rows that have something to predict.
    pub fn total_weight(&self, spoken: &Spoken, anchors: &[usize]) -> f64 {
        let rows = |anchor: &usize| 0..self.config.block_size.min(spoken.tokens.len() - 1 - anchor);
        anchors.iter().flat_map(rows).map(|position| self.weights.of_position(position)).sum()
    }

    /// Loss and gradient of the blocks at `anchors`, divided by `total`, the weight of the whole batch.
    ///
    /// # Errors
    /// `Device`.
    pub fn gradient(
        &self,
        draft: &Draft,
        spoken: &Spoken,
        (anchors, total): (&[usize], f64),
    ) -> Result<(Evaluated, Gradients), TrainError> {
        let place = Place { device: self.place.device.clone().autodiff(), dtype: self.place.dtype };
        let output = self.forward(draft, spoken, (anchors, &place));
        match self.place.dtype {
            burn::tensor::DType::F64 => self.backward::<f64>(draft, &output, (spoken, anchors, total)),
            _ => self.backward::<f32>(draft, &output, (spoken, anchors, total)),
        }
    }

    pub(crate) fn forward(&self, draft: &Draft, spoken: &Spoken, (anchors, place): (&[usize], &Place)) -> RowOutput {
        let blocks = Blocks { tokens: &spoken.tokens, taps: &spoken.taps, anchors };
        draft.forward(&self.config, &BlockInput::new(&self.config, blocks, (&self.embedding, place)))
    }

    fn backward<F: Element + Float + std::iter::Sum>(
        &self,
        draft: &Draft,
        output: &RowOutput,
        (spoken, anchors, total): (&Spoken, &[usize], f64),
    ) -> Result<(Evaluated, Gradients), TrainError> {
        let known = self.known::<F>(spoken, anchors);
        let confidence = output.confidence.clone().inner().try_into_vec_as::<f64>().map_err(device)?;
        let (hidden, markov) = (output.hidden.clone().inner(), output.markov.clone().inner());
        let w2 = draft.markov_w2.val().inner();
        let mut evaluated = Evaluated::default();
        let mut by_confidence = vec![0.0; confidence.len()];
        let (mut by_hidden, mut by_markov) = (Vec::new(), Vec::new());
        let mut by_w2 = w2.zeros_like();
        for start in (0..confidence.len()).step_by(ROWS_AT_ONCE) {
            let rows = ROWS_AT_ONCE.min(confidence.len() - start);
            let markov = markov.clone().narrow(0, start, rows);
            let mut logits = self.logits::<F>(hidden.clone().narrow(0, start, rows), (markov.clone(), &w2))?;
            for (i, logits) in logits.chunks_exact_mut(self.config.vocabulary).enumerate() {
                let row = start + i;
                let Some((at, label)) = known.rows[row] else {
                    logits.fill(F::zero());
                    continue;
                };
                let probabilities = &known.probabilities[at * logits.len()..][..logits.len()];
                let position = row % self.config.block_size;
                let share = self.weights.of_position(position) / total;
                let target = RowTarget { probabilities, label, confidence: confidence[row], share };
                let loss = row_loss(self.weights, target, logits);
                by_confidence[row] = loss.confidence_gradient;
                evaluated.loss += loss.loss;
                evaluated.rows.push((position, loss));
            }
            let gradient = Tensor::<2>::from_data(TensorData::new(logits, [rows, self.config.vocabulary]), &self.place);
            by_hidden.push(gradient.clone().matmul(self.head.clone()));
            by_markov.push(gradient.clone().matmul(w2.clone()));
            by_w2 = by_w2 + gradient.transpose().matmul(markov);
        }
        let by_confidence = TensorData::new(by_confidence, [confidence.len(), 1]);
        let by_confidence = Tensor::<2>::from_data(by_confidence, &self.place);
        let times = |x: Tensor<2>, gradient: Tensor<2>| (x * Tensor::from_inner(gradient)).sum();
        let stand_in = times(output.hidden.clone(), Tensor::cat(by_hidden, 0))
            + times(output.markov.clone(), Tensor::cat(by_markov, 0))
            + times(draft.markov_w2.val(), by_w2)
            + times(output.confidence.clone(), by_confidence);
        Ok((evaluated, stand_in.backward()))
    }

    /// Logits of rows, `[rows, V]`, corrected by the token before.
    pub(crate) fn logits<F: Element>(
        &self,
        hidden: Tensor<2>,
        (markov, w2): (Tensor<2>, &Tensor<2>),
    ) -> Result<Vec<F>, TrainError> {
        let logits = hidden.matmul(self.head.clone().transpose()) + markov.matmul(w2.clone().transpose());
        logits.try_into_vec_as::<F>().map_err(device)
    }

    fn known<F: Float + std::iter::Sum>(&self, spoken: &Spoken, anchors: &[usize]) -> Known<F> {
        let mut probabilities: Vec<F> = spoken.logits.iter().map(|x| F::from(*x).unwrap_or_else(F::nan)).collect();
        probabilities.chunks_exact_mut(self.config.vocabulary).for_each(|row| {
            softmax(row);
        });
        let row = |position: usize| {
            let label = spoken.tokens.get(position + 1)?.index();
            Some((position + 1 - spoken.answer, label))
        };
        let rows = anchors.iter().flat_map(|a| (0..self.config.block_size).map(move |j| a + j)).map(row).collect();
        Known { probabilities, rows }
    }
}

/// A tensor that cannot be read.
pub(crate) fn device(error: impl std::fmt::Display) -> TrainError {
    TrainError::Device(error.to_string())
}

#[cfg(test)]
mod tests {
    use burn::module::{Module, ModuleMapper, ModuleVisitor, Param};

    use super::*;
    use crate::fixture;

    /// Moves one weight of the n-th parameter.
    struct Nudge {
        parameter: usize,
        element: usize,
        by: f64,
    }

    impl ModuleMapper for Nudge {
        fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
            let here = self.parameter == 0;
            self.parameter = self.parameter.wrapping_sub(1);
            let (element, by) = (self.element, self.by);
            param.map(|tensor| {
                if !here {
                    return tensor;
                }
                let (device, dtype, shape) = (tensor.device(), tensor.dtype(), tensor.shape());
                let mut values = tensor.try_into_vec_as::<f64>().unwrap();
                values[element] += by;
                let place = Place { device, dtype };
                Tensor::from_data(TensorData::new(values, shape), &place).require_grad()
            })
        }
    }

    /// The gradient of every parameter.
    struct Collect<'a> {
        gradients: &'a mut Gradients,
        found: Vec<Vec<f64>>,
    }

    impl ModuleVisitor for Collect<'_> {
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            let gradient = param.val().grad_remove(self.gradients).expect("every parameter has a gradient");
            self.found.push(gradient.try_into_vec_as::<f64>().unwrap());
        }
    }

    fn nudged(draft: &Draft, (parameter, element, by): (usize, usize, f64)) -> Draft {
        draft.clone().map(&mut Nudge { parameter, element, by })
    }

    /// The loss with the confidence's aims held at those of `aims`.
    fn loss(objective: &Objective, draft: &Draft, spoken: &Spoken, aims: &[(usize, RowLoss)]) -> f64 {
        let anchors = fixture::ANCHORS;
        let total = objective.total_weight(spoken, &anchors);
        let (evaluated, _) = objective.gradient(draft, spoken, (&anchors, total)).unwrap();
        let own = |(position, row): &(usize, RowLoss), aim: f64| {
            let share = objective.weights.of_position(*position) / total;
            // BCE is linear in its aim: BCE(c, a') = BCE(c, a) + (a − a') c, and c follows from the gradient.
            let certain = row.confidence_gradient / (share * objective.weights.confidence) + row.acceptance;
            let logit = (certain / (1.0 - certain)).ln();
            row.loss + share * objective.weights.confidence * (row.acceptance - aim) * logit
        };
        evaluated.rows.iter().zip(aims).map(|(row, (_, aim))| own(row, aim.acceptance)).sum()
    }

    #[test]
    fn the_gradient_is_that_of_differences_for_every_parameter() {
        let objective = fixture::objective(burn::tensor::DType::F64);
        let spoken = fixture::spoken(&objective.config);
        let draft = fixture::draft(&objective);
        let total = objective.total_weight(&spoken, &fixture::ANCHORS);
        let (base, mut gradients) = objective.gradient(&draft, &spoken, (&fixture::ANCHORS, total)).unwrap();
        assert!((base.loss - loss(&objective, &draft, &spoken, &base.rows)).abs() < 1e-9);
        let mut collect = Collect { gradients: &mut gradients, found: Vec::new() };
        draft.visit(&mut collect);
        assert_eq!(collect.found.len(), objective.config.tensors().len());
        for (parameter, gradient) in collect.found.iter().enumerate() {
            // The largest, and two others.
            let largest = (0..gradient.len()).max_by(|a, b| gradient[*a].abs().total_cmp(&gradient[*b].abs())).unwrap();
            assert!(gradient[largest].abs() > 1e-7, "parameter {parameter} has no gradient");
            for element in [largest, 0, gradient.len() / 2] {
                let at = |by| loss(&objective, &nudged(&draft, (parameter, element, by)), &spoken, &base.rows);
                let difference = (at(1e-5) - at(-1e-5)) / 2e-5;
                let off = (difference - gradient[element]).abs();
                assert!(
                    off < 1e-6 * (1.0 + difference.abs()),
                    "parameter {parameter}, element {element}: {difference} by differences, {} by hand",
                    gradient[element]
                );
            }
        }
    }

    #[test]
    fn a_block_sees_the_context_before_its_anchor_and_itself_only() {
        let objective = fixture::objective(burn::tensor::DType::F64);
        let spoken = fixture::spoken(&objective.config);
        let draft = fixture::draft(&objective);
        let hidden = |spoken: &Spoken, anchors: &[usize]| {
            let output = objective.forward(&draft, spoken, (anchors, &objective.place));
            output.hidden.inner().try_into_vec_as::<f64>().unwrap()
        };
        let width = objective.config.block_size * objective.config.hidden;
        let (alone, both) = (hidden(&spoken, &[5]), hidden(&spoken, &[5, 8]));
        let same = |a: &[f64], b: &[f64]| a.iter().zip(b).all(|(a, b)| (a - b).abs() < 1e-12);
        assert!(same(&alone, &both[..width]), "another block is seen");
        let changed = |token: usize| {
            let mut other = spoken.clone();
            let taps = objective.config.taps.len() * objective.config.hidden;
            other.taps[token * taps..(token + 1) * taps].iter_mut().for_each(|x| *x += 1.0);
            hidden(&other, &[5, 8])
        };
        assert!(same(&changed(5)[..width], &both[..width]), "the stream of the anchor itself is seen");
        assert!(!same(&changed(4)[..width], &both[..width]), "the token before the anchor is not seen");
        assert!(!same(&changed(5)[width..], &both[width..]), "a later block does not see it");
        let mut other = spoken.clone();
        other.tokens[5] = TokenId(2);
        let rows = hidden(&other, &[5]);
        let last = width - objective.config.hidden;
        assert!(!same(&rows[last..], &alone[last..]), "the last row of a block does not see its anchor");
    }
}
