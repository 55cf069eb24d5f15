//! DSpark drafts against the specification in `f64`, and their own laws: chunks, batches, refused tokens.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod oracle;
mod rig;

use perilune_model::Effect;
use perilune_speculate::Proposal;
use perilune_tensor::TokenId;
use serde_json::{Value, json};

use rig::{Rig, k3_dspark, rows, spec_forge};

const PROMPT: [u32; 21] = [5, 15, 39, 13, 1, 3, 19, 49, 29, 23, 31, 53, 25, 11, 11, 25, 53, 31, 23, 29, 49];
const ANCHOR: u32 = 7;

fn with(mut base: Value, changes: &[(&str, Value)]) -> Value {
    for (key, value) in changes {
        if base["dflash_config"].is_object() && !base["dflash_config"][*key].is_null() {
            base["dflash_config"][*key] = value.clone();
        } else {
            base[*key] = value.clone();
        }
    }
    base
}

/// Every feature of a draft, alone and together.
fn variants() -> Vec<(&'static str, Value)> {
    let yarn = |theta: f64| json!({"rope_type": "yarn", "rope_theta": theta, "factor": 16, "original_max_position_embeddings": 64});
    let mut deepseek = yarn(500.0);
    deepseek["mscale"] = 1.0.into();
    deepseek["mscale_all_dim"] = 0.5.into();
    vec![
        ("grouped", spec_forge()),
        ("grouped, prefix", with(spec_forge(), &[("aux_hidden_stream", "prefix".into())])),
        ("grouped, yarn", with(spec_forge(), &[("rope_parameters", yarn(100.0))])),
        ("grouped, causal", with(spec_forge(), &[("causal", true.into())])),
        ("grouped, gated", with(spec_forge(), &[("markov_head_type", "gated".into())])),
        ("grouped, rnn", with(spec_forge(), &[("markov_head_type", "rnn".into()), ("rope_parameters", yarn(50.0))])),
        (
            "grouped, no markov head",
            with(spec_forge(), &[("markov_rank", 0.into()), ("confidence_head_with_markov", false.into())]),
        ),
        ("grouped, masks alone predict", with(spec_forge(), &[("sample_from_anchor", false.into())])),
        ("latent", k3_dspark()),
        ("latent, mixture", with(k3_dspark(), &[("aux_hidden_stream", "attn_res".into()), ("fc_norm", true.into())])),
        ("latent, yarn", with(k3_dspark(), &[("rope_parameters", deepseek)])),
        ("latent, causal", with(k3_dspark(), &[("causal", true.into()), ("logit_scale", 0.5.into())])),
        ("latent, gated", with(k3_dspark(), &[("markov_head_type", "gated".into()), ("fc_norm", true.into())])),
        (
            "latent, rnn",
            with(
                k3_dspark(),
                &[
                    ("markov_head_type", "rnn".into()),
                    ("confidence_head_with_markov", false.into()),
                    ("causal", true.into()),
                    ("sample_from_anchor", false.into()),
                    ("block_size", 8.into()),
                ],
            ),
        ),
    ]
}

fn history() -> Vec<u32> {
    PROMPT.into_iter().chain([ANCHOR]).collect()
}

fn ids(proposal: &Proposal) -> Vec<usize> {
    proposal.tokens.iter().map(|id| id.index()).collect()
}

#[test]
fn streams_that_come_late_leave_the_same_behind() {
    for (name, draft) in variants() {
        let (mut now, mut later) = (Rig::new(&draft), Rig::new(&draft));
        for rig in [&mut now, &mut later] {
            rig.step(&[(0, &PROMPT, 0), (1, &PROMPT[..6], 0), (2, &PROMPT[..3], 0)]);
        }
        let mut lengths = [21, 6, 3];
        // Across the ends of blocks, alone and together, one step and many.
        for (sequences, steps) in [(0..3, 5), (1..2, 1), (1..3, 9), (0..1, 12)] {
            for step in 0..steps {
                let next = |s: usize| (s as u32, PROMPT[step + s], lengths[s]);
                let runs: Vec<(u32, u32, usize)> = sequences.clone().map(next).collect();
                later.step_late(&runs);
                for (sequence, token, position) in runs {
                    now.step(&[(sequence, &[token], position)]);
                    lengths[sequence as usize] += 1;
                }
            }
            let positions: Vec<usize> = lengths[sequences.clone()].iter().map(|length| length - 1).collect();
            later.settle(&positions);
            assert!(now.arena() == later.arena(), "{name}: {steps} steps of {sequences:?}");
        }
    }
}

