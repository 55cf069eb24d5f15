//! A runner without a model: the next token is a hash of the history and the seed. It keeps that history in slots, so
//! that an engine that hands out a slot twice, or without clearing it, is caught. Some tokens make it fail.

use std::collections::{HashMap, HashSet};
use std::hash::{DefaultHasher, Hash, Hasher};

use perilune_backend::{BackendError, Choice, SampleRow, SampledRow, TopLogprob};
use perilune_engine::{ArenaShape, CacheConfig, CacheOp, CheckpointRules, HostId, Place, Prefixes, UnitKind};
use perilune_engine::{EngineConfig, StepInput, StepOutput, StepRun, StepRunner};
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
    histories: HashMap<Place, Vec<TokenId>>,
    saved: HashMap<HostId, Option<Vec<TokenId>>>,
}

/// Memory for so many blocks and slots at once; a slot is as large as three blocks.
pub fn room(block_size: usize, (blocks, slots): (usize, usize)) -> CacheConfig {
    let arena = ArenaShape { len: blocks + 3 * slots, block_len: 1, slot_len: 3 };
    CacheConfig { arena, block_size, prefixes: Prefixes::Keep, host_len: 0 }
}

/// An engine for eight such sequences of any length at once.
pub fn hash_config() -> EngineConfig {
    EngineConfig {
        max_running_requests: 8,
        max_queued_requests: 300,
        random_seed: None,
        chunked_prefill_size: 16,
        max_prompt_logit_rows: 8,
        max_drafts: 0,
        context_length: 20_000,
        cache: room(4, (30_000, 8)),
        checkpoints: CheckpointRules { interval: 0, least_gap: 4 },
        eos_ids: vec![],
    }
}

impl HashRunner {
    fn history(&mut self, run: &StepRun<'_>) -> &mut Vec<TokenId> {
        self.histories.get_mut(&run.slot).expect("a slot is cleared before it is used")
    }

    fn perform(&mut self, op: CacheOp) {
        match op {
            CacheOp::ZeroSlot(slot) => drop(self.histories.insert(slot, Vec::new())),
            CacheOp::Copy { kind: UnitKind::Slot, from, to } => {
                let copy = self.histories[&from].clone();
                self.histories.insert(to, copy);
            }
            CacheOp::Save { kind, from, to } => {
                let history = (kind == UnitKind::Slot).then(|| self.histories.remove(&from).expect("saved while held"));
                assert!(self.saved.insert(to, history).is_none(), "a host id was used twice");
            }
            CacheOp::Load { kind: UnitKind::Slot, from, to } => {
                let history = self.saved[&from].clone().expect("a slot was saved");
                self.histories.insert(to, history);
            }
            // It takes part in no disk tier.
            CacheOp::Archive { .. } => {}
            CacheOp::Forget(id) => assert!(self.saved.remove(&id).is_some(), "{id:?} is not there"),
            CacheOp::Copy { kind: UnitKind::Block, .. } | CacheOp::Load { kind: UnitKind::Block, .. } => {}
        }
    }

    fn compute(&mut self, run: &StepRun<'_>) -> Result<Vec<SampledRow>, BackendError> {
        let history = self.history(run);
        assert_eq!(history.len(), run.position, "positions follow each other");
        let masked = run.masked_rows();
        let mut rows = masked.iter().peekable();
        let (mut out, mut copies) = (Vec::new(), Vec::new());
        for (i, token) in run.tokens.iter().enumerate() {
            assert_ne!(*token, PANIC, "asked to panic");
            if *token == FAULT {
                return Err(BackendError::Device("asked to fail".into()));
            }
            history.push(*token);
            copies.extend(run.snapshots.iter().filter(|copy| copy.after == i + 1).map(|c| (c.slot, history.clone())));
            if let Some(row) = rows.next_if(|row| row.row == i) {
                out.push(sample(history, row));
            }
        }
        self.histories.extend(copies);
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
            let allowed = |id: &TokenId| row.allowed.as_ref().is_none_or(|mask| mask.allows(*id));
            drawn.into_iter().find(|id| !row.banned.contains(id) && allowed(id)).unwrap()
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
        input.ops.iter().for_each(|op| self.perform(*op));
        let mut seen = HashSet::new();
        let written =
            |run: &StepRun<'_>| run.snapshots.iter().map(|copy| copy.slot).chain([run.slot]).collect::<Vec<_>>();
        assert!(input.runs.iter().flat_map(written).all(|slot| seen.insert(slot)), "a slot belongs to two sequences");
        Ok(StepOutput {
            runs: input.runs.iter().map(|run| self.compute(run)).collect::<Result<_, _>>()?,
            ..StepOutput::default()
        })
    }
}
