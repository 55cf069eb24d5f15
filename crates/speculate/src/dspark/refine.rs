//! Heads over the picked rows, then draft by draft: the Markov head's bias of the token before, the choice, and an
//! estimate of its acceptance (`kimi-k3.md` 6.1, steps 6 to 8).

use perilune_backend::{
    Backend, BackendError, Choice, DeviceTensor, Embed, Linear, LinearPart, RandomStream, RmsNorm, RowDistribution,
    Sample, SampleRow, SampledRow, SelectRows, Weight, Write, uniform_of,
};
use perilune_tensor::TokenId;

use super::model::{Confidence, Joint, Kind, Markov, Model};
use super::space::{HeadSpace, MarkovSpace, StepSpace};
use crate::accept::pick;
use crate::{DraftRequest, Proposal};

/// A sequence and its drafts so far.
pub(super) struct Drafting<'a> {
    /// Its place among the requests.
    pub(super) index: usize,
    request: &'a DraftRequest<'a>,
    /// Drafts wanted.
    pub(super) wanted: usize,
    proposal: Proposal,
    /// No more are made: a row was corrupt.
    ended: bool,
}

impl<'a> Drafting<'a> {
    pub(super) fn new((index, request): (usize, &'a DraftRequest<'a>), wanted: usize) -> Self {
        Drafting { index, request, wanted, proposal: Proposal::default(), ended: false }
    }

    pub(super) fn request(&self) -> &'a DraftRequest<'a> {
        self.request
    }

    pub(super) fn into_proposal(mut self) -> Proposal {
        // An estimate is made before the row is found to be corrupt.
        self.proposal.confidence.truncate(self.proposal.tokens.len());
        self.proposal
    }

    /// The token before the next draft.
    fn before(&self) -> TokenId {
        let anchor = self.request.history.last().copied().unwrap_or(TokenId(0));
        self.proposal.tokens.last().copied().unwrap_or(anchor)
    }

    /// What the target will ask of the next token if all drafts so far are kept, for row `row` of the logits.
    fn asked(&self, row: usize) -> SampleRow {
        let mut asked = self.request.rows[self.proposal.tokens.len()].clone();
        asked.row = row;
        asked.top_logprobs = None;
        if let Choice::Given(_) = asked.choice {
            asked.choice = Choice::Draw { temperature: 0.0, top_k: 0, top_p: 1.0, min_p: 0.0, seed: 0, step: 0 };
        }
        let p = asked.penalties;
        if p.repetition != 1.0 || p.presence != 0.0 || p.frequency != 0.0 {
            asked.count_drafts(&self.proposal.tokens);
        }
        asked
    }

    /// The next draft from its distribution. Its random number belongs to this proposal alone: whether drafts of an
    /// earlier one for the same place were kept says something about theirs.
    fn draw(&self, law: &[f32]) -> Option<TokenId> {
        let Choice::Draw { seed, step, .. } = self.request.rows.first()?.choice else { return None };
        let draft = self.proposal.tokens.len() as u64;
        let weights: Vec<f64> = law.iter().map(|p| f64::from(*p)).collect();
        let id = pick(&weights, uniform_of(RandomStream::Proposal, seed, step, draft))?;
        u32::try_from(id).ok().map(TokenId)
    }

    fn take(&mut self, token: Option<TokenId>, probabilities: Option<Vec<f32>>) {
        let Some(token) = token else {
            self.ended = true;
            return;
        };
        self.proposal.tokens.push(token);
        if let Some(probabilities) = probabilities {
            self.proposal.probabilities.get_or_insert_default().push(probabilities);
        }
    }
}

/// Whether a row is drawn, rather than the most likely token.
fn is_drawn(asked: &SampleRow) -> bool {
    matches!(asked.choice, Choice::Draw { temperature, .. } if temperature > 0.0)
}

/// The rows of a pass that predict.
pub(super) struct Picked<'a, T> {
    /// Their places in `hidden`, first drafts first.
    pub(super) places: &'a [u32],
    pub(super) hidden: &'a T,
    /// The target's head.
    pub(super) head: &'a Weight<T>,
    pub(super) eps: f32,
}

