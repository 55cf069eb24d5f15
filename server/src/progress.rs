//! Shows how far loading has come: a bar on a terminal; otherwise a plain line at the end of each stage and, while it
//! takes longer, every second.

use std::io::IsTerminal;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};
use perilune_weights::{Progress, Stage};

/// Time between two plain lines.
const LINE_INTERVAL: Duration = Duration::from_secs(1);

/// Renders [`Progress`] reports to standard error.
pub struct LoadProgress {
    look: Look,
    stage: Option<Stage>,
}

enum Look {
    Bar(ProgressBar),
    /// When the last line was printed, or the display was made.
    Lines(Instant),
    Silent,
}

/// Whether anybody wants to see it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Show {
    /// On standard error.
    Stderr,
    /// Nowhere.
    Nothing,
}

impl LoadProgress {
    /// A display that has shown nothing yet.
    pub fn new(show: Show) -> Self {
        let look = match show {
            Show::Nothing => Look::Silent,
            Show::Stderr if std::io::stderr().is_terminal() => Look::Bar(bar()),
            Show::Stderr => Look::Lines(Instant::now()),
        };
        LoadProgress { look, stage: None }
    }

    /// Shows a report.
    pub fn report(&mut self, progress: Progress) {
        let begins = self.stage != Some(progress.stage);
        self.stage = Some(progress.stage);
        match &mut self.look {
            Look::Silent => {}
            Look::Bar(bar) => {
                if begins {
                    bar.reset();
                    bar.set_message(verb(progress.stage));
                }
                bar.set_length(progress.bytes_total);
                bar.set_position(progress.bytes_done);
            }
            Look::Lines(last) => {
                let done = progress.tensors_done == progress.tensors_total;
                if done || last.elapsed() >= LINE_INTERVAL {
                    *last = Instant::now();
                    eprintln!("{}", line(progress));
                }
            }
        }
    }

    /// Leaves the terminal tidy.
    pub fn finish(self) {
        if let Look::Bar(bar) = self.look {
            bar.finish_and_clear();
        }
    }
}

fn bar() -> ProgressBar {
    let bar = ProgressBar::new(0);
    let template = "{msg} [{bar:40}] {bytes}/{total_bytes} {bytes_per_sec} {eta}";
    match ProgressStyle::with_template(template) {
        Ok(style) => bar.with_style(style),
        Err(_) => bar,
    }
}

fn verb(stage: Stage) -> &'static str {
    match stage {
        Stage::Checking => "checking weights",
        Stage::Loading => "loading weights",
    }
}

fn line(progress: Progress) -> String {
    format!(
        "{}: {} of {} tensors, {:.1} of {:.1} MB",
        verb(progress.stage),
        progress.tensors_done,
        progress.tensors_total,
        progress.bytes_done as f64 / 1e6,
        progress.bytes_total as f64 / 1e6
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_says_how_far() {
        let mut progress = Progress::start(Stage::Loading, 4, 8_000_000);
        progress.tensors_done = 3;
        progress.bytes_done = 6_000_000;
        assert_eq!(line(progress), "loading weights: 3 of 4 tensors, 6.0 of 8.0 MB");
    }
}
