//! A runner without a model: the next token is a hash of the history and the seed. It keeps that history in slots, so
//! that an engine that hands out a slot twice, or without clearing it, is caught. Some tokens make it fail.

use std::collections::HashSet;
use std::hash::{DefaultHasher, Hash, Hasher};

use perilune_backend::{BackendError, Choice, SampleRow, SampledRow, TopLogprob};
use perilune_engine::{StepInput, StepOutput, StepRun, StepRunner};
use perilune_tensor::TokenId;

/// Token ids are below this; drawn ones are below [`POISON`].
pub const VOCAB: usize = 64;
/// Makes every later row of its sequence not finite.
pub const POISON: TokenId = TokenId(61);
/// Makes the step panic.
pub const PANIC: TokenId = TokenId(62);
/// Makes the step fail.
pub const FAULT: TokenId = TokenId(63);

/// See the module.
#[derive(Debug, Default)]
pub struct HashRunner {
    histories: Vec<Option<Vec<TokenId>>>,
}

impl HashRunner {
    fn history(&mut self, run: &StepRun<'_>) -> &mut Vec<TokenId> {
        self.histories[run.slot.index as usize].as_mut().expect("a slot is cleared before it is used")
    }

    fn compute(&mut self, run: &StepRun<'_>) -> Result<Vec<SampledRow>, BackendError> {
        let history = self.history(run);
        assert_eq!(history.len(), run.position, "positions follow each other");
        let mut rows = run.rows.iter().peekable();
        let mut out = Vec::new();
        for (i, token) in run.tokens.iter().enumerate() {
            assert_ne!(*token, PANIC, "asked to panic");
            if *token == FAULT {
                return Err(BackendError::Device("asked to fail".into()));
            }
            history.push(*token);
            if let Some(row) = rows.next_if(|row| row.row == i) {
                out.push(sample(history, row));
            }
        }
        Ok(out)
    }
}

fn sample(history: &[TokenId], row: &SampleRow) -> SampledRow {
    if history.contains(&POISON) {
        return SampledRow::NonFinite;
    }
    let hash = |salt: u64| {
        let mut hasher = DefaultHasher::new();
        (history, salt).hash(&mut hasher);
        hasher.finish()
    };
    let id = match row.choice {
        Choice::Given(id) => id,
        Choice::Draw { seed, .. } => {
            let drawn = (0..).map(|n| TokenId((hash(seed.wrapping_add(n)) % u64::from(POISON.0)) as u32));
            drawn.into_iter().find(|id| !row.banned.contains(id)).unwrap()
        }
    };
    let logprob = -((hash(u64::from(id.0)) % 1000) as f32) / 100.0;
    SampledRow::Token { chosen: TopLogprob { id, logprob }, top: Vec::new() }
}

impl StepRunner for HashRunner {
    fn vocab_size(&self) -> usize {
        VOCAB
    }

    fn run(&mut self, input: &StepInput<'_>) -> Result<StepOutput, BackendError> {
        let slots = input.runs.iter().map(|run| run.slot.index).chain(input.fresh_slots.iter().map(|slot| slot.index));
        let needed = slots.max().map_or(0, |slot| slot as usize + 1);
        self.histories.resize(self.histories.len().max(needed), None);
        for slot in &input.fresh_slots {
            self.histories[slot.index as usize] = Some(Vec::new());
        }
        let mut seen = HashSet::new();
        let blocks = input.runs.iter().flat_map(|run| run.blocks);
        assert!(blocks.into_iter().all(|block| seen.insert(*block)), "a block belongs to two sequences");
        Ok(StepOutput { runs: input.runs.iter().map(|run| self.compute(run)).collect::<Result<_, _>>()? })
    }
}
