//! Drafts of a step, and which of them stand.

use std::time::{Duration, Instant};

use perilune_backend::{Backend, BackendError, Choice, RandomStream, RowDistribution, SampleRow, SampledRow, uniform};
use perilune_backend::{TopLogprob, uniform_of};
use perilune_model::{Kimi, MAX_DECODE_ROWS, StepLimits};
use perilune_scheduler::SeqId;
use perilune_speculate::{
    Block, Costs, Draft, DraftLengths, DraftRequest, LengthPolicy, Load, Outcome, Proposal, Survival, accept_block,
    pick,
};
use perilune_tensor::TokenId;

use crate::arrears::{Arrears, LastStep};
use crate::{StepInput, StepRun};

/// A draft at work: proposes, and learns how much of it pays.
pub struct Speculation<B: Backend> {
    draft: Box<dyn Draft<B>>,
    policy: LengthPolicy<SeqId>,
    /// `None` until there is room for it, and for a draft that reads no streams.
    arrears: Option<Arrears<B>>,
}

impl<B: Backend> std::fmt::Debug for Speculation<B> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Speculation").field("max_drafts", &self.draft.max_drafts()).finish_non_exhaustive()
    }
}

/// Proposals of a step, one per run of the input; empty where nothing is drafted.
pub(crate) struct Drafts {
    pub(crate) proposals: Vec<Proposal>,
    pub(crate) drafting: Duration,
    load: Load,
}

impl<B: Backend> Speculation<B> {
    /// Uses a draft with lengths chosen one way or the other.
    pub fn new(draft: Box<dyn Draft<B>>, lengths: DraftLengths) -> Self {
        let policy = LengthPolicy::new(draft.max_drafts(), lengths);
        Speculation { draft, policy, arrears: None }
    }

    /// The draft.
    pub fn draft(&self) -> &dyn Draft<B> {
        self.draft.as_ref()
    }

    /// Makes room for work beside steps within `limits`.
    pub(crate) fn make_room(&mut self, backend: &B, limits: StepLimits) -> Result<(), BackendError> {
        if self.draft.taps().is_some() {
            self.arrears = Some(Arrears::new(backend, limits)?);
        }
        Ok(())
    }

    /// Before anything of a step: the draft catches up, unless the step goes on where the last one ended.
    pub(crate) fn begin(&mut self, input: &StepInput<'_>, last: LastStep<'_, B>) -> Result<(), BackendError> {
        match &mut self.arrears {
            Some(arrears) if !arrears.go_on(input) => arrears.settle(self.draft.as_mut(), last),
            _ => Ok(()),
        }
    }

    /// Drafts for the runs that may have them, as far as that pays; else the last step's streams are kept for later.
    pub(crate) fn propose(
        &mut self,
        target: &Kimi<B>,
        input: &StepInput<'_>,
        mut last: LastStep<'_, B>,
    ) -> Result<Drafts, BackendError> {
        let drafts = self.propose_some(target, input, &mut last)?;
        if let Some(arrears) = &self.arrears {
            arrears.make_way(last)?;
        }
        Ok(drafts)
    }

    fn propose_some(
        &mut self,
        target: &Kimi<B>,
        input: &StepInput<'_>,
        last: &mut LastStep<'_, B>,
    ) -> Result<Drafts, BackendError> {
        let load = load(input);
        let mut proposals = vec![Proposal::default(); input.runs.len()];
        let may: Vec<usize> = (0..input.runs.len()).filter(|i| input.runs[*i].drafts > 0).collect();
        if may.is_empty() {
            return Ok(Drafts { proposals, drafting: Duration::ZERO, load });
        }
        let wanted: Vec<(SeqId, usize)> = may.iter().map(|i| (input.runs[*i].seq, input.runs[*i].drafts)).collect();
        let asked = self.policy.ask(&wanted, load);
        let chosen: Vec<(usize, usize)> = may.into_iter().zip(asked).filter(|(_, n)| *n > 0).collect();
        if chosen.is_empty() {
            return Ok(Drafts { proposals, drafting: Duration::ZERO, load });
        }
        if let Some(arrears) = &mut self.arrears {
            arrears.settle(self.draft.as_mut(), last.reborrow())?;
        }
        let started = Instant::now();
        let requests: Vec<DraftRequest<'_>> = chosen.iter().map(|(i, n)| request(&input.runs[*i], *n)).collect();
        let drafted = self.draft.propose((last.backend, target), &requests, last.caches)?;
        let drafting = started.elapsed();
        let survivals: Vec<Survival> =
            chosen.iter().zip(&drafted).map(|((i, _), proposal)| self.survival(input.runs[*i].seq, proposal)).collect();
        let lengths = self.policy.trim(&survivals, load);
        for (((i, most), mut proposal), length) in chosen.into_iter().zip(drafted).zip(lengths) {
            proposal.tokens.truncate(length.min(most));
            proposals[i] = proposal;
        }
        Ok(Drafts { proposals, drafting, load })
    }

    /// What the draft itself believes counts; without that, what became of the sequence's drafts so far.
    ///
    /// Of drafts that were drawn, whether one is verified must not depend on what it is, nor on those after it: that would
    /// bend the distribution of what is kept. What the draft believes does depend on them, so it does not count there.
    fn survival(&self, seq: SeqId, proposal: &Proposal) -> Survival {
        if proposal.probabilities.is_some() || proposal.confidence.len() < proposal.tokens.len() {
            return self.policy.survival(seq, proposal.tokens.len());
        }
        self.policy.believed(&proposal.confidence)
    }

