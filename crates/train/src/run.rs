//! A whole training: from answered prompts to a checkpoint, with everything that is written on the way.

use std::path::{Path, PathBuf};

use perilune_backend::Backend;
use perilune_config::ModelConfig;
use serde_json::{Map, Value, json};

use crate::TrainError;
use crate::acceptance::Acceptance;
use crate::answers::{AnswerOptions, Answered};
use crate::capture::Capture;
use crate::draft_config::DraftConfig;
use crate::journal::{Journal, as_json};
use crate::loss::LossWeights;
use crate::objective::Objective;
use crate::place::Place;
use crate::progress::{Progress, Show};
use crate::schedule::Schedule;
use crate::store::{export, import};
use crate::target::TargetEnds;
use crate::trainer::{Trainer, replay};

/// Below the directory of the draft: log, plot, answers, and the state to go on from.
const TRAINING: &str = "training";
/// In [`TRAINING`]: what the run was started with.
const SETTINGS: &str = "settings.json";

/// Whether a run begins or goes on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Start {
    /// In a directory that is empty or not there yet.
    Fresh,
    /// From the last state that the run in the directory saved.
    Resume,
}

/// Everything that a run is asked to do.
#[derive(Debug, Clone, PartialEq)]
pub struct RunOptions {
    /// Shape of the draft.
    pub draft: DraftConfig,
    /// Steps.
    pub schedule: Schedule,
    /// How the target answers.
    pub answers: AnswerOptions,
    /// The last so many prompts of the file are not trained on; their first answers are measured with.
    pub held_out: usize,
    /// Steps between two measurements.
    pub measure_every: usize,
    /// Steps between two saved states.
    pub save_every: usize,
    /// Sequences are cut after so many tokens.
    pub max_tokens: usize,
    /// Where the draft goes.
    pub out: PathBuf,
    /// Whether to go on.
    pub start: Start,
    /// Whether to show how far it is.
    pub show: Show,
}

impl RunOptions {
    /// Checks the options and the output directory, and notes the settings there. To be called before anything slow.
    ///
    /// # Errors
    /// `Option`, `Io`, `File`.
    pub fn prepare(&self) -> Result<(), TrainError> {
        self.draft.check()?;
        for (option, value) in [
            ("--steps", self.schedule.steps),
            ("--batch", self.schedule.batch),
            ("--anchors", self.schedule.anchors),
            ("--held-out", self.held_out),
            ("--measure-every", self.measure_every),
            ("--save-every", self.save_every),
            ("--max-answer-tokens", self.answers.max_tokens),
        ] {
            if value == 0 {
                return Err(TrainError::Option { option, value: "0".into(), rule: "at least 1".into() });
            }
        }
        if !(self.schedule.learning_rate > 0.0 && self.schedule.learning_rate.is_finite()) {
            let value = self.schedule.learning_rate.to_string();
            return Err(TrainError::Option { option: "--lr", value, rule: "a number above 0".into() });
        }
        match self.start {
            Start::Fresh => self.begin(),
            Start::Resume => self.compare(),
        }
    }

    /// Where the target's answers are kept.
    pub fn answers_path(&self) -> PathBuf {
        self.training().join("answers.jsonl")
    }

    fn training(&self) -> PathBuf {
        self.out.join(TRAINING)
    }

    fn begin(&self) -> Result<(), TrainError> {
        let taken = match std::fs::read_dir(&self.out) {
            Ok(mut entries) => entries.next().is_some(),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => false,
            Err(error) => return Err(TrainError::io(&self.out)(error)),
        };
        if taken {
            let rule = "the directory is not empty; name another one, or add --resume to go on with the run in it";
            return Err(TrainError::Option {
                option: "--out",
                value: self.out.display().to_string(),
                rule: rule.into(),
            });
        }
        let dir = self.training();
        std::fs::create_dir_all(&dir).map_err(TrainError::io(&dir))?;
        let path = dir.join(SETTINGS);
        std::fs::write(&path, format!("{:#}\n", self.settings())).map_err(TrainError::io(&path))
    }

    /// A run goes on with the settings it began with, but for the number of steps.
    fn compare(&self) -> Result<(), TrainError> {
        let path = self.training().join(SETTINGS);
        if !path.is_file() {
            let rule = "there is no run in it to --resume";
            return Err(TrainError::Option {
                option: "--out",
                value: self.out.display().to_string(),
                rule: rule.into(),
            });
        }
        let text = std::fs::read_to_string(&path).map_err(TrainError::io(&path))?;
        let stored: Map<String, Value> = serde_json::from_str(&text)
            .map_err(|error| TrainError::File { path: path.clone(), problem: error.to_string() })?;
        for (name, now) in self.settings().as_object().into_iter().flatten() {
            let before = stored.get(name).unwrap_or(&Value::Null);
            if before != now {
                let problem = format!("the run was begun with `{name}` {before}, not {now}");
                return Err(TrainError::File { path, problem });
            }
        }
        Ok(())
    }