impl<T: DeviceTensor> Model<T> {
    /// Base logits and what else the hidden rows alone decide.
    pub(super) fn heads<B: Backend<Tensor = T>>(
        &self,
        backend: &B,
        picked: &Picked<'_, T>,
        space: &mut HeadSpace<T>,
    ) -> Result<(), BackendError> {
        let (rows, eps) = (picked.places.len(), picked.eps);
        backend.write_u32(&mut space.pick, picked.places)?;
        let out = &mut space.picked;
        backend.select_rows(SelectRows { rows, x: picked.hidden, index: &space.pick, out })?;
        let x = &space.picked;
        backend.rms_norm(RmsNorm { rows, x, weight: &self.norm, eps, out: &mut space.normed })?;
        let mut parts = Vec::with_capacity(3);
        let joint = self.markov.as_ref().and_then(Markov::joint);
        if let (Some(joint), Some(out)) = (joint, &mut space.joint) {
            parts.push(LinearPart::replace(&joint.hidden, out));
        }
        if let (Some(head), Some(out)) = (&self.confidence, &mut space.confidence) {
            parts.push(LinearPart::replace(&head.hidden, out));
        }
        match (&self.scaled_norm, &mut space.scaled) {
            (Some(weight), Some(out)) => {
                backend.rms_norm(RmsNorm { rows, x, weight, eps, out: &mut *out })?;
                let part = LinearPart::replace(picked.head, &mut space.logits);
                backend.linear(Linear { rows, x: out, parts: &mut [part] })?;
            }
            _ => parts.push(LinearPart::replace(picked.head, &mut space.logits)),
        }
        if parts.is_empty() { Ok(()) } else { backend.linear(Linear { rows, x: &space.normed, parts: &mut parts }) }
    }

    /// Makes the drafts of all sequences, of which those that want more come first.
    pub(super) fn refine<B: Backend<Tensor = T>>(
        &self,
        backend: &B,
        sequences: &mut [Drafting<'_>],
        space: &mut HeadSpace<T>,
    ) -> Result<(), BackendError> {
        let hidden_scores = match &space.confidence {
            None => Vec::new(),
            Some(scores) => read(backend, scores, 0..sequences.iter().map(|s| s.wanted).sum())?,
        };
        if let Some(state) = space.step.markov.as_mut().and_then(|markov| markov.state.as_mut()) {
            let rows = state.spec().shape.rows();
            backend.zero(state, 0..rows)?;
        }
        let mut first = 0;
        for draft in 0..sequences.first().map_or(0, |s| s.wanted) {
            let count = sequences.iter().take_while(|s| s.wanted > draft).count();
            let active = &mut sequences[..count];
            if active.iter().all(|s| s.ended) {
                return Ok(());
            }
            let scores = self.step((backend, first), active, space)?;
            if let Some(head) = &self.confidence {
                let hidden = &hidden_scores[first..first + count];
                for ((sequence, hidden), embedding) in active.iter_mut().zip(hidden).zip(scores) {
                    if !sequence.ended {
                        sequence.proposal.confidence.push(sigmoid(hidden + embedding + head.bias));
                    }
                }
            }
            choose(backend, active, &space.step.logits)?;
            first += count;
        }
        Ok(())
    }

    /// Leaves the logits of the next draft of each sequence in `space.step.logits`; `first` is the place of the first of
    /// them among all. Returns what the tokens before add to the confidence.
    fn step<B: Backend<Tensor = T>>(
        &self,
        (backend, first): (&B, usize),
        active: &[Drafting<'_>],
        space: &mut HeadSpace<T>,
    ) -> Result<Vec<f32>, BackendError> {
        let rows = active.len();
        let place = |i: usize| u32::try_from(first + i).unwrap_or(u32::MAX);
        let StepSpace { pick, before, logits, markov, confidence } = &mut space.step;
        backend.write_u32(pick, &(0..rows).map(place).collect::<Vec<_>>())?;
        backend.select_rows(SelectRows { rows, x: &space.logits, index: pick, out: logits })?;
        let (Some(head), Some(markov)) = (&self.markov, markov) else { return Ok(vec![0.0; rows]) };
        backend.write_u32(before, &active.iter().map(|s| s.before().0).collect::<Vec<_>>())?;
        backend.embed(Embed { rows, table: &head.w1, ids: before, out: &mut markov.embedding })?;
        if let (Some(all), Some(joint)) = (&space.joint, &mut markov.joint) {
            backend.select_rows(SelectRows { rows, x: all, index: pick, out: joint })?;
        }
        let x = head.input((backend, rows), markov)?;
        let bias = LinearPart { weight: &head.w2, out: &mut *logits, write: Write::Add };
        backend.linear(Linear { rows, x, parts: &mut [bias] })?;
        let Some(Confidence { embedding: Some(weight), .. }) = &self.confidence else { return Ok(vec![0.0; rows]) };
        let part = LinearPart::replace(weight, &mut *confidence);
        backend.linear(Linear { rows, x: &markov.embedding, parts: &mut [part] })?;
        read(backend, confidence, 0..rows)
    }
}

impl<T: DeviceTensor> Markov<T> {
    /// What the bias is a product of, from the embeddings of the tokens before and, in `space.joint`, the hidden part of
    /// the projection.
    fn input<'a, B: Backend<Tensor = T>>(
        &self,
        (backend, rows): (&B, usize),
        space: &'a mut MarkovSpace<T>,
    ) -> Result<&'a T, BackendError> {
        let MarkovSpace { embedding, input, joint: Some(joint), state: Some(state) } = space else {
            return Ok(&space.embedding);
        };
        let Some(Joint { embedding: weight, bias, .. }) = self.joint() else { return Ok(embedding) };
        let rank = self.rank;
        let part = LinearPart { weight, out: &mut *joint, write: Write::Add };
        backend.linear(Linear { rows, x: embedding, parts: &mut [part] })?;
        let values = match &self.kind {
            Kind::Vanilla => return Ok(embedding),
            Kind::Gated(_) => {
                let (gates, mut values) =
                    (read(backend, joint, 0..rows * rank)?, read(backend, embedding, 0..rows * rank)?);
                for (i, value) in values.iter_mut().enumerate() {
                    *value *= sigmoid(gates[i] + bias[i % rank]);
                }
                values
            }
            Kind::Rnn { state: weight, .. } => {
                let part = LinearPart { weight, out: &mut *joint, write: Write::Add };
                backend.linear(Linear { rows, x: state, parts: &mut [part] })?;
                let cells = read(backend, joint, 0..rows * 3 * rank)?;
                let mut states = read(backend, state, 0..rows * rank)?;
                let mut values = Vec::with_capacity(rows * rank);
                for (i, state) in states.iter_mut().enumerate() {
                    let cell = |part: usize| {
                        cells[i / rank * 3 * rank + part * rank + i % rank] + bias[part * rank + i % rank]
                    };
                    let gate = sigmoid(cell(0));
                    *state = gate * *state + (1.0 - gate) * cell(1).tanh();
                    values.push(cell(2).tanh());
                }
                backend.write_range(state, 0, bytemuck::cast_slice(&states))?;
                values
            }
        };
        backend.write_range(input, 0, bytemuck::cast_slice(&values))?;
        Ok(input)
    }
}

