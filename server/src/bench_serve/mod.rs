//! `perilune bench-serve`: an open-loop load against any OpenAI-compatible server, with the field's metrics.
//!
//! Open loop: requests begin at times drawn beforehand (Poisson), whether earlier ones have ended or not, so that a server
//! that falls behind is seen to. `load` sends and times, `figures` sums up, `report` prints, as a table, JSON and one HTML
//! page.

mod figures;
mod load;
mod report;

use std::io::IsTerminal;

use indicatif::{ProgressBar, ProgressStyle};

use crate::cli::BenchServeArgs;
use crate::error::ServerError;

/// Runs the load; the report to print.
///
/// # Errors
/// `Answer` where the server cannot be reached at the start; `Io` where the HTML page cannot be written.
pub fn run(args: &BenchServeArgs) -> Result<String, ServerError> {
    let plan = load::Plan::of(args)?;
    let bar = progress(plan.starts.len());
    let outcomes = load::run(&plan, &|| bar.inc(1));
    bar.finish_and_clear();
    let figures = figures::Figures::of(&outcomes, args);
    if let Some(path) = &args.html {
        let io = |source| ServerError::Io { what: format!("cannot write {}", path.display()), source };
        std::fs::write(path, report::html(&figures, &outcomes, args)).map_err(io)?;
    }
    Ok(if args.json { report::json(&figures, args) } else { report::table(&figures, args) })
}

fn progress(count: usize) -> ProgressBar {
    if !std::io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let style = ProgressStyle::with_template("{bar:40} {pos}/{len} requests, {elapsed} elapsed, {eta} left");
    ProgressBar::new(count as u64).with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()))
}