#[test]
fn every_variant_equals_the_specification() {
    for (name, config) in variants() {
        let mut rig = Rig::new(&config);
        let features = rig.step(&[(0, &PROMPT, 0)]).remove(0);
        let history = history();
        let wanted = if config["sample_from_anchor"] == false && config["block_size"] == 7 { 6 } else { 7 };
        for temperature in [0.0, 1.0] {
            let proposal = rig.propose(&[(0, &history, 7)], &rows(temperature, 3)).remove(0);
            let tokens = ids(&proposal);
            assert_eq!(tokens.len(), wanted, "{name}");
            let expected = rig.oracle.drafts(&features, ANCHOR as usize, &tokens);
            for (j, log_probabilities) in expected.log_probabilities.iter().enumerate() {
                match &proposal.probabilities {
                    Some(all) => {
                        for (got, want) in all[j].iter().zip(log_probabilities) {
                            assert!((f64::from(*got).ln() - want).abs() < 1e-4, "{name}, draft {j}: {got}, e^{want}");
                        }
                    }
                    None => {
                        let best = log_probabilities.iter().copied().fold(f64::NEG_INFINITY, f64::max);
                        assert!(best - log_probabilities[tokens[j]] < 1e-4, "{name}, draft {j} is not the likeliest");
                    }
                }
            }
            assert_eq!(proposal.probabilities.is_some(), temperature > 0.0, "{name}");
            assert_eq!(proposal.confidence.len(), wanted, "{name}");
            for (got, want) in proposal.confidence.iter().zip(&expected.confidence) {
                assert!((f64::from(*got) - want).abs() < 1e-4, "{name}: confidence {got}, expected {want}");
            }
        }
    }
}

/// Two streams, masks, kinds of anchors: none of them may be ignored.
#[test]
fn variants_differ() {
    let outputs: Vec<(&str, Vec<f32>)> = variants()
        .into_iter()
        .filter(|(name, _)| name.starts_with("grouped") && *name != "grouped, no markov head")
        .map(|(name, config)| {
            let mut rig = Rig::new(&config);
            rig.step(&[(0, &PROMPT, 0)]);
            (name, rig.propose(&[(0, &history(), 7)], &rows(1.0, 3)).remove(0).probabilities.unwrap().remove(1))
        })
        .collect();
    for (i, (name, a)) in outputs.iter().enumerate() {
        for (other, b) in &outputs[..i] {
            assert_ne!(a, b, "{name} is as {other}");
        }
    }
}

#[test]
fn context_written_in_any_chunks_is_the_same() {
    for config in [spec_forge(), k3_dspark()] {
        let mut whole = Rig::new(&config);
        whole.step(&[(0, &PROMPT, 0)]);
        let want = whole.propose(&[(0, &history(), 7)], &rows(1.0, 5));
        for cuts in [vec![1, 2, 3], vec![9], vec![4, 16], (1..21).collect()] {
            let mut rig = Rig::new(&config);
            let mut from = 0;
            for to in cuts.into_iter().chain([21]) {
                rig.step(&[(0, &PROMPT[from..to], from)]);
                from = to;
            }
            assert_eq!(rig.propose(&[(0, &history(), 7)], &rows(1.0, 5)), want);
        }
    }
}

#[test]
fn rows_of_refused_drafts_are_overwritten() {
    let mut want = Rig::new(&spec_forge());
    want.step(&[(0, &PROMPT, 0)]);
    let mut rig = Rig::new(&spec_forge());
    rig.step(&[(0, &PROMPT[..10], 0)]);
    // A verification of an anchor and seven drafts of which none is kept; it leaves the target's states alone.
    rig.step_as(&[(0, &[PROMPT[10], 1, 2, 3, 4, 5, 6, 7], 10)], Effect::Verify);
    rig.step(&[(0, &PROMPT[10..], 10)]);
    let asked = rows(1.0, 5);
    assert_eq!(rig.propose(&[(0, &history(), 7)], &asked), want.propose(&[(0, &history(), 7)], &asked));
}

#[test]
fn a_batch_drafts_as_each_sequence_alone() {
    for (name, config) in variants() {
        let mut rig = Rig::new(&config);
        // A short and a long run, and one without any context.
        rig.step(&[(0, &PROMPT, 0), (1, &PROMPT[3..8], 0)]);
        let (first, second, third) = (history(), vec![39, 13, 1, 3, 19, 60], vec![33]);
        let asked: [(u32, &[u32], usize); 4] = [(1, &second, 3), (0, &first, 7), (2, &third, 5), (0, &first, 0)];
        for temperature in [0.0, 0.8] {
            let rows = rows(temperature, 11);
            // Two of them fit at once, so the third comes by itself.
            let together = rig.propose(&asked, &rows);
            assert_eq!(together[3], Proposal::default(), "{name}");
            for (ask, proposal) in asked.iter().zip(&together) {
                assert_eq!(rig.propose(&[*ask], &rows)[0], *proposal, "{name}");
                assert!(proposal.tokens.len() <= ask.2, "{name}");
            }
            assert!(together[..3].iter().all(|proposal| !proposal.tokens.is_empty()), "{name}");
        }
    }
}

