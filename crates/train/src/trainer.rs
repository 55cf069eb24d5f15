//! Steps: gradients of a batch of sequences, one step of AdamW; and everything that must survive an interruption.

use std::path::{Path, PathBuf};
use std::time::Instant;

use burn::module::Module;
use burn::optim::grad_clipping::GradientClippingConfig;
use burn::optim::{AdamWConfig, GradientsAccumulator, GradientsParams, ModuleOptimizer};
use burn::store::ModuleRecord;
use serde_json::{Value, json};

use crate::TrainError;
use crate::acceptance::Acceptance;
use crate::draft::Draft;
use crate::objective::{Evaluated, Objective, Spoken};
use crate::place::Place;
use crate::schedule::Schedule;

/// Largest norm of a parameter's gradient; longer ones are scaled down.
const MAX_GRADIENT: f32 = 1.0;
/// Folder of the last state, below that of the run.
const STATE: &str = "state";

/// A draft in training.
pub struct Trainer {
    objective: Objective,
    schedule: Schedule,
    draft: Draft,
    optimizer: ModuleOptimizer,
    step: usize,
    /// Best accept length on held-out answers so far; 0 before the first measurement.
    best: f64,
}

/// What a step did.
#[derive(Debug, Clone, PartialEq)]
pub struct StepReport {
    /// Steps done, this one included.
    pub step: usize,
    /// The loss, and means over the rows of its parts.
    pub loss: f64,
    /// Mean of −ln p of the token that came.
    pub ce: f64,
    /// Mean of 1 − ½‖p − q‖₁.
    pub acceptance: f64,
    /// Mean cross-entropy of the confidence.
    pub bce: f64,
    /// Share of rows, by position in the block, whose likeliest token came.
    pub hits: Vec<f64>,
    /// Learning rate.
    pub learning_rate: f64,
    /// Rows that had something to predict.
    pub rows: usize,
    /// Tokens of the sequences that were read.
    pub tokens: usize,
    /// Seconds, of which so many for reading the sequences with the target.
    pub seconds: (f64, f64),
}

/// Says a sequence: what the target thinks while it reads the n-th training example.
pub type Speak<'a> = &'a mut dyn FnMut(usize) -> Result<Spoken, TrainError>;

impl Trainer {
    /// A draft with fresh weights.
    pub fn new(objective: Objective, schedule: Schedule) -> Self {
        let place = Place { device: objective.place.device.clone().autodiff(), dtype: objective.place.dtype };
        place.device.seed(schedule.seed);
        let draft = Draft::new(&objective.config, &place);
        Trainer { objective, schedule, draft, optimizer: optimizer(), step: 0, best: 0.0 }
    }

    /// Goes on from what [`Trainer::save`] left in `dir`.
    ///
    /// # Errors
    /// `Io`, `File`.
    pub fn resume(objective: Objective, schedule: Schedule, dir: &Path) -> Result<Self, TrainError> {
        let mut trainer = Trainer::new(objective, schedule);
        let dir = dir.join(STATE);
        let damaged =
            |path: PathBuf| move |error: &dyn std::fmt::Display| TrainError::File { path, problem: error.to_string() };
        let path = dir.join("progress.json");
        let text = std::fs::read_to_string(&path).map_err(TrainError::io(&path))?;
        let progress: Value = serde_json::from_str(&text).map_err(|error| damaged(path.clone())(&error))?;
        let missing = || damaged(path.clone())(&"`step` and `best` are not what this command writes");
        trainer.step = usize::try_from(progress["step"].as_u64().ok_or_else(missing)?).map_err(|_| missing())?;
        trainer.best = progress["best"].as_f64().ok_or_else(missing)?;
        let path = dir.join("draft.bpk");
        let record = ModuleRecord::load(&path).map_err(|error| damaged(path.clone())(&error))?;
        trainer.draft = trainer.draft.try_load_record(record).map_err(|error| damaged(path)(&error))?;
        let path = dir.join("optimizer.bpk");
        trainer.optimizer = optimizer().load(&path).map_err(|error| damaged(path)(&error))?;
        Ok(trainer)
    }

    /// Whether `dir` holds a state to go on from.
    pub fn has_state(dir: &Path) -> bool {
        dir.join(STATE).join("progress.json").is_file()
    }

    /// Steps done.
    pub fn step(&self) -> usize {
        self.step
    }

    /// The objective.
    pub fn objective(&self) -> &Objective {
        &self.objective
    }

    /// The draft as it is now, without autodiff.
    pub fn draft(&self) -> Draft {
        self.draft.valid()
    }

