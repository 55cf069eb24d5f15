//! How many of its proposals a draft gets accepted, replayed over answers the target has given.
//!
//! A greedy answer is what verification would have kept, so walking over it, from one anchor to the next as a server does,
//! gives the accept length that greedy decoding would have, without decoding.

use burn::tensor::{Int, Tensor, TensorData};

use crate::TrainError;
use crate::draft::Draft;
use crate::loss::{RowTarget, row_loss, softmax};
use crate::objective::{Objective, Spoken, device};

/// What became of proposals. Vectors are by position in the block.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Acceptance {
    /// Blocks drafted.
    pub blocks: usize,
    /// Blocks that had a token to predict at this position.
    pub offered: Vec<usize>,
    /// Blocks whose proposals were accepted up to this position, the draft reading its own proposals.
    pub accepted: Vec<usize>,
    /// Proposals that were the target's token, the draft reading the target's tokens.
    pub forced: Vec<usize>,
    /// Sum of 1 − ½‖p − q‖₁ at this position: the chance at temperature 1.
    pub chance: Vec<f64>,
    /// Sum of the distance between confidence and chance.
    pub confidence_off: f64,
}

impl Acceptance {
    /// For blocks of this size.
    pub fn new(block_size: usize) -> Self {
        Acceptance {
            offered: vec![0; block_size],
            accepted: vec![0; block_size],
            forced: vec![0; block_size],
            chance: vec![0.0; block_size],
            ..Default::default()
        }
    }

    /// Adds what another one counted.
    pub fn add(&mut self, other: &Acceptance) {
        let counts = |into: &mut [usize], from: &[usize]| into.iter_mut().zip(from).for_each(|(a, b)| *a += b);
        self.blocks += other.blocks;
        counts(&mut self.offered, &other.offered);
        counts(&mut self.accepted, &other.accepted);
        counts(&mut self.forced, &other.forced);
        self.chance.iter_mut().zip(&other.chance).for_each(|(a, b)| *a += b);
        self.confidence_off += other.confidence_off;
    }

    /// Mean number of tokens per verification, the target's own one included.
    pub fn accept_length(&self) -> f64 {
        1.0 + self.accepted.iter().sum::<usize>() as f64 / self.blocks.max(1) as f64
    }

    /// Share of the blocks that were accepted up to each position, of those that went so far.
    pub fn survival(&self) -> Vec<f64> {
        ratios(&self.accepted, &self.offered)
    }

    /// Share of proposals at each position that were right after the target's own tokens.
    pub fn forced(&self) -> Vec<f64> {
        ratios(&self.forced, &self.offered)
    }

    /// Mean chance at each position to be accepted at temperature 1, after the target's own tokens.
    pub fn chance(&self) -> Vec<f64> {
        self.chance.iter().zip(&self.offered).map(|(sum, count)| sum / (*count).max(1) as f64).collect()
    }

    /// Mean distance between the confidence and the chance.
    pub fn confidence_error(&self) -> f64 {
        self.confidence_off / self.offered.iter().sum::<usize>().max(1) as f64
    }
}

fn ratios(part: &[usize], whole: &[usize]) -> Vec<f64> {
    part.iter().zip(whole).map(|(part, whole)| *part as f64 / (*whole).max(1) as f64).collect()
}

/// The blocks of a sequence, before anything is known of the tokens in them.
struct Drafted {
    hidden: Tensor<2>,
    confidence: Vec<f64>,
    markov_w1: Tensor<2>,
    markov_w2: Tensor<2>,
}

impl Objective {
    /// Walks over an answer as a server would and adds what it sees.
    ///
    /// # Errors
    /// `Device`.
    pub fn replay(&self, draft: &Draft, spoken: &Spoken, acceptance: &mut Acceptance) -> Result<(), TrainError> {
        let anchors: Vec<usize> = self.anchors(spoken).collect();
        let Some(first) = anchors.first().copied() else { return Ok(()) };
        let output = self.forward(draft, spoken, (&anchors, &self.place));
        let drafted = Drafted {
            hidden: output.hidden.without_autodiff(),
            confidence: output.confidence.without_autodiff().try_into_vec_as::<f64>().map_err(device)?,
            markov_w1: draft.markov_w1.val().without_autodiff(),
            markov_w2: draft.markov_w2.val().without_autodiff(),
        };
        let mut anchor = first;
        while anchor + 1 < spoken.tokens.len() {
            let block = (anchor - first) * self.config.block_size;
            let accepted = self.block(&drafted, (spoken, anchor, block), acceptance)?;
            anchor += accepted + 1;
        }
        Ok(())
    }