    /// What decides the course of a run.
    fn settings(&self) -> Value {
        let (schedule, answers) = (&self.schedule, &self.answers);
        json!({
            "draft": self.draft.to_json(&Value::Null),
            "batch": schedule.batch,
            "anchors": schedule.anchors,
            "learning_rate": schedule.learning_rate,
            "warmup": schedule.warmup,
            "seed": schedule.seed,
            "temperature": f64::from(answers.temperature),
            "more_temperature": f64::from(answers.more_temperature),
            "max_answer_tokens": answers.max_tokens,
            "held_out": self.held_out,
            "max_tokens": self.max_tokens,
        })
    }
}

/// What a run works with.
pub struct Run<'a, B: Backend> {
    /// What is asked.
    pub options: &'a RunOptions,
    /// The target, reading.
    pub capture: &'a mut Capture<B>,
    /// The target's embedding and head.
    pub ends: TargetEnds,
    /// The target's `text_config`: which tokens begin, end and fill a sequence.
    pub target: &'a Value,
    /// Where the draft computes.
    pub place: Place,
}

impl<B: Backend> Run<'_, B> {
    /// Trains; leaves the draft with the longest accept length on the held-out answers in the output directory.
    /// Returns that measurement.
    ///
    /// # Errors
    /// Whatever fails.
    pub fn train(mut self, answered: &[Answered]) -> Result<Value, TrainError> {
        let options = self.options;
        let (trained_on, held_out) = divide(options.held_out, answered)?;
        let held_out = held_out.into_iter().map(|one| self.capture.read(one)).collect::<Result<Vec<_>, _>>()?;
        let dir = options.training();
        let objective =
            Objective::new(options.draft.clone(), LossWeights::default(), (self.ends.clone(), self.place.clone()));
        let schedule = options.schedule.clone();
        let mut trainer = match options.start {
            Start::Resume if Trainer::has_state(&dir) => Trainer::resume(objective, schedule, &dir)?,
            _ => Trainer::new(objective, schedule),
        };
        let mut journal = Journal::open(&dir, trainer.step())?;
        let mut progress = Progress::new("training", options.schedule.steps, options.show);
        let mut best = Value::Null;
        while trainer.step() < options.schedule.steps {
            let capture = &mut self.capture;
            let report = trainer.train_step(trained_on.len(), &mut |nth| capture.read(trained_on[nth]))?;
            journal.step(&report)?;
            let (step, last) = (report.step, report.step == options.schedule.steps);
            let rate = report.rows as f64 / report.seconds.0;
            progress
                .at(step, &format!("loss {:.3}, acceptance {:.3}, {rate:.0} rows/s", report.loss, report.acceptance));
            if last || step.is_multiple_of(options.measure_every) {
                let (acceptance, is_best) = trainer.measure(&held_out)?;
                journal.measurement(step, &acceptance)?;
                journal.draw(&dir)?;
                progress
                    .say(&format!("step {step}: accept length {:.3} on held-out answers", acceptance.accept_length()));
                if is_best {
                    export(&trainer.draft(), (&options.draft, self.target), &options.out)?;
                    best = json!({ "step": step, "held_out": as_json(&acceptance) });
                }
            }
            if last || step.is_multiple_of(options.save_every) {
                trainer.save(&dir)?;
            }
        }
        progress.finish();
        Ok(best)
    }

    /// Measures the draft in the output directory on all of `answered`.
    ///
    /// # Errors
    /// Whatever fails.
    pub fn measure(self, answered: &[Answered]) -> Result<Value, TrainError> {
        let options = self.options;
        let objective =
            Objective::new(options.draft.clone(), LossWeights::default(), (self.ends.clone(), self.place.clone()));
        let draft = import(&options.draft, &self.place, &options.out)?;
        let mut acceptance = Acceptance::new(options.draft.block_size);
        let mut progress = Progress::new("measuring", answered.len(), options.show);
        for (nth, answered) in answered.iter().enumerate() {
            let spoken = self.capture.read(answered)?;
            let one = replay(&objective, &draft, std::slice::from_ref(&spoken))?;
            acceptance.add(&one);
            progress.at(nth + 1, &format!("accept length {:.3}", acceptance.accept_length()));
        }
        progress.finish();
        Ok(as_json(&acceptance))
    }
}