/// Chooses a draft from each row: the most likely token, or one drawn from what the target would draw from if these were
/// its logits.
fn choose<B: Backend>(backend: &B, active: &mut [Drafting<'_>], logits: &B::Tensor) -> Result<(), BackendError> {
    let open = active.iter().enumerate().filter(|(_, sequence)| !sequence.ended);
    let (drawn, certain): (Vec<SampleRow>, Vec<SampleRow>) =
        open.map(|(row, sequence)| sequence.asked(row)).partition(is_drawn);
    if !certain.is_empty() {
        let sampled = backend.sample(Sample { logits, rows: &certain })?.wait()?;
        for (row, sampled) in certain.iter().zip(sampled) {
            let token = match sampled {
                SampledRow::Token { chosen, .. } => Some(chosen.id),
                SampledRow::NonFinite => None,
            };
            active[row.row].take(token, None);
        }
    }
    if !drawn.is_empty() {
        let laws = backend.distributions(Sample { logits, rows: &drawn })?.wait()?;
        for (row, law) in drawn.iter().zip(laws) {
            let sequence = &mut active[row.row];
            match law {
                RowDistribution::Probabilities(law) => {
                    let token = sequence.draw(&law);
                    sequence.take(token, Some(law));
                }
                RowDistribution::NonFinite => sequence.take(None, None),
            }
        }
    }
    Ok(())
}

fn read<B: Backend>(
    backend: &B,
    tensor: &B::Tensor,
    elements: std::ops::Range<usize>,
) -> Result<Vec<f32>, BackendError> {
    let bytes = backend.read_range(tensor, elements)?.wait()?;
    Ok(bytes.chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect())
}

fn sigmoid(x: f32) -> f32 {
    1.0 / (1.0 + (-x).exp())
}
