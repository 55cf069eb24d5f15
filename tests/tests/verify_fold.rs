//! Verification and fold on whole models: the same logits and the same states as decoding token by token, bit for bit;
//! and the streams that a draft reads.
#![allow(clippy::unwrap_used)] // only tests use the functions here

use perilune_config::{LayerKind, ModelConfig};
use perilune_model::{MAX_DECODE_ROWS, TapSpec, TapStream};
use perilune_tests::{Bench, data_dir, tiny_checkpoint};
use perilune_weights::WeightSource;

const PROMPT: [u32; 21] = [5, 15, 39, 13, 1, 3, 19, 49, 29, 23, 31, 53, 25, 11, 11, 25, 53, 31, 23, 29, 49];
const NEXT: [u32; 8] = [7, 0, 61, 33, 2, 48, 17, 5];

fn tiny(tag: &str) -> ModelConfig {
    let text = std::fs::read_to_string(data_dir().join("vectors.json")).unwrap();
    let all: serde_json::Value = serde_json::from_str(&text).unwrap();
    ModelConfig::from_json_str(&all[tag]["config"].to_string()).unwrap()
}

fn bench(tag: &str, sequences: usize) -> Bench {
    let config = tiny(tag);
    Bench::new(&config, &tiny_checkpoint(&config, tag), sequences)
}

/// States and tails of all KDA layers.
fn states(bench: &Bench, config: &ModelConfig, sequence: usize) -> Vec<Vec<f32>> {
    let kda = |layer: &usize| config.layers[*layer] == LayerKind::Kda;
    let layers = (0..config.num_layers()).filter(kda);
    layers.flat_map(|layer| [bench.kda_state(layer, sequence), bench.kda_conv(layer, sequence)]).collect()
}

#[test]
fn any_number_of_verified_tokens_may_be_kept() {
    for tag in ["k3", "kl"] {
        let config = tiny(tag);
        let mut bench = bench(tag, 2);
        for n in 1..=MAX_DECODE_ROWS {
            for kept in 0..=n {
                bench.restart(0);
                bench.restart(1);
                bench.step(&[(0, &PROMPT), (1, &PROMPT)]);
                let before = states(&bench, &config, 0);
                let verified = bench.step_with(&[(0, &NEXT[..n])], &[0]);
                assert_eq!(states(&bench, &config, 0), before, "{tag}: a verification must leave the state alone");
                bench.fold(&[(0, 0, kept)]);
                for (i, id) in NEXT[..n].iter().enumerate() {
                    if i == kept {
                        assert_eq!(states(&bench, &config, 0), states(&bench, &config, 1), "{tag}: {kept} of {n}");
                    }
                    assert_eq!(bench.step(&[(1, &[*id])])[0][0], verified[0][i], "{tag}: row {i} of {n}");
                }
                if kept == n {
                    assert_eq!(states(&bench, &config, 0), states(&bench, &config, 1), "{tag}: all {n}");
                    assert_eq!(bench.latents_of_mla(&config, 0), bench.latents_of_mla(&config, 1));
                }
                // Rows of rejected tokens are overwritten by what really comes.
                let went_on = bench.step(&[(0, &[40, 41])]);
                bench.restart(1);
                bench.step(&[(1, &PROMPT)]);
                NEXT[..kept].iter().for_each(|id| drop(bench.step(&[(1, &[*id])])));
                assert_eq!(bench.step(&[(1, &[40, 41])]), went_on, "{tag}: after {kept} of {n}");
            }
        }
    }
}

#[test]
fn verifications_go_with_decodes_and_prefills_in_one_step() {
    for tag in ["k3", "kl"] {
        let config = tiny(tag);
        let mut bench = bench(tag, 4);
        let alone = |bench: &mut Bench, runs: &[(usize, &[u32])]| -> Vec<Vec<Vec<f32>>> {
            (0..4).for_each(|s| bench.restart(s));
            bench.step(&[(0, &PROMPT), (1, &PROMPT[..9]), (2, &PROMPT[..5])]);
            runs.iter().map(|run| bench.step(&[*run]).remove(0)).collect()
        };
        let runs: [(usize, &[u32]); 4] = [(3, &PROMPT), (0, &NEXT[..5]), (1, &NEXT[..1]), (2, &NEXT[..3])];
        let expected = alone(&mut bench, &runs);
        let after = [0, 2].map(|s| states(&bench, &config, s));
        (0..4).for_each(|s| bench.restart(s));
        bench.step(&[(0, &PROMPT), (1, &PROMPT[..9]), (2, &PROMPT[..5])]);
        assert_eq!(bench.step_with(&runs, &[0, 2]), expected, "{tag}");
        bench.fold(&[(3, 2, 3), (1, 0, 5)]);
        assert_eq!([0, 2].map(|s| states(&bench, &config, s)), after, "{tag}");
    }
}

#[test]
fn taps_are_the_streams_between_layers() {
    for tag in ["k3", "kl"] {
        let config = tiny(tag);
        let source = tiny_checkpoint(&config, tag);
        let last = config.num_layers() - 1;
        let mut bench = Bench::new(&config, &source, 1);
        for layers in [vec![0, 3, 3], vec![3, 0], vec![0, last + 1]] {
            let refused =
                bench.try_capture(TapSpec { layers: layers.clone(), stream: TapStream::AttnRes }).unwrap_err();
            assert!(refused.to_string().contains("layers"), "{layers:?}: {refused}");
        }
        bench.capture(TapSpec { layers: vec![0, 3, last], stream: TapStream::AttnRes });
        let logits = bench.step(&[(0, &PROMPT)]).remove(0);
        let whole = bench.taps(0, PROMPT.len());
        assert_ne!(whole[0], whole[1]);
        // After the last layer it is what the final norm and the head read.
        let norm = source.get("model.norm.weight").unwrap().to_f32();
        let head = source.get("lm_head.weight").unwrap().to_f32();
        let x: Vec<f64> = whole[2][20 * norm.len()..].iter().map(|v| f64::from(*v)).collect();
        let mean = x.iter().map(|v| v * v).sum::<f64>() / x.len() as f64 + f64::from(config.rms_norm_eps);
        for (row, logit) in head.chunks(norm.len()).zip(&logits[20]) {
            let scaled = x.iter().zip(&norm).zip(row).map(|((x, n), w)| x * f64::from(*n) * f64::from(*w));
            assert!((scaled.sum::<f64>() / mean.sqrt() - f64::from(*logit)).abs() < 1e-4, "{tag}");
        }
        // Chunks and verifications give the same.
        bench.restart(0);
        bench.step(&[(0, &PROMPT[..13])]);
        let first = bench.taps(0, 13);
        bench.step_with(&[(0, &PROMPT[13..])], &[0]);
        let rest = bench.taps(0, 8);
        let joined: Vec<Vec<f32>> = first.into_iter().zip(rest).map(|(a, b)| [a, b].concat()).collect();
        assert_eq!(joined, whole, "{tag}");
        // The plain prefix is another stream exactly where there is something to mix.
        bench.capture(TapSpec { layers: vec![0, 3, last], stream: TapStream::Prefix });
        bench.restart(0);
        bench.step(&[(0, &PROMPT)]);
        assert_eq!(bench.taps(0, PROMPT.len()) == whole, config.attn_res_block_size.is_none(), "{tag}");
    }
}