    /// One block, its rows from `block` on; how many of its proposals are accepted.
    fn block(
        &self,
        drafted: &Drafted,
        (spoken, anchor, block): (&Spoken, usize, usize),
        acceptance: &mut Acceptance,
    ) -> Result<usize, TrainError> {
        let (size, vocabulary) = (self.config.block_size, self.config.vocabulary);
        let truth = &spoken.tokens[anchor..(anchor + size + 1).min(spoken.tokens.len())];
        let offered = truth.len() - 1;
        let hidden = drafted.hidden.clone().narrow(0, block, size);
        let base = hidden.matmul(self.head.clone().transpose());
        let base = base.try_into_vec_as::<f32>().map_err(device)?;
        let own: Vec<i64> = truth[..offered].iter().map(|id| i64::from(id.0)).collect();
        let forced = self.corrections(drafted, own)?;
        acceptance.blocks += 1;
        let mut accepted = 0;
        for j in 0..offered {
            let base = &base[j * vocabulary..(j + 1) * vocabulary];
            let correction = &forced[j * vocabulary..(j + 1) * vocabulary];
            let mut logits: Vec<f32> = base.iter().zip(correction).map(|(a, b)| a + b).collect();
            let at = anchor + j + 1 - spoken.answer;
            let mut probabilities = spoken.logits[at * vocabulary..(at + 1) * vocabulary].to_vec();
            softmax(&mut probabilities);
            let confidence = drafted.confidence[block + j];
            let label = truth[j + 1].index();
            let target = RowTarget { probabilities: &probabilities, label, confidence, share: 1.0 };
            let row = row_loss(self.weights, target, &mut logits);
            acceptance.offered[j] += 1;
            acceptance.forced[j] += usize::from(row.hit);
            acceptance.chance[j] += row.acceptance;
            acceptance.confidence_off += ((1.0 + (-confidence).exp()).recip() - row.acceptance).abs();
            // As long as all were right, the draft's own proposals are the target's tokens.
            if accepted == j && row.hit {
                accepted += 1;
                acceptance.accepted[j] += 1;
            }
        }
        Ok(accepted)
    }

    /// What the Markov head adds after each of these tokens, `[tokens, V]`.
    fn corrections(&self, drafted: &Drafted, tokens: Vec<i64>) -> Result<Vec<f32>, TrainError> {
        let count = tokens.len();
        let tokens = Tensor::<1, Int>::from_data(TensorData::new(tokens, [count]), &self.place.device);
        let rows = drafted.markov_w1.clone().select(0, tokens);
        rows.matmul(drafted.markov_w2.clone().transpose()).try_into_vec_as::<f32>().map_err(device)
    }
}

#[cfg(test)]
mod tests {
    use perilune_tensor::TokenId;

    use super::*;
    use crate::fixture;

    #[test]
    fn a_walk_covers_the_answer_once() {
        let objective = fixture::objective(burn::tensor::DType::F32);
        let spoken = fixture::spoken(&objective.config);
        let mut seen = Acceptance::new(3);
        objective.replay(&fixture::draft(&objective), &spoken, &mut seen).unwrap();
        // Every block commits what was accepted and one more; together they are the answer without its first token.
        let kept = seen.blocks + seen.accepted.iter().sum::<usize>();
        let last = spoken.tokens.len() - 1 - spoken.answer;
        assert!(kept == last || kept == last + 1, "{seen:?}");
        assert!(seen.survival().is_sorted_by(|a, b| a >= b), "{seen:?}");
        assert!(seen.accept_length() >= 1.0 && seen.offered[0] == seen.blocks);
    }

    #[test]
    fn a_draft_of_the_target_itself_is_accepted_whole() {
        // Tokens that the draft proposes greedily are put into the sequence one by one: then it is always right.
        let objective = fixture::objective(burn::tensor::DType::F32);
        let draft = fixture::draft(&objective);
        let mut spoken = fixture::spoken(&objective.config);
        let (anchor, size) = (spoken.answer, objective.config.block_size);
        for j in 0..size {
            let best = (0..17).find(|id| {
                spoken.tokens[anchor + 1 + j] = TokenId(*id);
                let mut seen = Acceptance::new(size);
                let mut head = spoken.clone();
                head.tokens.truncate(anchor + 2 + j);
                objective.replay(&draft, &head, &mut seen).unwrap();
                seen.accepted[j] == 1
            });
            if best.is_none() {
                // The draft's choice is one of the two tokens that were not tried.
                return;
            }
        }
        let mut seen = Acceptance::new(size);
        objective.replay(&draft, &spoken, &mut seen).unwrap();
        assert_eq!(seen.accepted[size - 1].max(1), 1);
        assert!(seen.accept_length() > 2.0, "{seen:?}");
    }
}