    /// After the target's step.
    pub(crate) fn observe(
        &mut self,
        (input, proposals): (&StepInput<'_>, &[Proposal]),
        last: LastStep<'_, B>,
    ) -> Result<(), BackendError> {
        match &mut self.arrears {
            Some(arrears) => arrears.add(self.draft.as_mut(), (input, proposals), last),
            None => Ok(()),
        }
    }

    /// Learns from the outcome of a step.
    pub(crate) fn learn(
        &mut self,
        input: &StepInput<'_>,
        drafts: &Drafts,
        (rows, target): (&[Vec<SampledRow>], Duration),
    ) {
        let mut verified = 0;
        for ((run, proposal), rows) in input.runs.iter().zip(&drafts.proposals).zip(rows) {
            let drafted = proposal.tokens.len();
            verified += drafted;
            if drafted > 0 || !proposal.confidence.is_empty() {
                // Of a proposal that was left out as a whole, what its author believed still counts.
                let kept = if drafted > 0 { rows.len().saturating_sub(1) } else { 0 };
                self.policy.note(run.seq, Outcome { verified: drafted, kept, confidence: &proposal.confidence });
            }
        }
        if drafts.load.sequences > 0 {
            let costs = Costs { load: drafts.load, drafts: verified, drafting: drafts.drafting, target };
            self.policy.note_step(costs);
        }
    }
}

fn load(input: &StepInput<'_>) -> Load {
    let may = || input.runs.iter().filter(|run| run.drafts > 0);
    Load {
        sequences: may().count(),
        rows: input.runs.iter().map(|run| run.tokens.len()).sum(),
        context: may().map(|run| run.position).sum(),
    }
}

fn request<'a>(run: &'a StepRun<'_>, max_drafts: usize) -> DraftRequest<'a> {
    let max_drafts = max_drafts.min(MAX_DECODE_ROWS - run.tokens.len().min(MAX_DECODE_ROWS));
    DraftRequest { history: run.history, blocks: &run.blocks, max_drafts, rows: &run.rows }
}

/// The rows of a run with drafts as the target draws them if all drafts before are kept.
pub(crate) fn rows_with_drafts(rows: &[SampleRow], drafts: &[TokenId]) -> Vec<SampleRow> {
    let with = |(i, row): (usize, &SampleRow)| {
        let mut row = row.clone();
        if !row.counts.is_empty() {
            row.count_drafts(&drafts[..i]);
        }
        row
    };
    rows.iter().take(drafts.len() + 1).enumerate().map(with).collect()
}

/// Of what each row chooses, greedy or with the random number of its place, that which stands: the choices up to the first
/// that is not the draft.
pub(crate) fn accept_same(drafts: &[TokenId], mut choices: Vec<SampledRow>) -> Vec<SampledRow> {
    let agrees = |(draft, choice): (&TokenId, &SampledRow)| matches!(choice, SampledRow::Token { chosen, .. } if chosen.id == *draft);
    let kept = drafts.iter().zip(&choices).take_while(|pair| agrees(*pair)).count();
    choices.truncate(kept + 1);
    choices
}

/// The tokens that stand where they are drawn by chance; the last one is not a draft. `None` where not even the first
/// distribution is finite.
pub(crate) fn accept_drawn(
    proposal: &Proposal,
    rows: &[SampleRow],
    laws: Vec<RowDistribution>,
) -> Result<Option<Vec<TokenId>>, BackendError> {
    let finite = |law| if let RowDistribution::Probabilities(p) = law { Some(p) } else { None };
    let target: Vec<Vec<f32>> = laws.into_iter().map_while(finite).collect();
    let Some(most) = target.len().checked_sub(1) else { return Ok(None) };
    let drafts = &proposal.tokens[..most.min(proposal.tokens.len())];
    let Some(Choice::Draw { seed, step, .. }) = rows.first().map(|row| row.choice) else {
        return Err(fault("rows", "no draw"));
    };
    let block = Block { drafts, proposed: proposal.probabilities.as_deref(), target: &target[..=drafts.len()] };
    let coin = |i: usize| uniform_of(RandomStream::Coin, seed, step, i as u64);
    let accepted = accept_block(block, coin).ok_or_else(|| fault("proposal", "distributions of another number"))?;
    // The random number of this token's own place: a plain draw would have used it.
    let last = pick(&accepted.next, uniform(seed, step + accepted.kept as u64));
    let last = last.ok_or_else(|| fault("distribution", "all zero"))?;
    let mut tokens = drafts[..accepted.kept].to_vec();
    tokens.push(TokenId(u32::try_from(last).unwrap_or(u32::MAX)));
    Ok(Some(tokens))
}

/// Tokens that nobody asked the log-probabilities of.
pub(crate) fn unscored(tokens: Vec<TokenId>) -> Vec<SampledRow> {
    let row = |id| SampledRow::Token { chosen: TopLogprob { id, logprob: 0.0 }, top: Vec::new() };
    tokens.into_iter().map(row).collect()
}

/// The rows that score tokens which have been chosen.
pub(crate) fn scoring(rows: &[SampleRow], tokens: &[TokenId]) -> Vec<SampleRow> {
    let given = |(row, id): (&SampleRow, &TokenId)| SampleRow { choice: Choice::Given(*id), ..row.clone() };
    rows.iter().zip(tokens).map(given).collect()
}

fn fault(field: &'static str, found: &str) -> BackendError {
    BackendError::Mismatch { op: "verify", field, found: found.into(), expected: "what a verification needs".into() }
}
