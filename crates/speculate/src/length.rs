//! How many tokens are worth drafting and verifying: as many as make the step's tokens per second largest, from measured
//! acceptance and measured times, and none at all where drafting does not pay.
//!
//! Pure bookkeeping: the caller measures and says what it measured.

use std::collections::HashMap;
use std::hash::Hash;
use std::time::Duration;

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
/// A step without drafts is measured so often at first, and again once it was not for so many steps.
const PLAIN_AT_FIRST: f64 = 3.0;
const PLAIN_EVERY: u64 = 256;

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
        let lengths = self.choose(&survivals, load, true);
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
        self.choose(survivals, load, false)
    }

    /// Of the drafts in falling order of survival, takes as many as give most tokens per second.
    fn choose(&self, survivals: &[Survival], load: Load, undrafted: bool) -> Vec<usize> {
        let mut lengths = vec![0; survivals.len()];
        let mut places: Vec<(f64, usize)> =
            survivals.iter().enumerate().flat_map(|(i, s)| s.0.iter().map(move |chance| (*chance, i))).collect();
        // A later place of a sequence never has a larger chance, and the sort is stable: prefixes stay prefixes.
        places.sort_by(|a, b| b.0.total_cmp(&a.0));
        let Some(plain) = self.target.seconds(load.rows, load.context) else {
            survivals.iter().zip(&mut lengths).for_each(|(s, n)| *n = s.0.len());
            return lengths;
        };
        let drafting = self.drafting.seconds(load.sequences, load.context).unwrap_or(0.0);
        let mut tokens = load.sequences as f64;
        let fixed = if undrafted { drafting } else { 0.0 };
        let (mut best, mut best_rate) = (0, tokens / plain);
        for (n, (chance, _)) in places.iter().enumerate() {
            tokens += chance;
            let Some(seconds) = self.target.seconds(load.rows + n + 1, load.context) else { continue };
            let rate = tokens / (seconds + fixed);
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

/// Seconds as they depend on rows and context: measured averages in cells that double in size, and a straight line over
/// rows through them where nothing was measured.
#[derive(Debug, Default)]
struct Table {
    cells: HashMap<(usize, u32), Cell>,
}

#[derive(Debug, Clone, Copy)]
struct Cell {
    seconds: f64,
    weight: f64,
    /// Step of the last measurement.
    at: u64,
}

/// Rows up to this have a cell each; beyond, sixteen cells per doubling.
const FINE_ROWS: usize = 32;

fn rows_cell(rows: usize) -> usize {
    if rows <= FINE_ROWS {
        return rows;
    }
    let step = (rows.next_power_of_two() / FINE_ROWS).max(1);
    rows / step * step
}

impl Table {
    fn note(&mut self, (rows, context): (usize, usize), seconds: f64, clock: u64) {
        let place = (rows_cell(rows), context_cell(context));
        let cell = self.cells.entry(place).or_insert(Cell { seconds, weight: 0.0, at: clock });
        cell.at = clock;
        cell.weight = (cell.weight + 1.0).min(1.0 / FORGET);
        // A step that was disturbed is not to move the picture much.
        let bounded = if cell.weight > 3.0 { seconds.min(4.0 * cell.seconds) } else { seconds };
        cell.seconds += (bounded - cell.seconds) / cell.weight;
    }

    /// What steps of this size take, where that was measured a few times.
    fn usual(&self, (rows, context): (usize, usize)) -> Option<f64> {
        let cell = self.cells.get(&(rows_cell(rows), context_cell(context)))?;
        (cell.weight >= PLAIN_AT_FIRST).then_some(cell.seconds)
    }

    /// Whether steps of this size were measured often enough, and lately.
    fn knows(&self, (rows, context): (usize, usize), clock: u64) -> bool {
        let cell = self.cells.get(&(rows_cell(rows), context_cell(context)));
        cell.is_some_and(|cell| cell.weight >= PLAIN_AT_FIRST && clock < cell.at + PLAIN_EVERY)
    }

    /// Whether steps of more than one number of rows were seen.
    fn knows_slope(&self) -> bool {
        let mut rows = self.cells.keys().map(|(rows, _)| rows);
        rows.next().is_some_and(|first| rows.any(|other| other != first))
    }

    /// `None` before anything was measured.
    fn seconds(&self, rows: usize, context: usize) -> Option<f64> {
        let wanted = (rows_cell(rows), context_cell(context));
        if let Some(cell) = self.cells.get(&wanted) {
            return Some(cell.seconds);
        }
        // The nearest context that knows anything; then the line through its neighbours.
        let nearest = self.cells.keys().map(|(_, c)| *c).min_by_key(|c| c.abs_diff(wanted.1))?;
        let mut points: Vec<(f64, f64)> = self
            .cells
            .iter()
            .filter(|((_, c), _)| *c == nearest)
            .map(|((r, _), cell)| (*r as f64, cell.seconds))
            .collect();
        points.sort_by(|a, b| a.0.total_cmp(&b.0));
        Some(along(&points, rows as f64))
    }
}

/// Four cells per doubling are not needed for what changes slowly: one is.
fn context_cell(context: usize) -> u32 {
    context.max(256).ilog2()
}

/// The line through the two points next to `x`; a single point stands for a cost that does not depend on `x`.
fn along(points: &[(f64, f64)], x: f64) -> f64 {
    let Some(first) = points.first() else { return 0.0 };
    if points.len() == 1 {
        return first.1;
    }
    let right = points.partition_point(|(at, _)| *at < x).clamp(1, points.len() - 1);
    let ((x0, y0), (x1, y1)) = (points[right - 1], points[right]);
    let slope = ((y1 - y0) / (x1 - x0)).max(0.0);
    let least = points.iter().map(|(_, y)| *y).fold(f64::INFINITY, f64::min);
    (y0 + slope * (x - x0)).max(0.5 * least)
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

    #[test]
    fn what_was_not_measured_lies_on_a_line() {
        let mut table = Table::default();
        assert_eq!(table.seconds(4, 0), None);
        table.note((2, 0), 2.0, 0);
        assert_eq!(table.seconds(9, 0), Some(2.0), "one point knows no slope");
        table.note((4, 0), 3.0, 0);
        assert_eq!(table.seconds(3, 0), Some(2.5));
        assert_eq!(table.seconds(8, 0), Some(5.0));
        assert_eq!(table.seconds(8, 1 << 20), Some(5.0), "another context borrows from the nearest");
    }
}
