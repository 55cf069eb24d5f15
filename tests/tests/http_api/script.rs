//! An engine without a model: the same tokens for every request, whatever it asks.

use perilune_backend::{BackendError, Choice, SampleRow, SampledRow, TopLogprob};
use perilune_engine::{StepInput, StepOutput, StepRunner};
use perilune_tensor::TokenId;

use crate::server::tokenizer;

/// What the engine produces.
#[derive(Debug, Clone, Default)]
pub struct Script {
    /// Output tokens in order; after the last one the end of the message, for ever. `None`: logits that are not finite.
    pub tokens: Vec<Option<TokenId>>,
    /// The step of this output token fails.
    pub fault_at: Option<u64>,
}

impl Script {
    /// A script in K3's markup: `<|open|>` and its like are control tokens, everything else is text.
    pub fn markup(text: &str) -> Self {
        Script { tokens: tokenizer().encode_markup(text).into_iter().map(Some).collect(), fault_at: None }
    }

    /// These tokens.
    pub fn ids(ids: impl IntoIterator<Item = u32>) -> Self {
        Script { tokens: ids.into_iter().map(|id| Some(TokenId(id))).collect(), fault_at: None }
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
        Ok(StepOutput {
            runs: input.runs.iter().map(|r| run(&r.rows)).collect::<Result<_, _>>()?,
            ..StepOutput::default()
        })
    }
}
