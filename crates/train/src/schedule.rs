//! What each step does, as a function of the seed and the step alone: a resumed run goes on as if it had never stopped.

use rand::rngs::StdRng;
use rand::seq::{SliceRandom, index};
use rand::{RngExt, SeedableRng};

/// Numbers of a training that decide its course.
#[derive(Debug, Clone, PartialEq)]
pub struct Schedule {
    /// Steps in all.
    pub steps: usize,
    /// Sequences per step.
    pub batch: usize,
    /// Anchors per sequence, fewer where an answer is shorter.
    pub anchors: usize,
    /// Learning rate after the warm-up.
    pub learning_rate: f64,
    /// Steps over which it rises from 0.
    pub warmup: usize,
    /// Of order, anchors and first weights.
    pub seed: u64,
}

/// At the end the learning rate is this part of its height.
const FLOOR: f64 = 0.03;

impl Schedule {
    /// Learning rate of a step: a rise, then half a cosine.
    pub fn learning_rate(&self, step: usize) -> f64 {
        if step < self.warmup {
            return self.learning_rate * (step + 1) as f64 / self.warmup as f64;
        }
        let span = self.steps.saturating_sub(self.warmup).max(1) as f64;
        let way = ((step - self.warmup) as f64 / span).min(1.0);
        let cosine = 0.5 * (1.0 + (way * std::f64::consts::PI).cos());
        self.learning_rate * (FLOOR + (1.0 - FLOOR) * cosine)
    }

    /// Which of `count` sequences a step takes: every epoch has its own order.
    pub fn sequences(&self, step: usize, count: usize) -> Vec<usize> {
        let places = (step * self.batch..(step + 1) * self.batch).map(|n| (n / count.max(1), n % count.max(1)));
        let mut order: Option<(usize, Vec<usize>)> = None;
        let pick = |(epoch, at): (usize, usize)| {
            if order.as_ref().is_none_or(|(known, _)| *known != epoch) {
                let mut fresh: Vec<usize> = (0..count).collect();
                fresh.shuffle(&mut self.random(1, epoch as u64));
                order = Some((epoch, fresh));
            }
            order.as_ref().and_then(|(_, order)| order.get(at).copied())
        };
        places.filter_map(pick).collect()
    }

    /// Anchors of the n-th sequence of a step, rising.
    pub fn anchors(&self, (step, nth): (usize, usize), range: std::ops::Range<usize>) -> Vec<usize> {
        let wanted = self.anchors.min(range.len());
        let mut random = self.random(2, (step * self.batch + nth) as u64);
        let mut anchors: Vec<usize> =
            index::sample(&mut random, range.len(), wanted).into_iter().map(|at| range.start + at).collect();
        anchors.sort_unstable();
        anchors
    }

    fn random(&self, purpose: u64, number: u64) -> StdRng {
        let mut seed = [0; 32];
        let words = [self.seed, purpose, number, 0].map(u64::to_le_bytes);
        seed.chunks_exact_mut(8).zip(words).for_each(|(to, word)| to.copy_from_slice(&word));
        let mut first = StdRng::from_seed(seed);
        StdRng::seed_from_u64(first.random())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn schedule() -> Schedule {
        Schedule { steps: 100, batch: 4, anchors: 5, learning_rate: 1.0, warmup: 10, seed: 3 }
    }

    #[test]
    fn the_rate_rises_and_falls() {
        let schedule = schedule();
        assert_eq!(schedule.learning_rate(0), 0.1);
        assert_eq!(schedule.learning_rate(9), 1.0);
        assert!((schedule.learning_rate(55) - 0.515).abs() < 1e-9);
        assert!((schedule.learning_rate(100) - FLOOR).abs() < 1e-12);
        assert!((schedule.learning_rate(1000) - FLOOR).abs() < 1e-12);
    }

    #[test]
    fn an_epoch_takes_every_sequence_once() {
        let schedule = schedule();
        let taken = |epoch: usize| {
            // 6 sequences, 4 a step: two epochs are three steps.
            let all: Vec<usize> = (0..3).flat_map(|step| schedule.sequences(step, 6)).collect();
            all[6 * epoch..6 * epoch + 6].to_vec()
        };
        for epoch in [0, 1] {
            let mut order = taken(epoch);
            order.sort_unstable();
            assert_eq!(order, [0, 1, 2, 3, 4, 5]);
        }
        assert_ne!(taken(0), taken(1));
        assert_eq!(schedule.sequences(1, 6), schedule.sequences(1, 6));
    }

    #[test]
    fn anchors_are_distinct_and_within_the_answer() {
        let schedule = schedule();
        let anchors = schedule.anchors((7, 1), 20..60);
        assert_eq!(anchors.len(), 5);
        assert!(anchors.is_sorted_by(|a, b| a < b) && anchors[0] >= 20 && anchors[4] < 60);
        assert_ne!(anchors, schedule.anchors((7, 2), 20..60));
        assert_eq!(schedule.anchors((7, 1), 20..23), [20, 21, 22]);
        assert!(schedule.anchors((7, 1), 20..20).is_empty());
    }
}
