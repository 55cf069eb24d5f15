//! An engine without a model: the same tokens for every request, whatever it asks.

use perilune_backend::{BackendError, Choice, SampleRow, SampledRow, TopLogprob};
use perilune_engine::{StepInput, StepOutput, StepRun, StepRunner};
use perilune_tensor::TokenId;

use crate::server::tokenizer;

/// What the engine produces.
#[derive(Debug, Clone, Default)]
pub struct Script {
    /// Output tokens in order; after the last one the end of the message, for ever. `None`: logits that are not finite.
    pub tokens: Vec<Option<TokenId>>,
    /// The step of this output token fails.
    pub fault_at: Option<u64>,
    /// How many tokens a step brings, as far as drafts are allowed: by the number of its first output token, over and over;
    /// one where empty.
    pub step_sizes: Vec<usize>,
}

impl Script {
    /// A script in K3's markup: `<|open|>` and its like are control tokens, everything else is text.
    pub fn markup(text: &str) -> Self {
        Script { tokens: tokenizer().encode_markup(text).into_iter().map(Some).collect(), ..Script::default() }
    }

    /// These tokens.
    pub fn ids(ids: impl IntoIterator<Item = u32>) -> Self {
        Script { tokens: ids.into_iter().map(|id| Some(TokenId(id))).collect(), ..Script::default() }
    }

    /// How many of the drafts allowed a step makes; all of them are right.
    fn drafted(&self, rows: &[SampleRow], allowed: usize) -> usize {
        let first = rows.iter().find_map(|row| match row.choice {
            Choice::Draw { step, .. } => Some(step as usize),
            Choice::Given(_) => None,
        });
        match first {
            Some(first) if !self.step_sizes.is_empty() => {
                allowed.min(self.step_sizes[first % self.step_sizes.len()].saturating_sub(1))
            }
            _ => 0,
        }
    }

    fn row(&self, row: &SampleRow) -> Result<SampledRow, BackendError> {
        let end = tokenizer().special_id("<|end_of_msg|>");
        let chosen = match row.choice {
            Choice::Given(id) => Some(id),
            Choice::Draw { step, .. } if self.fault_at == Some(step) => {
                return Err(BackendError::Device("the script says so".to_owned()));
            }
            Choice::Draw { step, .. } => self.tokens.get(step as usize).copied().unwrap_or(end),
        };
        let Some(id) = chosen else { return Ok(SampledRow::NonFinite) };
        // Of the alternatives all but the first are impossible: what a mask by a grammar leaves.
        let others = (0..row.top_logprobs.unwrap_or(0) as u32)
            .map(|i| TopLogprob { id: TokenId(i), logprob: if i == 0 { -0.5 } else { f32::NEG_INFINITY } });
        Ok(SampledRow::Token { chosen: TopLogprob { id, logprob: f32::NEG_INFINITY }, top: others.collect() })
    }
}

impl StepRunner for Script {
    fn vocab_size(&self) -> usize {
        tokenizer().vocab_size()
    }

    fn run(&mut self, input: &StepInput<'_>) -> Result<StepOutput, BackendError> {
        let run = |rows: &[SampleRow]| rows.iter().map(|row| self.row(row)).collect::<Result<Vec<_>, _>>();
        let drafted: Vec<usize> = input.runs.iter().map(|r| self.drafted(&r.rows, r.drafts)).collect();
        let rows = |(r, drafted): (&StepRun<'_>, &usize)| run(&r.rows[..r.rows.len() - r.drafts + drafted]);
        let runs = input.runs.iter().zip(&drafted).map(rows).collect::<Result<_, _>>()?;
        Ok(StepOutput { runs, drafted, ..StepOutput::default() })
    }
}
