//! Between the scheduler's plan and the runner's input and output.

use perilune_backend::{Choice, Penalties, SampleRow, SampledRow, TokenCount};
use perilune_cache::{CacheManager, Place};
use perilune_sampling::{TokenLogprob, TokenLogprobs};
use perilune_scheduler::{Draws, PlannedRun, PlannedSnapshot, RowOutcome, RunOutcome, Scheduler, Sequence, StepPlan};

use crate::constraints::Constraints;
use crate::{DrawnDrafts, StateCopy, StepInput, StepOutput, StepRun};

const NO_PENALTIES: Penalties = Penalties { repetition: 1.0, presence: 0.0, frequency: 0.0 };

/// Lists of runs whose step is over, for those of the next one.
#[derive(Debug, Default)]
pub(crate) struct Spare {
    blocks: Vec<Vec<Place>>,
    rows: Vec<Vec<SampleRow>>,
}

impl Spare {
    /// Takes the lists of a step that has run.
    pub(crate) fn take_back(&mut self, input: StepInput<'_>) {
        for StepRun { mut blocks, mut rows, .. } in input.runs {
            blocks.clear();
            rows.clear();
            self.blocks.push(blocks);
            self.rows.push(rows);
        }
    }
}

/// The tokens, memory and sampling rows of a plan.
///
/// # Errors
/// A sentence where plan and scheduler do not belong together: a fault of this crate.
pub(crate) fn step_input<'a>(
    (scheduler, cache, constraints): (&'a Scheduler, &CacheManager, &Constraints),
    (plan, kept): (&StepPlan, Vec<usize>),
    spare: &mut Spare,
) -> Result<StepInput<'a>, String> {
    let copy = |run: &PlannedRun, snapshot: &PlannedSnapshot| {
        let slot = cache.slot_place(snapshot.slot)?;
        Some(StateCopy { after: snapshot.position - run.tokens.start, slot })
    };
    let mut run = |run: &PlannedRun| {
        let sequence = scheduler.running(run.seq)?;
        let held = sequence.cache()?;
        let mut blocks = spare.blocks.pop().unwrap_or_default();
        for block in held.blocks() {
            blocks.push(cache.block_place(*block)?);
        }
        let mut rows = spare.rows.pop().unwrap_or_default();
        add_rows(sequence, run, &mut rows);
        Some(StepRun {
            seq: run.seq,
            tokens: sequence.tokens().get(run.tokens.clone())?,
            history: sequence.tokens().get(..run.tokens.end)?,
            drafts: run.drafts,
            drawn_drafts: match sequence.params().seed {
                // Whoever names a seed wants the same tokens again, and how many drafts a step has depends on time.
                Some(_) => DrawnDrafts::KeepTokens,
                None => DrawnDrafts::KeepDistribution,
            },
            position: run.tokens.start,
            slot: cache.slot_place(held.slot())?,
            blocks,
            rows,
            masks: if run.draws == Draws::Token { constraints.pending(run.seq) } else { None },
            snapshots: run.snapshots.iter().map(|snapshot| copy(run, snapshot)).collect::<Option<_>>()?,
        })
    };
    let runs: Option<Vec<StepRun<'a>>> = plan.runs.iter().map(&mut run).collect();
    let runs = runs.ok_or("a step was planned for a sequence, or with memory, that is not there")?;
    Ok(StepInput { kept, ops: plan.ops.clone(), runs })
}

/// Scored positions first, then the drawn token, then one for each draft: rising rows within the run.
fn add_rows(sequence: &Sequence, run: &PlannedRun, rows: &mut Vec<SampleRow>) {
    rows.extend(run.scored.clone().map(|position| SampleRow {
        row: position - run.tokens.start,
        choice: Choice::Given(sequence.tokens()[position + 1]),
        bias: Vec::new(),
        banned: Vec::new(),
        allowed: None,
        penalties: NO_PENALTIES,
        counts: Vec::new(),
        top_logprobs: sequence.params().prompt_logprobs,
    }));
    if run.draws == Draws::Token {
        let last = run.tokens.len() - 1;
        rows.extend((0..=run.drafts).map(|ahead| SampleRow { row: last + ahead, ..drawn(sequence, ahead) }));
    }
}

/// How the token `ahead` places after the next one is drawn.
fn drawn(sequence: &Sequence, ahead: usize) -> SampleRow {
    let params = sequence.params();
    let bias = params.split_bias();
    let mut banned = bias.banned;
    banned.extend_from_slice(sequence.banned(ahead));
    let mut counts: Vec<TokenCount> = sequence
        .occurrences()
        .iter()
        .map(|(id, n)| TokenCount { id: *id, in_prompt: n.in_prompt, in_output: n.in_output })
        .collect();
    // The order of a hash map is not to be seen anywhere.
    counts.sort_unstable_by_key(|count| count.id);
    SampleRow {
        row: 0,
        choice: Choice::Draw {
            temperature: params.effective_temperature(),
            top_k: params.effective_top_k(),
            top_p: params.top_p,
            min_p: params.min_p,
            seed: sequence.seed(),
            step: (sequence.generated() + ahead) as u64,
        },
        bias: bias.added,
        banned,
        allowed: None,
        penalties: Penalties {
            repetition: params.repetition_penalty,
            presence: params.presence_penalty,
            frequency: params.frequency_penalty,
        },
        counts,
        top_logprobs: params.logprobs,
    }
}

/// What a runner returned, in the scheduler's words.
///
/// # Errors
/// A sentence where the output does not have the rows that were asked for.
pub(crate) fn outcomes(plan: &StepPlan, output: StepOutput) -> Result<Vec<RunOutcome>, String> {
    let fits = |(run, (rows, drafted)): (&PlannedRun, (&Vec<SampledRow>, &usize))| {
        let least = run.scored.len() + usize::from(run.draws == Draws::Token);
        *drafted <= run.drafts && (least..=least + drafted).contains(&rows.len())
    };
    let StepOutput { runs, mut drafted, .. } = output;
    drafted.resize(runs.len(), 0);
    if plan.runs.len() != runs.len() || !plan.runs.iter().zip(runs.iter().zip(&drafted)).all(fits) {
        return Err("the runner returned another number of rows than it was asked for".into());
    }
    let outcome = |(run, (rows, drafted)): (&PlannedRun, (Vec<SampledRow>, usize))| RunOutcome {
        seq: run.seq,
        rows: rows.into_iter().map(row_outcome).collect(),
        drafted,
    };
    Ok(plan.runs.iter().zip(runs.into_iter().zip(drafted)).map(outcome).collect())
}

fn row_outcome(row: SampledRow) -> RowOutcome {
    match row {
        SampledRow::NonFinite => RowOutcome::NonFinite,
        SampledRow::Token { chosen, top } => {
            let plain = |t: perilune_backend::TopLogprob| TokenLogprob { id: t.id, logprob: t.logprob };
            RowOutcome::Token(TokenLogprobs { chosen: plain(chosen), top: top.into_iter().map(plain).collect() })
        }
    }
}
