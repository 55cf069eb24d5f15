//! Where a sequence's state is worth saving: planned from what is known, not at a blind interval.

/// Places named by a request that are looked at: a state is as large as thousands of tokens.
const MAX_HINTS: usize = 4;

/// When states are saved.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CheckpointRules {
    /// Besides all other places, every so many tokens; 0 for never.
    pub interval: usize,
    /// Places closer than this to the one before are left out: saving them would save too little.
    pub least_gap: usize,
}

/// The positions at which a sequence's state is to be saved.
#[derive(Debug, Clone, Default)]
pub struct PlannedPositions {
    /// Rising.
    fixed: Vec<usize>,
    interval: usize,
}

/// What is known of a sequence when it starts.
#[derive(Debug, Clone, Copy)]
pub struct Known<'a> {
    /// Places that its author named, the best first: the end of the system prompt, of a tool declaration, of the last turn.
    /// No more than four count.
    pub hints: &'a [usize],
    /// Tokens that it has already.
    pub cached: usize,
    /// Tokens that agree with a stored sequence whose state was not saved there.
    pub fork: usize,
    /// Tokens of its prompt.
    pub prompt_len: usize,
}

impl CheckpointRules {
    /// The places for a sequence that starts now.
    pub fn places(self, known: Known<'_>) -> PlannedPositions {
        PlannedPositions::new(self, known)
    }
}

impl PlannedPositions {
    /// Forks come first, as somebody else has been there; then the hints in their order, and the end of the prompt.
    pub(crate) fn new(rules: CheckpointRules, known: Known<'_>) -> Self {
        let Known { hints, cached, fork, prompt_len } = known;
        // One token of a prompt is always computed, so a state after all of them would never be used.
        let last = prompt_len.saturating_sub(1);
        let mut fixed: Vec<usize> = Vec::new();
        let within = |position: &usize| (cached + 1..=last).contains(position);
        let hints = hints.iter().take(MAX_HINTS).copied();
        let candidates = [fork].into_iter().chain(hints).chain([last]);
        for position in candidates.filter(within) {
            let near = |other: usize| position.abs_diff(other) < rules.least_gap;
            if !near(cached) && !fixed.iter().any(|other| near(*other)) {
                fixed.push(position);
            }
        }
        fixed.sort_unstable();
        PlannedPositions { fixed, interval: rules.interval }
    }

    /// Adds a place.
    pub(crate) fn add(&mut self, position: usize) {
        if let Err(place) = self.fixed.binary_search(&position) {
            self.fixed.insert(place, position);
        }
    }

    /// Whether a place was planned by name.
    pub(crate) fn contains(&self, position: usize) -> bool {
        self.fixed.binary_search(&position).is_ok()
    }

    /// The places in `start + 1 ..= end`, rising.
    pub fn between(&self, start: usize, end: usize) -> Vec<usize> {
        let mut all: Vec<usize> = self.fixed.iter().copied().filter(|p| (start + 1..=end).contains(p)).collect();
        if let Some(passed) = start.checked_div(self.interval) {
            all.extend(((passed + 1) * self.interval..=end).step_by(self.interval));
            all.sort_unstable();
            all.dedup();
        }
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RULES: CheckpointRules = CheckpointRules { interval: 0, least_gap: 16 };

    fn positions(rules: CheckpointRules, known: Known<'_>) -> Vec<usize> {
        PlannedPositions::new(rules, known).between(known.cached, 10_000)
    }

    #[test]
    fn ends_of_turns_and_of_the_prompt() {
        let known = Known { hints: &[100, 495], cached: 0, fork: 0, prompt_len: 500 };
        assert_eq!(positions(RULES, known), [100, 495], "the end of the prompt is next to the end of a turn");
        assert_eq!(positions(RULES, Known { prompt_len: 600, ..known }), [100, 495, 599]);
        assert_eq!(positions(RULES, Known { cached: 100, ..known }), [495], "what is cached is not saved again");
        assert_eq!(positions(RULES, Known { cached: 90, ..known }), [495]);
        assert_eq!(
            positions(RULES, Known { hints: &[490, 500, 120], ..known }),
            [120, 490],
            "the better of two near ones"
        );
        let many = [50, 100, 150, 200, 250];
        assert_eq!(positions(RULES, Known { hints: &many, ..known }), [50, 100, 150, 200, 499], "states are large");
        assert_eq!(positions(RULES, Known { hints: &[], prompt_len: 10, ..known }), [0; 0], "too short to be worth it");
        assert_eq!(
            positions(RULES, Known { hints: &[500, 900], ..known }),
            [499],
            "hints past the end count for nothing"
        );
    }

    #[test]
    fn a_fork_wins_over_what_is_near() {
        let known = Known { hints: &[300, 100], cached: 0, fork: 110, prompt_len: 500 };
        assert_eq!(positions(RULES, known), [110, 300, 499]);
    }

    #[test]
    fn an_interval_adds_its_multiples_in_the_answer_too() {
        let rules = CheckpointRules { interval: 4000, ..RULES };
        let known = Known { hints: &[], cached: 0, fork: 0, prompt_len: 500 };
        assert_eq!(positions(rules, known), [499, 4000, 8000]);
        assert_eq!(PlannedPositions::new(rules, known).between(4000, 7999), [0; 0]);
    }
}
