//! Sampling: log-probabilities and greedy choices exactly, draws by their frequencies.

use perilune_backend::{
    Backend, Choice, Penalties, RowDistribution, Sample, SampleRow, SampledRow, TokenCount, TopLogprob,
};
use perilune_reference::sample::{self, Adjust, Filters};
use perilune_tensor::TokenId;

use crate::rig::{Noise, Rig, for_all};

const OFF: Penalties = Penalties { repetition: 1.0, presence: 0.0, frequency: 0.0 };

fn greedy() -> Choice {
    draw(Filters { temperature: 0.0, top_k: 0, top_p: 1.0, min_p: 0.0 }, 0)
}

fn draw(f: Filters, seed: u64) -> Choice {
    Choice::Draw { temperature: f.temperature, top_k: f.top_k as u32, top_p: f.top_p, min_p: f.min_p, seed, step: 3 }
}

fn plain(row: usize, choice: Choice) -> SampleRow {
    SampleRow { row, choice, bias: vec![], banned: vec![], penalties: OFF, counts: vec![], top_logprobs: None }
}

fn token(outcome: &SampledRow) -> (TopLogprob, &[TopLogprob]) {
    match outcome {
        SampledRow::Token { chosen, top } => (*chosen, top),
        SampledRow::NonFinite => panic!("a finite row was called corrupt"),
    }
}

fn run<B: Backend>(rig: &Rig<'_, B>, logits: (&[f32], usize), rows: &[SampleRow]) -> Vec<SampledRow> {
    let (values, vocabulary) = logits;
    let tensor = rig.f32([values.len() / vocabulary, vocabulary], values);
    rig.0.sample(Sample { logits: &tensor, rows }).unwrap().wait().unwrap()
}

/// Greedy choices, given tokens, top lists, adjustments, corrupt rows, ids out of range.
pub fn check_sample_scores<B: Backend>(backend: &B) {
    let rig = Rig(backend);
    for_all(16, (1_usize..300, 1_usize..5), |(vocabulary, rows)| {
        let mut noise = Noise::new(vocabulary as u64);
        let logits = noise.row(rows * vocabulary, 9.0);
        for i in 0..rows {
            scores_of_row(&rig, (&logits, vocabulary), i, &mut noise);
        }
    });
    corrupt_rows(&rig);
    let out_of_range = [plain(0, Choice::Given(TokenId(4))), plain(1, greedy())];
    for row in out_of_range {
        let tensor = rig.f32([1, 4], &[0.0; 4]);
        assert!(backend.sample(Sample { logits: &tensor, rows: &[row] }).is_err(), "ids out of range must be refused");
    }
    assert_eq!(run(&rig, (&[1.0, 2.0, 2.0], 3), &[]), vec![]);
    assert_eq!(token(&run(&rig, (&[1.0, 2.0, 2.0], 3), &[plain(0, greedy())])[0]).0.id, TokenId(1), "ties");
}

fn scores_of_row<B: Backend>(rig: &Rig<'_, B>, (logits, vocabulary): (&[f32], usize), i: usize, noise: &mut Noise) {
    let row = &logits[i * vocabulary..(i + 1) * vocabulary];
    let log_probabilities = sample::log_probabilities(row);
    let given = TokenId(noise.below(vocabulary) as u32);
    let wanted = vocabulary.min(20);
    let adjust = Adjust {
        bias: vec![(noise.below(vocabulary), 6.0)],
        banned: if vocabulary > 1 { vec![sample::greedy(row)] } else { vec![] },
        counts: vec![(noise.below(vocabulary), 1, 2)],
        repetition: 1.3,
        presence: 0.4,
        frequency: 0.2,
    };
    let id = |id: usize| TokenId(id as u32);
    let adjusted = SampleRow {
        bias: adjust.bias.iter().map(|(i, b)| (id(*i), *b)).collect(),
        banned: adjust.banned.iter().map(|i| id(*i)).collect(),
        penalties: Penalties { repetition: 1.3, presence: 0.4, frequency: 0.2 },
        counts: adjust.counts.iter().map(|c| TokenCount { id: id(c.0), in_prompt: c.1, in_output: c.2 }).collect(),
        ..plain(i, greedy())
    };
    let rows =
        [plain(i, greedy()), SampleRow { top_logprobs: Some(wanted), ..plain(i, Choice::Given(given)) }, adjusted];
    let outcome = run(rig, (logits, vocabulary), &rows);
    assert_eq!(token(&outcome[0]).0.id.index(), sample::greedy(row));
    let (chosen, top) = token(&outcome[1]);
    assert_eq!(chosen.id, given);
    assert!((chosen.logprob - log_probabilities[given.index()]).abs() < 1e-4);
    let mut order: Vec<usize> = (0..vocabulary).collect();
    order.sort_by(|a, b| row[*b].total_cmp(&row[*a]).then(a.cmp(b)));
    assert_eq!(top.iter().map(|t| t.id.index()).collect::<Vec<_>>(), order[..wanted]);
    assert!(top.iter().all(|t| (t.logprob - log_probabilities[t.id.index()]).abs() < 1e-4));
    assert_eq!(token(&outcome[2]).0.id.index(), sample::greedy(&sample::adjusted(row, &adjust)));
}