#[test]
fn fewer_drafts_are_the_first_of_more() {
    for config in [spec_forge(), with(k3_dspark(), &[("causal", true.into()), ("markov_head_type", "rnn".into())])] {
        let mut rig = Rig::new(&config);
        rig.step(&[(0, &PROMPT, 0)]);
        let all = rig.propose(&[(0, &history(), 7)], &rows(1.0, 2)).remove(0);
        for count in 1..7 {
            let some = rig.propose(&[(0, &history(), count)], &rows(1.0, 2)).remove(0);
            assert_eq!(some.tokens, all.tokens[..count]);
            assert_eq!(some.confidence, all.confidence[..count]);
            assert_eq!(some.probabilities.unwrap(), all.probabilities.as_ref().unwrap()[..count]);
        }
    }
}

#[test]
fn drafts_obey_the_request() {
    let mut rig = Rig::new(&spec_forge());
    rig.step(&[(0, &PROMPT, 0)]);
    for temperature in [0.0, 1.0] {
        // Each token may come once: the penalty grows with the drafts themselves.
        let mut once = rows(temperature, 4);
        once.iter_mut().for_each(|row| row.penalties.frequency = 1e6);
        let mut tokens = rig.propose(&[(0, &history(), 7)], &once).remove(0).tokens;
        tokens.sort();
        tokens.dedup();
        assert_eq!(tokens.len(), 7, "temperature {temperature}");
        let mut banned = rows(temperature, 4);
        let likely = rig.propose(&[(0, &history(), 1)], &rows(0.0, 4)).remove(0).tokens[0];
        banned.iter_mut().for_each(|row| row.banned = vec![likely]);
        banned[2].bias = vec![(TokenId(9), 1e6)];
        let tokens = rig.propose(&[(0, &history(), 7)], &banned).remove(0).tokens;
        assert!(!tokens.contains(&likely) && tokens[2] == TokenId(9), "temperature {temperature}: {tokens:?}");
    }
    let nothing = {
        let mut all = rows(1.0, 4);
        all[3].banned = (0..64).map(TokenId).collect();
        rig.propose(&[(0, &history(), 7)], &all).remove(0)
    };
    assert_eq!(nothing.tokens.len(), 3, "a row without a token ends the drafts");
    assert_eq!((nothing.probabilities.unwrap().len(), nothing.confidence.len()), (3, 3));
}

/// Drafts are drawn from the distributions that are reported.
#[test]
fn draws_follow_the_reported_distribution() {
    let mut rig = Rig::new(&spec_forge());
    rig.step(&[(0, &PROMPT, 0)]);
    let mut counts = [0_u32; 64];
    let mut expected = Vec::new();
    for seed in 0..4000 {
        let mut asked = rows(1.0, seed);
        asked.iter_mut().for_each(|row| {
            row.choice =
                perilune_backend::Choice::Draw { temperature: 1.0, top_k: 5, top_p: 1.0, min_p: 0.0, seed, step: 17 }
        });
        let proposal = rig.propose(&[(0, &history(), 1)], &asked).remove(0);
        counts[proposal.tokens[0].index()] += 1;
        expected = proposal.probabilities.unwrap().remove(0);
    }
    assert_eq!(expected.iter().filter(|p| **p > 0.0).count(), 5);
    let chi2: f64 = expected
        .iter()
        .zip(counts)
        .filter(|(p, _)| **p > 0.0)
        .map(|(p, n)| (f64::from(n) - 4000.0 * f64::from(*p)).powi(2) / (4000.0 * f64::from(*p)))
        .sum();
    // Four degrees of freedom: 18.5 is passed once in a thousand.
    assert!(chi2 < 18.5, "{chi2}: {counts:?}");
    assert_eq!(counts.iter().sum::<u32>(), 4000);
}

#[test]
fn a_draft_for_another_target_is_refused() {
    use perilune_config::DraftConfig;
    let config = DraftConfig::from_json_str(&spec_forge().to_string()).unwrap();
    config.check_target(&rig::target("k3")).unwrap();
    let error = config.check_target(&rig::target("kl")).unwrap_err().to_string();
    assert!(error.contains("num_target_layers"), "{error}");
}