/// All answers to all prompts but the last `held_out`, to train on, and the first answers to those, to measure with.
fn divide(held_out: usize, answered: &[Answered]) -> Result<(Vec<&Answered>, Vec<&Answered>), TrainError> {
    let prompts = answered.iter().filter(|one| one.nth == 0).count();
    let first_held = answered.iter().filter(|one| one.nth == 0).nth(prompts.saturating_sub(held_out));
    match first_held.map(|one| one.prompt.line) {
        Some(line) if prompts > held_out => {
            let (rest, held): (Vec<_>, Vec<_>) = answered.iter().partition(|one| one.prompt.line < line);
            Ok((rest, held.into_iter().filter(|one| one.nth == 0).collect()))
        }
        _ => Err(TrainError::Option {
            option: "--held-out",
            value: held_out.to_string(),
            rule: format!("the file has {prompts} prompts, and some must be left to train on"),
        }),
    }
}

/// The shape of the draft that was exported into a directory, for this target.
///
/// # Errors
/// `Config`, also for a draft of another target; `File` for one of a kind that is not trained here.
pub fn read_config(dir: &Path, target: &ModelConfig) -> Result<DraftConfig, TrainError> {
    let published = perilune_config::DraftConfig::from_dir(dir)?;
    published.check_target(target)?;
    DraftConfig::from_published(&published, target.num_layers())
        .map_err(|problem| TrainError::File { path: dir.join("config.json"), problem: problem.to_owned() })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture;

    fn options(out: &Path) -> RunOptions {
        RunOptions {
            draft: fixture::config(),
            schedule: Schedule { steps: 2, batch: 1, anchors: 4, learning_rate: 0.01, warmup: 1, seed: 1 },
            answers: AnswerOptions {
                temperature: 0.0,
                more: 0,
                more_temperature: 1.0,
                max_tokens: 8,
                seed: 1,
                concurrency: 2,
            },
            held_out: 1,
            measure_every: 1,
            save_every: 1,
            max_tokens: 64,
            out: out.to_owned(),
            start: Start::Fresh,
            show: Show::Nothing,
        }
    }

    #[test]
    fn a_directory_with_something_in_it_is_only_taken_to_resume_a_run() {
        let dir = tempfile::tempdir().unwrap();
        let out = dir.path().join("draft");
        let fresh = options(&out);
        let resumed = RunOptions { start: Start::Resume, ..fresh.clone() };
        let refused = |options: &RunOptions| options.prepare().unwrap_err().to_string();
        assert!(refused(&resumed).ends_with("there is no run in it to --resume"));
        fresh.prepare().unwrap();
        assert!(refused(&fresh).contains("is not empty; name another one, or add --resume"));
        resumed.prepare().unwrap();
        let longer = RunOptions { schedule: Schedule { steps: 9, ..fresh.schedule.clone() }, ..resumed.clone() };
        longer.prepare().unwrap();
        let other = RunOptions { held_out: 3, ..resumed };
        assert!(refused(&other).ends_with("the run was begun with `held_out` 1, not 3"));
    }

    #[test]
    fn no_answer_to_a_held_out_prompt_is_trained_on() {
        let prompt = |line| crate::prompts::Prompt { line, tokens: Vec::new() };
        let answer = |(nth, line)| Answered { prompt: prompt(line), nth, answer: Vec::new() };
        let answered: Vec<Answered> = (0..2).flat_map(|nth| [2, 5, 6, 9].map(|line| answer((nth, line)))).collect();
        let (rest, held) = divide(1, &answered).unwrap();
        let places = |all: &[&Answered]| all.iter().map(|one| (one.nth, one.prompt.line)).collect::<Vec<_>>();
        assert_eq!(places(&rest), [(0, 2), (0, 5), (0, 6), (1, 2), (1, 5), (1, 6)]);
        assert_eq!(places(&held), [(0, 9)]);
        let refused = divide(4, &answered).unwrap_err().to_string();
        assert_eq!(refused, "--held-out is 4; the file has 4 prompts, and some must be left to train on");
    }

    #[test]
    fn options_that_cannot_work_are_refused_before_anything_is_written() {
        let dir = tempfile::tempdir().unwrap();
        let out = dir.path().join("draft");
        let refused = |change: fn(&mut RunOptions)| {
            let mut options = options(&out);
            change(&mut options);
            options.prepare().unwrap_err().to_string()
        };
        assert_eq!(refused(|o| o.schedule.batch = 0), "--batch is 0; at least 1");
        assert_eq!(refused(|o| o.schedule.learning_rate = f64::NAN), "--lr is NaN; a number above 0");
        assert_eq!(refused(|o| o.draft.num_layers = 0), "--layers is 0; at least 1");
        assert!(!out.exists());
    }
}
