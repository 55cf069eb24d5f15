//! How many tokens are worth drafting and verifying: as many as make the step's tokens per second largest, from measured
//! acceptance and measured times, and none at all where drafting does not pay.
//!
//! Pure bookkeeping: the caller measures and says what it measured.

use std::collections::HashMap;
use std::hash::Hash;
use std::time::Duration;

use crate::cost::Table;

/// How the number of drafts is chosen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DraftLengths {
    /// Always as many as allowed.
    Fixed,
    /// As many as pay.
    Adaptive,
}

/// What a step has to compute besides drafts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Load {
    /// Sequences that may have drafts.
    pub sequences: usize,
    /// Token rows without any draft, those of `sequences` included.
    pub rows: usize,
    /// Tokens that all sequences of the step have behind them.
    pub context: usize,
}

/// What a step took.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Costs {
    /// Its load.
    pub load: Load,
    /// Drafts that were verified, all sequences together.
    pub drafts: usize,
    /// Drafting; zero where nothing was drafted.
    pub drafting: Duration,
    /// Everything else.
    pub target: Duration,
}

/// Chances of a sequence's drafts to be kept, in order: `s_j`, that the first `j + 1` are.
#[derive(Debug, Clone, PartialEq)]
pub struct Survival(pub Vec<f64>);

/// What became of one proposal.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Outcome<'a> {
    /// How many of its drafts were verified, from the first one on.
    pub verified: usize,
    /// How many of those were kept.
    pub kept: usize,
    /// What the draft itself believed of each of its drafts, verified or not, given those before are kept; empty where it
    /// cannot tell.
    pub confidence: &'a [f32],
}

/// The least weight of a new measurement among old ones.
const FORGET: f64 = 0.05;
/// What is believed of a sequence before anything was measured, as if it had been measured so often.
const PRIOR_WEIGHT: f64 = 4.0;
/// A length that does not seem to pay is tried again after so many steps at first, then after twice as many each time.
const FIRST_RETRY: u64 = 128;
const LAST_RETRY: u64 = 2048;

/// Chooses lengths for sequences `K`.
#[derive(Debug)]
pub struct LengthPolicy<K> {
    max_drafts: usize,
    lengths: DraftLengths,
    sequences: HashMap<K, Kept>,
    /// All sequences together: what a new one starts from.
    all: Kept,
    /// By place, over drafts that were verified: what the draft believed and what came.
    calibration: Vec<(f64, f64)>,
    target: Table,
    drafting: Table,
    /// How slow the machine is now, against what the tables say: whatever else runs there slows every step down, and not
    /// every size is measured all the time.
    slowness: f64,
    clock: u64,
    retry_at: u64,
    retry_after: u64,
}

/// How often drafts at each place were kept, given those before were.
#[derive(Debug, Clone)]
struct Kept {
    tried: Vec<f64>,
    kept: Vec<f64>,
    seen: u64,
}

impl Kept {
    fn new(max_drafts: usize) -> Self {
        Kept { tried: vec![0.0; max_drafts], kept: vec![0.0; max_drafts], seen: 0 }
    }

    /// Drafts that were left out count by what is believed of them: they were left out because little was, so those that
    /// were verified alone would give too good a picture.
    fn note(&mut self, (verified, kept): (usize, usize), beliefs: &[f64]) {
        let places = self.tried.len();
        for j in 0..verified.min(kept + 1).min(places) {
            self.add(j, (1.0, f64::from(u8::from(j < kept))));
        }
        let mut reached = f64::from(u8::from(kept >= verified));
        for (j, belief) in beliefs.iter().enumerate().take(places).skip(verified) {
            self.add(j, (reached, reached * belief));
            reached *= belief;
        }
    }

    fn add(&mut self, j: usize, (tried, kept): (f64, f64)) {
        let old = 1.0 - FORGET * tried;
        self.tried[j] = self.tried[j] * old + tried;
        self.kept[j] = self.kept[j] * old + kept;
    }

    /// Chance at place `j`, leaning on `prior` while little was seen.
    fn rate(&self, j: usize, prior: f64) -> f64 {
        (self.kept[j] + PRIOR_WEIGHT * prior) / (self.tried[j] + PRIOR_WEIGHT)
    }
}