/// A row with a NaN or an infinity is called corrupt, its neighbours are served.
fn corrupt_rows<B: Backend>(rig: &Rig<'_, B>) {
    for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
        let mut logits = vec![0.5; 4 * 33];
        logits[33 + 32] = bad;
        let rows: Vec<SampleRow> = (0..4).map(|i| plain(i, greedy())).collect();
        let outcome = run(rig, (&logits, 33), &rows);
        assert_eq!(outcome[1], SampledRow::NonFinite, "{bad}");
        let tensor = rig.f32([4, 33], &logits);
        let asked = Sample { logits: &tensor, rows: &rows };
        let laws = rig.0.distributions(asked).unwrap().wait().unwrap();
        assert_eq!(laws[1], RowDistribution::NonFinite, "{bad}");
        let mut certain = vec![0.0; 33];
        certain[0] = 1.0;
        assert_eq!(laws[0], RowDistribution::Probabilities(certain), "a greedy choice is certain");
        for i in [0, 2, 3] {
            token(&outcome[i]);
        }
    }
}

/// Draws come as often as their probabilities say, never outside the filters, and depend on seed and step alone.
pub fn check_sample_draws<B: Backend>(backend: &B) {
    const DRAWS: u64 = 4000;
    let rig = Rig(backend);
    let logits = [2.0, 1.0, 0.5, 0.0, -1.0, -3.0, 1.0, 0.2];
    let filters = [
        Filters { temperature: 1.0, top_k: 0, top_p: 1.0, min_p: 0.0 },
        Filters { temperature: 0.5, top_k: 0, top_p: 0.9, min_p: 0.0 },
        Filters { temperature: 2.0, top_k: 3, top_p: 1.0, min_p: 0.0 },
        Filters { temperature: 1.0, top_k: 5, top_p: 0.95, min_p: 0.2 },
        Filters { temperature: 1.5, top_k: 0, top_p: 1.0, min_p: 0.3 },
    ];
    for filter in filters {
        let want = sample::distribution(&logits, &filter);
        let rows: Vec<SampleRow> = (0..DRAWS).map(|seed| plain(0, draw(filter, seed))).collect();
        let outcome = run(&rig, (&logits, 8), &rows);
        let mut counts = [0_u64; 8];
        outcome.iter().for_each(|o| counts[token(o).0.id.index()] += 1);
        for (id, probability) in want.iter().enumerate() {
            let expected = f64::from(*probability) * DRAWS as f64;
            // Five standard deviations of a binomial count.
            let slack = 5.0 * (expected * (1.0 - f64::from(*probability))).sqrt() + 1e-9;
            assert!(
                (counts[id] as f64 - expected).abs() <= slack,
                "{filter:?}: token {id} {} of {expected}",
                counts[id]
            );
        }
        let tensor = rig.f32([1, 8], &logits);
        let asked = Sample { logits: &tensor, rows: &rows[..1] };
        let RowDistribution::Probabilities(got) = &backend.distributions(asked).unwrap().wait().unwrap()[0] else {
            panic!("a finite row was called corrupt")
        };
        assert!(got.iter().zip(&want).all(|(g, w)| (g - w).abs() < 1e-5), "{filter:?}: {got:?}, not {want:?}");
        assert_eq!(run(&rig, (&logits, 8), &rows[..50]), outcome[..50], "the same draw again");
        let one = run(&rig, (&logits, 8), &rows[7..8]);
        assert_eq!(one[0], outcome[7], "alone as in a batch");
    }
}