    /// One step over the next sequences of `count`.
    ///
    /// # Errors
    /// What `speak` fails with; `Diverged`.
    pub fn train_step(&mut self, count: usize, speak: Speak<'_>) -> Result<StepReport, TrainError> {
        let begin = Instant::now();
        let mut batch = Vec::new();
        for (nth, sequence) in self.schedule.sequences(self.step, count).into_iter().enumerate() {
            let spoken = speak(sequence)?;
            let anchors = self.schedule.anchors((self.step, nth), self.objective.anchors(&spoken));
            if !anchors.is_empty() {
                batch.push((spoken, anchors));
            }
        }
        let reading = begin.elapsed().as_secs_f64();
        let total: f64 = batch.iter().map(|(spoken, anchors)| self.objective.total_weight(spoken, anchors)).sum();
        let mut gradients = GradientsAccumulator::new();
        let mut evaluated = Evaluated::default();
        for (spoken, anchors) in &batch {
            let (part, found) = self.objective.gradient(&self.draft, spoken, (anchors, total))?;
            gradients.accumulate(&self.draft, GradientsParams::from_grads(found, &self.draft));
            evaluated.loss += part.loss;
            evaluated.rows.extend(part.rows);
        }
        if !evaluated.loss.is_finite() {
            return Err(TrainError::Diverged { step: self.step + 1, loss: evaluated.loss });
        }
        let learning_rate = self.schedule.learning_rate(self.step);
        self.draft = self.optimizer.step(learning_rate, self.draft.clone(), gradients.grads());
        self.step += 1;
        let tokens = batch.iter().map(|(spoken, _)| spoken.tokens.len()).sum();
        let seconds = (begin.elapsed().as_secs_f64(), reading);
        Ok(self.report(&evaluated, (learning_rate, tokens, seconds)))
    }

    fn report(&self, evaluated: &Evaluated, (learning_rate, tokens, seconds): (f64, usize, (f64, f64))) -> StepReport {
        let rows = &evaluated.rows;
        let mean = |part: &dyn Fn(&crate::loss::RowLoss) -> f64| {
            rows.iter().map(|(_, row)| part(row)).sum::<f64>() / rows.len().max(1) as f64
        };
        let hits = (0..self.objective.config.block_size).map(|position| {
            let here = || rows.iter().filter(|(at, _)| *at == position);
            here().filter(|(_, row)| row.hit).count() as f64 / here().count().max(1) as f64
        });
        StepReport {
            step: self.step,
            loss: evaluated.loss,
            ce: mean(&|row| row.ce),
            acceptance: mean(&|row| row.acceptance),
            bce: mean(&|row| row.bce),
            hits: hits.collect(),
            learning_rate,
            rows: rows.len(),
            tokens,
            seconds,
        }
    }

    /// Replays answers that the draft was not trained on; notes whether it was never better.
    ///
    /// # Errors
    /// `Device`.
    pub fn measure(&mut self, held_out: &[Spoken]) -> Result<(Acceptance, bool), TrainError> {
        let acceptance = replay(&self.objective, &self.draft(), held_out)?;
        let best = acceptance.accept_length() > self.best;
        if best {
            self.best = acceptance.accept_length();
        }
        Ok((acceptance, best))
    }

    /// Leaves everything needed to go on in `dir`; what was there before stays until all is written.
    ///
    /// # Errors
    /// `Io`, `File`.
    pub fn save(&self, dir: &Path) -> Result<(), TrainError> {
        let (new, old, last) = (dir.join("state.new"), dir.join("state.old"), dir.join(STATE));
        for stale in [&new, &old] {
            if stale.exists() {
                std::fs::remove_dir_all(stale).map_err(TrainError::io(stale))?;
            }
        }
        std::fs::create_dir_all(&new).map_err(TrainError::io(&new))?;
        let failed = |path: &Path, error: &dyn std::fmt::Display| TrainError::File {
            path: path.to_owned(),
            problem: error.to_string(),
        };
        let path = new.join("draft.bpk");
        self.draft.clone().into_record().save(&path).map_err(|error| failed(&path, &error))?;
        let path = new.join("optimizer.bpk");
        self.optimizer.save(&path).map_err(|error| failed(&path, &error))?;
        let path = new.join("progress.json");
        let progress = json!({ "step": self.step, "best": self.best });
        std::fs::write(&path, format!("{progress:#}\n")).map_err(TrainError::io(&path))?;
        if last.exists() {
            std::fs::rename(&last, &old).map_err(TrainError::io(&last))?;
        }
        std::fs::rename(&new, &last).map_err(TrainError::io(&last))?;
        if old.exists() {
            std::fs::remove_dir_all(&old).map_err(TrainError::io(&old))?;
        }
        Ok(())
    }
}

