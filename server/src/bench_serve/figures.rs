//! What the outcomes of a load come to: rates, percentiles, and how many requests met their goals.

use std::time::Duration;

use crate::bench_serve::load::Outcome;
use crate::cli::BenchServeArgs;

/// Times of one kind, in milliseconds.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub(super) struct Spread {
    /// Arithmetic mean.
    pub mean: f64,
    /// Half are below.
    pub p50: f64,
    /// Nine in ten are below.
    pub p90: f64,
    /// Ninety-nine in a hundred are below.
    pub p99: f64,
    /// The longest.
    pub max: f64,
}

impl Spread {
    /// Of some times; zeros of none.
    pub(super) fn of(mut times: Vec<f64>) -> Self {
        times.sort_by(f64::total_cmp);
        let Some(max) = times.last().copied() else { return Spread::default() };
        // The nearest rank, so that every figure is a time that was measured.
        let rank = |share: f64| times[((share * times.len() as f64).ceil() as usize).clamp(1, times.len()) - 1];
        let mean = times.iter().sum::<f64>() / times.len() as f64;
        Spread { mean, p50: rank(0.5), p90: rank(0.9), p99: rank(0.99), max }
    }
}

/// A load in figures.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Figures {
    /// Requests that ended well.
    pub completed: usize,
    /// What the others failed with, and how often.
    pub failures: Vec<(String, usize)>,
    /// From the first planned request to the last end.
    pub seconds: f64,
    /// Tokens of prompts and of answers.
    pub tokens: (usize, usize),
    /// Time to the first text.
    pub ttft: Spread,
    /// Time between pieces of text.
    pub itl: Spread,
    /// Time per token after the first, by request.
    pub tpot: Spread,
    /// Time to the whole answer.
    pub e2e: Spread,
    /// Completed requests that met all goals, where there are any.
    pub good: Option<usize>,
}

impl Figures {
    /// Sums up.
    pub(super) fn of(outcomes: &[Outcome], args: &BenchServeArgs) -> Self {
        let done: Vec<&Outcome> = outcomes.iter().filter(|outcome| outcome.error.is_none()).collect();
        let mut failures: Vec<(String, usize)> = Vec::new();
        for error in outcomes.iter().filter_map(|outcome| outcome.error.as_ref()) {
            match failures.iter_mut().find(|(known, _)| known == error) {
                Some((_, count)) => *count += 1,
                None => failures.push((error.clone(), 1)),
            }
        }
        let end = outcomes.iter().map(|outcome| outcome.planned + outcome.ended).max().unwrap_or_default();
        let goals = args.goal_ttft_ms.is_some() || args.goal_itl_ms.is_some();
        let met = |time: Option<f64>, goal: Option<f64>| goal.is_none_or(|goal| time.is_some_and(|time| time <= goal));
        let good = |outcome: &&&Outcome| {
            met(first(outcome), args.goal_ttft_ms) && met(per_token(outcome).or(Some(0.0)), args.goal_itl_ms)
        };
        Figures {
            completed: done.len(),
            failures,
            seconds: end.as_secs_f64(),
            tokens: done.iter().fold((0, 0), |sum, outcome| (sum.0 + outcome.tokens.0, sum.1 + outcome.tokens.1)),
            ttft: Spread::of(done.iter().filter_map(|outcome| first(outcome)).collect()),
            itl: Spread::of(done.iter().flat_map(|outcome| gaps(outcome)).collect()),
            tpot: Spread::of(done.iter().filter_map(|outcome| per_token(outcome)).collect()),
            e2e: Spread::of(done.iter().map(|outcome| ms(outcome.ended)).collect()),
            good: goals.then(|| done.iter().filter(good).count()),
        }
    }

    /// Something per second of the load.
    pub(super) fn per_second(&self, count: usize) -> f64 {
        if self.seconds > 0.0 { count as f64 / self.seconds } else { 0.0 }
    }
}

pub(super) fn ms(time: Duration) -> f64 {
    time.as_secs_f64() * 1000.0
}

/// Time to the first text, in ms.
pub(super) fn first(outcome: &Outcome) -> Option<f64> {
    outcome.pieces.first().copied().map(ms)
}

fn gaps(outcome: &Outcome) -> Vec<f64> {
    outcome.pieces.windows(2).map(|pair| ms(pair[1].saturating_sub(pair[0]))).collect()
}

/// Time per token after the first, in ms.
fn per_token(outcome: &Outcome) -> Option<f64> {
    let (first, last) = (outcome.pieces.first()?, outcome.pieces.last()?);
    (outcome.tokens.1 > 1).then(|| ms(last.saturating_sub(*first)) / (outcome.tokens.1 - 1) as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_times_that_were_measured() {
        assert_eq!(Spread::of(vec![]), Spread::default());
        let spread = Spread::of((1..=100).rev().map(f64::from).collect());
        assert_eq!(spread, Spread { mean: 50.5, p50: 50.0, p90: 90.0, p99: 99.0, max: 100.0 });
        let one = Spread::of(vec![3.0]);
        assert_eq!((one.p50, one.p99), (3.0, 3.0));
    }

    #[test]
    fn goals_and_failures_are_counted() {
        use clap::Parser;
        let line = ["perilune", "bench-serve", "--goal-ttft-ms", "10", "--goal-itl-ms", "6"];
        let Some(crate::cli::Command::BenchServe(args)) = crate::cli::Cli::try_parse_from(line).unwrap().command else {
            panic!("another command")
        };
        let at = Duration::from_millis;
        let outcome = |pieces: &[u64], error: Option<&str>| Outcome {
            planned: at(100),
            tokens: (5, pieces.len()),
            pieces: pieces.iter().map(|ms| at(*ms)).collect(),
            ended: at(900),
            error: error.map(str::to_owned),
        };
        let all = [
            outcome(&[9, 15, 20], None),
            outcome(&[11, 12], None),
            outcome(&[5, 25], None),
            outcome(&[], Some("no")),
            outcome(&[], Some("no")),
        ];
        let figures = Figures::of(&all, &args);
        assert_eq!((figures.completed, figures.good), (3, Some(1)));
        assert_eq!(figures.failures, [("no".to_owned(), 2)]);
        assert_eq!((figures.seconds, figures.tokens, figures.per_second(3)), (1.0, (15, 7), 3.0));
        assert_eq!((figures.ttft.p50, figures.itl.max, figures.e2e.p99), (9.0, 20.0, 900.0));
    }
}
