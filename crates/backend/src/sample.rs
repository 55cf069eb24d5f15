//! From logits to tokens and log-probabilities, one row per sampled position.
//!
//! The order of a row: non-finite guard → log-probabilities of the raw logits → bias, penalties, bans, mask → temperature →
//! top-k → top-p → min-p → draw. Temperature 0 takes the largest adjusted logit, the lowest id among equals.
//! A draw depends only on the row's logits, its parameters, its seed and its step: never on the batch.

use perilune_tensor::{DType, TokenId, TokenMask};

use crate::check::Checker;
use crate::{BackendError, DeviceTensor};

/// How often a token occurs, for penalties.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TokenCount {
    /// The token.
    pub id: TokenId,
    /// Occurrences in the prompt.
    pub in_prompt: u32,
    /// Occurrences in the output so far.
    pub in_output: u32,
}

/// Penalties on repeated tokens.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Penalties {
    /// `logit / r` if positive, else `logit · r`, for tokens of prompt or output; 1 is off.
    pub repetition: f32,
    /// Subtracted once from tokens of the output; 0 is off.
    pub presence: f32,
    /// Subtracted per occurrence in the output; 0 is off.
    pub frequency: f32,
}

/// Where a row's token comes from.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Choice {
    /// Drawn.
    Draw {
        /// 0 is greedy.
        temperature: f32,
        /// Keep the `top_k` largest; 0 is off.
        top_k: u32,
        /// Keep the smallest set of mass `top_p`; 1 is off.
        top_p: f32,
        /// Keep tokens of at least `min_p` times the largest probability; 0 is off.
        min_p: f32,
        /// Seed of the sequence.
        seed: u64,
        /// Index of the output token: with the seed it fixes the random number.
        step: u64,
    },
    /// Given (prompt log-probabilities): only scored.
    Given(TokenId),
}

/// What one row asks for. Rows of an operation are independent.
#[derive(Debug, Clone)]
pub struct SampleRow {
    /// Row of the logits.
    pub row: usize,
    /// Draw or score.
    pub choice: Choice,
    /// Added to logits before anything else; ids below `V`.
    pub bias: Vec<(TokenId, f32)>,
    /// Tokens that must not come now.
    pub banned: Vec<TokenId>,
    /// The only tokens that may come now; `None` for all. Log-probabilities are those of the raw logits all the same.
    pub allowed: Option<TokenMask>,
    /// Penalties.
    pub penalties: Penalties,
    /// Occurrences, needed only where a penalty is on.
    pub counts: Vec<TokenCount>,
    /// How many of the most likely tokens to report; `None` for no log-probabilities at all.
    pub top_logprobs: Option<usize>,
}

impl SampleRow {
    /// Whether [`SampleRow::adjust`] changes anything.
    pub fn adjusts(&self) -> bool {
        !(self.bias.is_empty() && self.banned.is_empty() && self.counts.is_empty() && self.allowed.is_none())
    }

    /// Bias, penalties, bans and mask on the host, in this order.
    pub fn adjust(&self, logits: &mut [f32]) {
        for (id, bias) in &self.bias {
            logits[id.index()] += bias;
        }
        let Penalties { repetition, presence, frequency } = self.penalties;
        for count in &self.counts {
            let logit = &mut logits[count.id.index()];
            if count.in_prompt > 0 || count.in_output > 0 {
                *logit = if *logit > 0.0 { *logit / repetition } else { *logit * repetition };
            }
            if count.in_output > 0 {
                *logit -= presence + frequency * count.in_output as f32;
            }
        }
        for id in &self.banned {
            logits[id.index()] = f32::NEG_INFINITY;
        }
        if let Some(mask) = &self.allowed {
            mask.apply(logits);
        }
    }

    /// Counts tokens as parts of the output: drafts that this row takes as given.
    pub fn count_drafts(&mut self, drafts: &[TokenId]) {
        for draft in drafts {
            match self.counts.iter_mut().find(|count| count.id == *draft) {
                Some(count) => count.in_output += 1,
                None => self.counts.push(TokenCount { id: *draft, in_prompt: 0, in_output: 1 }),
            }
        }
    }
}

/// A token and its log-probability.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct TopLogprob {
    /// The token.
    pub id: TokenId,
    /// Natural logarithm of its probability under the raw logits.
    pub logprob: f32,
}

/// The outcome of one row.
#[derive(Debug, Clone, PartialEq)]
pub enum SampledRow {
    /// A token.
    Token {
        /// The token drawn or given, with its log-probability (0 where none were asked for).
        chosen: TopLogprob,
        /// The most likely tokens, falling; the lower id first among equals.
        top: Vec<TopLogprob>,
    },
    /// The row's logits were not finite: its sequence is corrupt and must end with an error.
    NonFinite,
}

/// What a row's token would be drawn from.
#[derive(Debug, Clone, PartialEq)]
pub enum RowDistribution {
    /// Probabilities `[V]` after every adjustment and filter; a greedy choice and a given token are certain.
    Probabilities(Vec<f32>),
    /// As [`SampledRow::NonFinite`].
    NonFinite,
}

/// Samples rows of a logits tensor.
#[derive(Debug)]
pub struct Sample<'a, T> {
    /// `F32 [R, V]`.
    pub logits: &'a T,
    /// The rows wanted.
    pub rows: &'a [SampleRow],
}

impl<T: DeviceTensor> Sample<'_, T> {
    /// Checks shapes and ids; returns `V`.
    ///
    /// # Errors
    /// `Mismatch`.
    pub fn dims(&self) -> Result<usize, BackendError> {
        let c = Checker { op: "sample" };
        let (r, v) = (self.logits.spec().shape.rows(), self.logits.spec().shape.width());
        c.rows("logits", self.logits, (DType::F32, r, v))?;
        for row in self.rows {
            if row.row >= r {
                return Err(c.fail("rows.row", row.row, format!("below {r}")));
            }
            let given = if let Choice::Given(id) = row.choice { Some(id) } else { None };
            let ids = row.bias.iter().map(|(id, _)| *id).chain(row.banned.iter().copied());
            let ids = ids.chain(row.counts.iter().map(|count| count.id)).chain(given);
            if let Some(bad) = ids.into_iter().find(|id| id.index() >= v) {
                return Err(c.fail("rows.ids", bad, format!("below {v}")));
            }
        }
        Ok(v)
    }
}