/// Acceptance of a draft over several answers.
///
/// # Errors
/// `Device`.
pub fn replay(objective: &Objective, draft: &Draft, spoken: &[Spoken]) -> Result<Acceptance, TrainError> {
    let mut acceptance = Acceptance::new(objective.config.block_size);
    for spoken in spoken {
        objective.replay(draft, spoken, &mut acceptance)?;
    }
    Ok(acceptance)
}

fn optimizer() -> ModuleOptimizer {
    AdamWConfig::new()
        .with_beta_2(0.98)
        .with_epsilon(1e-8)
        .with_weight_decay(0.0)
        .with_grad_clipping(Some(GradientClippingConfig::Norm(MAX_GRADIENT)))
        .init()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture;

    fn trainer(steps: usize) -> Trainer {
        let schedule = Schedule { steps, batch: 2, anchors: 6, learning_rate: 0.02, warmup: 2, seed: 1 };
        Trainer::new(fixture::objective(burn::tensor::DType::F32), schedule)
    }

    /// Two sequences that one draft can know by heart: the target is sure of what it says.
    fn speak(nth: usize) -> Spoken {
        let config = fixture::config();
        let mut spoken = fixture::spoken(&config);
        if nth == 1 {
            spoken.tokens.reverse();
            spoken.taps = fixture::numbers(spoken.taps.len(), 9);
        }
        let told = spoken.tokens[spoken.answer..].to_vec();
        spoken.logits.fill(0.0);
        for (row, token) in spoken.logits.chunks_exact_mut(config.vocabulary).zip(told) {
            row[token.index()] = 12.0;
        }
        spoken
    }

    fn run(trainer: &mut Trainer, steps: usize) -> Vec<f64> {
        (0..steps).map(|_| trainer.train_step(2, &mut |nth| Ok(speak(nth))).unwrap().loss).collect()
    }

    #[test]
    fn two_sequences_are_learnt_by_heart() {
        let mut trainer = trainer(200);
        let spoken = [speak(0), speak(1)];
        let (before, _) = trainer.measure(&spoken).unwrap();
        let losses = run(&mut trainer, 200);
        let (after, best) = trainer.measure(&spoken).unwrap();
        assert!(losses[199] < 0.1 * losses[0], "{} to {}", losses[0], losses[199]);
        assert!(best && after.accept_length() > 3.0 && before.accept_length() < 2.0, "{before:?} {after:?}");
        // The confidence has learnt to expect it, too.
        assert!(after.confidence_error() < 0.1, "{}", after.confidence_error());
    }

    #[test]
    fn a_resumed_run_goes_on_as_if_it_had_never_stopped() {
        let dir = tempfile::tempdir().unwrap();
        let mut whole = trainer(8);
        let losses = run(&mut whole, 8);
        let mut first = trainer(8);
        let mut parts = run(&mut first, 3);
        first.save(dir.path()).unwrap();
        // A second save replaces the first one.
        parts.extend(run(&mut first, 2));
        first.save(dir.path()).unwrap();
        let schedule = first.schedule.clone();
        let objective = fixture::objective(burn::tensor::DType::F32);
        let mut second = Trainer::resume(objective, schedule, dir.path()).unwrap();
        assert_eq!(second.step(), 5);
        parts.extend(run(&mut second, 3));
        assert_eq!(parts, losses);
    }

    #[test]
    fn a_loss_that_is_no_number_ends_the_run() {
        let mut trainer = trainer(2);
        let broken = |_| {
            let mut spoken = speak(0);
            spoken.taps[3] = f32::NAN;
            Ok(spoken)
        };
        let error = trainer.train_step(2, &mut { broken }).unwrap_err().to_string();
        assert_eq!(error, "the loss of step 1 is NaN; a smaller --lr may help");
    }

    #[test]
    fn a_state_that_is_damaged_is_refused_by_file() {
        let dir = tempfile::tempdir().unwrap();
        assert!(!Trainer::has_state(dir.path()));
        trainer(2).save(dir.path()).unwrap();
        assert!(Trainer::has_state(dir.path()));
        let path = dir.path().join("state/progress.json");
        std::fs::write(&path, "{\"step\": -1}").unwrap();
        let schedule = trainer(2).schedule;
        let resumed = Trainer::resume(fixture::objective(burn::tensor::DType::F32), schedule, dir.path());
        let error = resumed.err().unwrap().to_string();
        assert!(error.contains("progress.json: `step` and `best` are not"), "{error}");
    }
}