impl<K: Hash + Eq + Copy> LengthPolicy<K> {
    /// Knows nothing yet and believes in drafts.
    pub fn new(max_drafts: usize, lengths: DraftLengths) -> Self {
        LengthPolicy {
            max_drafts,
            lengths,
            sequences: HashMap::new(),
            all: Kept::new(max_drafts),
            calibration: vec![(PRIOR_WEIGHT, PRIOR_WEIGHT); max_drafts],
            target: Table::default(),
            drafting: Table::default(),
            slowness: 1.0,
            clock: 0,
            retry_at: 0,
            retry_after: FIRST_RETRY,
        }
    }

    /// Survival of the first `most` drafts of a sequence, from what was kept so far.
    pub fn survival(&self, sequence: K, most: usize) -> Survival {
        let own = self.sequences.get(&sequence);
        let mut chance = 1.0;
        let survival = (0..most.min(self.max_drafts)).map(|j| {
            let all = self.all.rate(j, 0.8);
            chance *= own.map_or(all, |own| own.rate(j, all));
            chance
        });
        Survival(survival.collect())
    }

    /// Survival by what a draft believes of its own drafts, corrected by how such beliefs have come out.
    pub fn believed(&self, confidence: &[f32]) -> Survival {
        let beliefs = self.beliefs(confidence);
        let survival = beliefs.iter().scan(1.0, |all, belief| {
            *all *= belief;
            Some(*all)
        });
        Survival(survival.collect())
    }

    fn beliefs(&self, confidence: &[f32]) -> Vec<f64> {
        let corrected = |(belief, (believed, came)): (&f32, &(f64, f64))| {
            (f64::from(*belief) * came / believed.max(f64::MIN_POSITIVE)).clamp(0.0, 1.0)
        };
        confidence.iter().zip(&self.calibration).map(corrected).collect()
    }

    /// Before drafting: how many drafts to ask for at most, per sequence; `most` is what each may have.
    pub fn ask(&mut self, sequences: &[(K, usize)], load: Load) -> Vec<usize> {
        let most = || sequences.iter().map(|(_, most)| (*most).min(self.max_drafts));
        if self.lengths == DraftLengths::Fixed {
            return most().collect();
        }
        self.clock += 1;
        if !self.target.knows((load.rows, load.context), self.clock) {
            return vec![0; sequences.len()];
        }
        let survivals: Vec<Survival> = sequences.iter().map(|(key, most)| self.survival(*key, *most)).collect();
        let drafting = self.drafting.seconds(load.sequences, load.context).unwrap_or(0.0);
        let lengths = self.choose(&survivals, load, drafting);
        if lengths.iter().any(|n| *n > 0) {
            self.retry_after = FIRST_RETRY;
            self.retry_at = self.clock + self.retry_after;
            // One more than is likely to pay: the draft itself may know better.
            return most().zip(lengths).map(|(most, n)| if n == 0 { 0 } else { most.min(n + 1) }).collect();
        }
        if self.clock < self.retry_at {
            return vec![0; sequences.len()];
        }
        // Only a trial tells whether it still does not pay.
        self.retry_at = self.clock + self.retry_after;
        self.retry_after = (2 * self.retry_after).min(LAST_RETRY);
        most().map(|most| most.min(2)).collect()
    }

    /// After drafting: how many drafts of each sequence to verify.
    pub fn trim(&self, survivals: &[Survival], load: Load) -> Vec<usize> {
        if self.lengths == DraftLengths::Fixed || !self.target.knows_slope() {
            return survivals.iter().map(|survival| survival.0.len()).collect();
        }
        self.choose(survivals, load, 0.0)
    }

    /// Of the drafts in falling order of survival, takes as many as give most tokens per second;
    /// `drafting` is what is still to be paid for them, in seconds, if there are any.
    fn choose(&self, survivals: &[Survival], load: Load, drafting: f64) -> Vec<usize> {
        let mut lengths = vec![0; survivals.len()];
        let mut places: Vec<(f64, usize)> =
            survivals.iter().enumerate().flat_map(|(i, s)| s.0.iter().map(move |chance| (*chance, i))).collect();
        // A later place of a sequence never has a larger chance, and the sort is stable: prefixes stay prefixes.
        places.sort_by(|a, b| b.0.total_cmp(&a.0));
        let Some(plain) = self.target.seconds(load.rows, load.context) else {
            survivals.iter().zip(&mut lengths).for_each(|(s, n)| *n = s.0.len());
            return lengths;
        };
        let mut tokens = load.sequences as f64;
        let (mut best, mut best_rate) = (0, tokens / plain);
        for (n, (chance, _)) in places.iter().enumerate() {
            tokens += chance;
            let Some(seconds) = self.target.seconds(load.rows + n + 1, load.context) else { continue };
            let rate = tokens / (seconds + drafting);
            if rate > best_rate {
                (best, best_rate) = (n + 1, rate);
            }
        }
        places[..best].iter().for_each(|(_, i)| lengths[*i] += 1);
        lengths
    }

