//! The log of a run as JSON lines, one per step and one per measurement, and what is drawn from it.

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use crate::TrainError;
use crate::acceptance::Acceptance;
use crate::plot::{Curve, Panel, draw};
use crate::trainer::StepReport;

/// Writes the log.
#[derive(Debug)]
pub struct Journal {
    path: PathBuf,
    file: File,
    lines: Vec<Value>,
}

impl Journal {
    /// The log in `dir`, of which what goes beyond `step` is dropped: a run that resumes there writes it again.
    ///
    /// # Errors
    /// `Io`.
    pub fn open(dir: &Path, step: usize) -> Result<Self, TrainError> {
        let path = dir.join("log.jsonl");
        let text =
            if path.exists() { std::fs::read_to_string(&path).map_err(TrainError::io(&path))? } else { String::new() };
        let known = text.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
        let lines: Vec<Value> =
            known.filter(|line| line["step"].as_u64().is_some_and(|at| at <= step as u64)).collect();
        let kept: String = lines.iter().map(|line| format!("{line}\n")).collect();
        std::fs::write(&path, kept).map_err(TrainError::io(&path))?;
        let file = OpenOptions::new().append(true).open(&path).map_err(TrainError::io(&path))?;
        Ok(Journal { path, file, lines })
    }

    /// A step.
    ///
    /// # Errors
    /// `Io`.
    pub fn step(&mut self, report: &StepReport) -> Result<(), TrainError> {
        let (seconds, reading) = report.seconds;
        self.write(json!({
            "step": report.step,
            "loss": report.loss,
            "ce": report.ce,
            "acceptance": report.acceptance,
            "bce": report.bce,
            "hits": report.hits,
            "learning_rate": report.learning_rate,
            "rows": report.rows,
            "tokens": report.tokens,
            "seconds": seconds,
            "reading_seconds": reading,
        }))
    }

    /// A measurement on held-out answers.
    ///
    /// # Errors
    /// `Io`.
    pub fn measurement(&mut self, step: usize, acceptance: &Acceptance) -> Result<(), TrainError> {
        self.write(json!({ "step": step, "held_out": as_json(acceptance) }))
    }

    fn write(&mut self, line: Value) -> Result<(), TrainError> {
        writeln!(self.file, "{line}").map_err(TrainError::io(&self.path))?;
        self.lines.push(line);
        Ok(())
    }

    /// Draws loss and acceptance over the steps into `dir/training.png`.
    ///
    /// # Errors
    /// `Io`, `File`.
    pub fn draw(&self, dir: &Path) -> Result<(), TrainError> {
        let points = |read: &dyn Fn(&Value) -> Option<f64>| {
            self.lines.iter().filter_map(|line| Some((line["step"].as_f64()?, read(line)?))).collect::<Vec<_>>()
        };
        let loss = smooth(&points(&|line| line["loss"].as_f64()));
        let acceptance = smooth(&points(&|line| line["acceptance"].as_f64()));
        let length = points(&|line| line["held_out"]["accept_length"].as_f64());
        let panels = [
            Panel { title: "loss", curves: vec![Curve { points: loss }] },
            Panel {
                title: "acceptance, 1 - |p - q| / 2, mean of all positions",
                curves: vec![Curve { points: acceptance }],
            },
            Panel { title: "accept length on held-out answers", curves: vec![Curve { points: length }] },
        ];
        draw(&panels, &dir.join("training.png"))
    }
}

/// A measurement as the log and the command print it.
pub fn as_json(acceptance: &Acceptance) -> Value {
    json!({
        "accept_length": acceptance.accept_length(),
        "blocks": acceptance.blocks,
        "survival": acceptance.survival(),
        "forced": acceptance.forced(),
        "chance": acceptance.chance(),
        "confidence_error": acceptance.confidence_error(),
    })
}

/// A running mean: single steps jump about.
fn smooth(points: &[(f64, f64)]) -> Vec<(f64, f64)> {
    let mut mean = None;
    let keep = |(x, y): &(f64, f64)| {
        let next = mean.map_or(*y, |mean: f64| 0.9 * mean + 0.1 * y);
        mean = Some(next);
        (*x, next)
    };
    points.iter().map(keep).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_resumed_log_drops_what_is_done_again() {
        let dir = tempfile::tempdir().unwrap();
        let report = |step| StepReport {
            step,
            loss: 3.0 / step as f64,
            ce: 1.0,
            acceptance: 0.5,
            bce: 0.1,
            hits: vec![0.5, 0.25],
            learning_rate: 1e-3,
            rows: 10,
            tokens: 20,
            seconds: (1.0, 0.25),
        };
        let mut journal = Journal::open(dir.path(), 0).unwrap();
        for step in 1..=4 {
            journal.step(&report(step)).unwrap();
        }
        journal.measurement(4, &Acceptance::new(2)).unwrap();
        let mut resumed = Journal::open(dir.path(), 2).unwrap();
        resumed.step(&report(3)).unwrap();
        resumed.measurement(3, &Acceptance::new(2)).unwrap();
        let text = std::fs::read_to_string(dir.path().join("log.jsonl")).unwrap();
        let steps: Vec<_> =
            text.lines().map(|line| serde_json::from_str::<Value>(line).unwrap()["step"].clone()).collect();
        assert_eq!(steps, [1, 2, 3, 3]);
        resumed.draw(dir.path()).unwrap();
        let image = std::fs::read(dir.path().join("training.png")).unwrap();
        assert!(image.starts_with(b"\x89PNG"));
    }
}
