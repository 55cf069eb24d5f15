//! How far something is: a bar on a terminal, otherwise a line every few seconds.

use std::io::IsTerminal;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};

/// Time between two plain lines.
const LINE_INTERVAL: Duration = Duration::from_secs(10);

/// Whether anybody wants to see it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Show {
    /// On standard error.
    Stderr,
    /// Nowhere.
    Nothing,
}

/// Shows how many of some things are done.
pub struct Progress {
    verb: &'static str,
    total: usize,
    look: Look,
}

enum Look {
    Bar(ProgressBar),
    /// When the last line was printed.
    Lines(Instant),
    Silent,
}

impl Progress {
    /// Of `total` things, none of which is done yet.
    pub fn new(verb: &'static str, total: usize, show: Show) -> Self {
        let look = match show {
            Show::Nothing => Look::Silent,
            Show::Stderr if std::io::stderr().is_terminal() => Look::Bar(bar(verb, total)),
            Show::Stderr => Look::Lines(Instant::now()),
        };
        Progress { verb, total, look }
    }

    /// So many are done.
    pub fn at(&mut self, done: usize, note: &str) {
        match &mut self.look {
            Look::Silent => {}
            Look::Bar(bar) => {
                bar.set_position(done as u64);
                bar.set_message(note.to_owned());
            }
            Look::Lines(last) if last.elapsed() >= LINE_INTERVAL || done == self.total => {
                *last = Instant::now();
                eprintln!("{}: {done} of {}; {note}", self.verb, self.total);
            }
            Look::Lines(_) => {}
        }
    }

    /// Something worth a line of its own.
    pub fn say(&self, text: &str) {
        match &self.look {
            Look::Silent => {}
            Look::Bar(bar) => bar.println(text),
            Look::Lines(_) => eprintln!("{text}"),
        }
    }

    /// Leaves the terminal tidy.
    pub fn finish(self) {
        if let Look::Bar(bar) = self.look {
            bar.finish_and_clear();
        }
    }
}

fn bar(verb: &'static str, total: usize) -> ProgressBar {
    let bar = ProgressBar::new(total as u64);
    match ProgressStyle::with_template("{prefix} [{bar:40}] {pos}/{len} {eta} {msg}") {
        Ok(style) => bar.with_style(style).with_prefix(verb),
        Err(_) => bar,
    }
}
