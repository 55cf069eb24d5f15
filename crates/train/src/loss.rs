//! The loss of a row and its gradient by the row's logits, by hand.
//!
//! With p the draft's distribution, q the target's, y the token that came, a = 1 − ½‖p − q‖₁ (the chance that a proposal is
//! accepted) and w = e^{−pos/decay}:
//!
//! loss = Σ w · [ce · −ln p_y + l1 · ‖p − q‖₁ + confidence · BCE(c, a)] / Σ w
//!
//! `a` is what the confidence head learns, not what it moves: no gradient goes through it. A vocabulary's worth of logits is
//! the widest thing there is in a training; doing this in two passes over a row, instead of as a dozen tensors, is what makes
//! training on a CPU bearable.

use num_traits::Float;

/// Weights of the parts.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LossWeights {
    /// Of the cross-entropy.
    pub ce: f64,
    /// Of the distance between the distributions.
    pub l1: f64,
    /// Of the confidence head.
    pub confidence: f64,
    /// Positions of a block after which a row counts 1/e.
    pub decay: f64,
}

impl Default for LossWeights {
    fn default() -> Self {
        LossWeights { ce: 0.1, l1: 0.9, confidence: 1.0, decay: 4.0 }
    }
}

impl LossWeights {
    /// How much the row counts that stands so far behind its anchor.
    pub fn of_position(&self, position: usize) -> f64 {
        (-(position as f64) / self.decay).exp()
    }
}

/// What a row is held against.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RowTarget<'a, F> {
    /// The target's distribution.
    pub(crate) probabilities: &'a [F],
    /// The token that came.
    pub(crate) label: usize,
    /// Logit of the confidence head.
    pub(crate) confidence: f64,
    /// `w / Σ w`.
    pub(crate) share: f64,
}

/// What became of a row.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct RowLoss {
    /// −ln p_y.
    pub(crate) ce: f64,
    /// Whether no token is likelier than y.
    pub(crate) hit: bool,
    /// 1 − ½‖p − q‖₁.
    pub(crate) acceptance: f64,
    /// Cross-entropy of the confidence with the acceptance.
    pub(crate) bce: f64,
    /// Its part of the loss.
    pub(crate) loss: f64,
    /// Gradient of the loss by the confidence's logit.
    pub(crate) confidence_gradient: f64,
}

/// Makes a distribution of logits, in place; returns the largest probability.
pub(crate) fn softmax<F: Float + std::iter::Sum>(logits: &mut [F]) -> F {
    let top = logits.iter().copied().fold(F::neg_infinity(), F::max);
    for x in logits.iter_mut() {
        *x = (*x - top).exp();
    }
    let scale = logits.iter().copied().sum::<F>().recip();
    for x in logits.iter_mut() {
        *x = *x * scale;
    }
    // That of the largest logit, whose exponential was 1.
    scale
}

/// The loss of a row; `logits` become the gradient by them.
pub(crate) fn row_loss<F: Float + std::iter::Sum>(
    weights: LossWeights,
    target: RowTarget<'_, F>,
    logits: &mut [F],
) -> RowLoss {
    let top = softmax(logits);
    let number = |x: F| x.to_f64().unwrap_or(f64::NAN);
    let (q, label) = (target.probabilities, target.label);
    let (mut distance, mut pull) = (F::zero(), F::zero());
    for (p, q) in logits.iter().zip(q) {
        let gap = *p - *q;
        distance = distance + gap.abs();
        pull = pull + sign(gap) * *p;
    }
    let hit = logits[label] >= top;
    let ce = -number(logits[label].max(F::min_positive_value())).ln();
    let part = |weight: f64| F::from(weight * target.share).unwrap_or_else(F::zero);
    let (by_l1, by_ce) = (part(weights.l1), part(weights.ce));
    for (p, q) in logits.iter_mut().zip(q) {
        *p = *p * (by_l1 * (sign(*p - *q) - pull) + by_ce);
    }
    logits[label] = logits[label] - by_ce;
    let acceptance = 1.0 - 0.5 * number(distance);
    let c = target.confidence;
    // ln(1 + e^c) − a c, without overflow.
    let bce = c.max(0.0) - acceptance * c + (-c.abs()).exp().ln_1p();
    let certain = (1.0 + (-c).exp()).recip();
    RowLoss {
        ce,
        hit,
        acceptance,
        bce,
        loss: target.share * (weights.ce * ce + weights.l1 * number(distance) + weights.confidence * bce),
        confidence_gradient: target.share * weights.confidence * (certain - acceptance),
    }
}

/// −1, 0 or 1; at 0 any of them is a subgradient.
fn sign<F: Float>(x: F) -> F {
    if x > F::zero() {
        F::one()
    } else if x < F::zero() {
        -F::one()
    } else {
        F::zero()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn target(probabilities: &[f64]) -> RowTarget<'_, f64> {
        RowTarget { probabilities, label: 2, confidence: 0.3, share: 0.7 }
    }

    #[test]
    fn a_draft_that_agrees_is_always_accepted() {
        let logits = [0.5, -1.0, 2.0, 0.0];
        let mut q = logits;
        softmax(&mut q);
        let row = row_loss(LossWeights::default(), target(&q), &mut logits.clone());
        assert!((row.acceptance - 1.0).abs() < 1e-12);
        assert!(row.hit);
        assert!((row.ce + q[2].ln()).abs() < 1e-12);
        assert!((row.bce - (1.0 + (-0.3f64).exp()).ln()).abs() < 1e-12);
        assert!((row.loss - 0.7 * (0.1 * row.ce + row.bce)).abs() < 1e-12);
    }

    #[test]
    fn the_gradient_is_that_of_differences() {
        let (logits, q) = ([0.5, -1.0, 2.0, 0.1], [0.1, 0.2, 0.3, 0.4]);
        // Without the confidence: its aim would move with the logits.
        let weights = LossWeights { confidence: 0.0, ..LossWeights::default() };
        let value = |logits: [f64; 4]| row_loss(weights, target(&q), &mut logits.clone()).loss;
        let mut gradient = logits;
        row_loss(weights, target(&q), &mut gradient);
        for i in 0..4 {
            let moved = |by: f64| {
                let mut logits = logits;
                logits[i] += by;
                value(logits)
            };
            let difference = (moved(1e-6) - moved(-1e-6)) / 2e-6;
            assert!((difference - gradient[i]).abs() < 1e-9, "{i}: {difference} {}", gradient[i]);
        }
    }

    #[test]
    fn certain_and_hopeless_confidences_stay_finite() {
        for confidence in [-800.0, 800.0] {
            let target = RowTarget { confidence, ..target(&[0.25; 4]) };
            let row = row_loss(LossWeights::default(), target, &mut [900.0, -900.0, 0.0, 0.0]);
            assert!(row.loss.is_finite() && row.confidence_gradient.is_finite(), "{row:?}");
        }
    }
}