    /// Takes in what became of a sequence's drafts.
    pub fn note(&mut self, sequence: K, outcome: Outcome<'_>) {
        let Outcome { verified, kept, confidence } = outcome;
        let beliefs = self.beliefs(confidence);
        for (j, belief) in confidence.iter().enumerate().take(verified.min(kept + 1).min(self.max_drafts)) {
            let (believed, came) = &mut self.calibration[j];
            *believed = *believed * (1.0 - FORGET / 4.0) + f64::from(*belief);
            *came = *came * (1.0 - FORGET / 4.0) + f64::from(u8::from(j < kept));
        }
        self.all.note((verified, kept), &beliefs);
        let max_drafts = self.max_drafts;
        let own = self.sequences.entry(sequence).or_insert_with(|| Kept::new(max_drafts));
        own.note((verified, kept), &beliefs);
        own.seen = self.clock;
        // Sequences end without a word; those not seen for long are forgotten.
        if self.sequences.len() > 4096 {
            let clock = self.clock;
            self.sequences.retain(|_, own| own.seen + 512 > clock);
        }
    }

    /// Takes in what a step took.
    pub fn note_step(&mut self, costs: Costs) {
        let Load { sequences, rows, context } = costs.load;
        let (size, seconds) = ((rows + costs.drafts, context), costs.target.as_secs_f64());
        if let Some(usual) = self.target.usual(size).filter(|usual| *usual > 0.0 && seconds > 0.0) {
            // Half of a change is followed in seven steps.
            self.slowness *= (seconds / (usual * self.slowness)).clamp(0.2, 5.0).powf(0.1);
        }
        self.target.note(size, seconds / self.slowness, self.clock);
        if costs.drafting > Duration::ZERO {
            self.drafting.note((sequences, context), costs.drafting.as_secs_f64() / self.slowness, self.clock);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MICRO: f64 = 1e-6;

    /// A machine that something else slows down threefold for a while, again and again.
    fn slowed(step: usize) -> f64 {
        if (step / 400).is_multiple_of(2) { 1.0 } else { 3.0 }
    }

    /// Plays steps of `sequences` sequences whose drafts are kept with chance `keep` each, on a device that takes
    /// `base + per_row * rows` microseconds a step and `draft` a drafting; returns tokens per second after learning.
    fn play(lengths: DraftLengths, keep: f64, device: (f64, f64, f64), sequences: usize) -> f64 {
        play_on(|_| 1.0, (lengths, keep), device, sequences)
    }

    fn play_on(
        slowness: impl Fn(usize) -> f64,
        (lengths, keep): (DraftLengths, f64),
        (base, per_row, draft): (f64, f64, f64),
        sequences: usize,
    ) -> f64 {
        let mut policy: LengthPolicy<usize> = LengthPolicy::new(7, lengths);
        let load = Load { sequences, rows: sequences, context: 300 * sequences };
        let wanted: Vec<(usize, usize)> = (0..sequences).map(|s| (s, 7)).collect();
        let (mut tokens, mut micros, mut coin) = (0.0, 0.0, 0);
        for step in 0..4000 {
            let asked = policy.ask(&wanted, load);
            let survivals: Vec<Survival> = (0..sequences).map(|s| policy.survival(s, asked[s])).collect();
            let drafts = policy.trim(&survivals, load);
            let drafting = if asked.iter().any(|n| *n > 0) { draft } else { 0.0 };
            let target = base + per_row * (sequences + drafts.iter().sum::<usize>()) as f64;
            for (s, n) in drafts.iter().enumerate() {
                let kept = (0..*n).take_while(|_| {
                    coin += 1;
                    perilune_backend::uniform(9, coin) < keep
                });
                let kept = kept.count();
                policy.note(s, Outcome { verified: *n, kept, confidence: &[] });
                tokens += if step >= 1000 { 1.0 + kept as f64 } else { 0.0 };
            }
            let (drafting, target) = (drafting * slowness(step), target * slowness(step));
            let time = |us: f64| Duration::from_secs_f64(us * MICRO);
            let drafts = drafts.iter().sum();
            policy.note_step(Costs { load, drafts, drafting: time(drafting), target: time(target) });
            micros += if step >= 1000 { drafting + target } else { 0.0 };
        }
        tokens / micros / MICRO
    }

    fn plain((base, per_row, _): (f64, f64, f64), sequences: usize) -> f64 {
        sequences as f64 / (base + per_row * sequences as f64) / MICRO
    }

    #[test]
    fn a_useless_draft_costs_next_to_nothing() {
        for sequences in [1, 4, 16] {
            let device = (1000.0, 100.0, 300.0);
            let rate = play(DraftLengths::Adaptive, 0.02, device, sequences) / plain(device, sequences);
            assert!(rate > 0.98, "{sequences}: {rate}");
        }
    }

    #[test]
    fn a_machine_that_is_busy_for_a_while_misleads_nobody() {
        // Drafts nearly pay: whoever compares times of different moments is wrong half of the time.
        let device = (1000.0, 300.0, 1000.0);
        for keep in [0.5, 0.7] {
            let adaptive = play_on(slowed, (DraftLengths::Adaptive, keep), device, 1);
            let never = play_on(slowed, (DraftLengths::Adaptive, 0.0), device, 1);
            assert!(adaptive > 0.97 * never, "{keep}: {adaptive} against {never}");
        }
        let good = (1000.0, 20.0, 100.0);
        let adaptive = play_on(slowed, (DraftLengths::Adaptive, 0.9), good, 1);
        let fixed = play_on(slowed, (DraftLengths::Fixed, 0.9), good, 1);
        assert!(adaptive > 0.95 * fixed, "{adaptive} against {fixed}");
    }

    #[test]
    fn a_good_draft_is_used_where_rows_are_cheap() {
        let device = (1000.0, 20.0, 100.0);
        let adaptive = play(DraftLengths::Adaptive, 0.9, device, 1);
        let fixed = play(DraftLengths::Fixed, 0.9, device, 1);
        assert!(adaptive > 0.97 * fixed && fixed > 3.0 * plain(device, 1), "{adaptive} {fixed}");
    }

    #[test]
    fn where_rows_cost_lengths_shrink_and_beat_fixed_ones() {
        // At 16 sequences every row costs as much as a sixteenth of the step.
        let device = (400.0, 100.0, 100.0);
        let adaptive = play(DraftLengths::Adaptive, 0.7, device, 16);
        let fixed = play(DraftLengths::Fixed, 0.7, device, 16);
        assert!(adaptive > 1.2 * fixed, "{adaptive} {fixed}");
        assert!(adaptive > 0.99 * plain(device, 16), "{adaptive} {}", plain(device, 16));
    }

    #[test]
    fn drafts_left_out_for_want_of_belief_do_not_make_the_rest_look_better() {
        let mut policy: LengthPolicy<usize> = LengthPolicy::new(3, DraftLengths::Adaptive);
        // Half of the proposals are worth verifying, and those are right; the draft knows which.
        for i in 0..400 {
            let good = i % 2 == 0;
            let (verified, confidence) = if good { (1, [1.0, 0.1, 0.1]) } else { (0, [0.0, 0.0, 0.0]) };
            policy.note(0, Outcome { verified, kept: verified, confidence: &confidence });
        }
        let Survival(survival) = policy.survival(0, 3);
        assert!((survival[0] - 0.5).abs() < 0.1 && survival[1] < 0.12, "{survival:?}");
    }

    #[test]
    fn a_draft_that_believes_too_much_is_corrected() {
        let mut policy: LengthPolicy<usize> = LengthPolicy::new(2, DraftLengths::Adaptive);
        for i in 0..400 {
            policy.note(0, Outcome { verified: 1, kept: i % 2, confidence: &[0.9, 0.9] });
        }
        let Survival(believed) = policy.believed(&[0.9, 0.9]);
        assert!((believed[0] - 0.5).abs() < 0.1, "{believed:?}");
    }
}
