//! The model's own promises: what a plan may hold, what caches cost, what loading reports, what random weights give.
#![allow(clippy::unwrap_used)] // only tests use the functions here

use perilune_config::{HeadKind, LayerKind, ModelConfig};
use perilune_cpu::{CpuBackend, CpuOptions};
use perilune_model::{
    BatchPlan, CacheShape, Caches, Effect, ForwardBatch, Kimi, LogitRows, ModelError, Run, SlotCopy, StepLimits,
};
use perilune_tensor::{HostTensor, TokenId};
use perilune_tests::{Bench, data_dir, tiny_checkpoint};
use perilune_weights::{
    Checkpoint, Progress, RandomOptions, SafetensorsDir, Stage, StoredExperts, WeightSource, write_random_checkpoint,
};

const LIMITS: StepLimits =
    StepLimits { max_rows: 16, max_runs: 3, max_blocks: 4, max_logit_rows: 4, max_snapshots: 2, max_verify_rows: 12 };

fn tiny(tag: &str) -> ModelConfig {
    let text = std::fs::read_to_string(data_dir().join("vectors.json")).unwrap();
    let all: serde_json::Value = serde_json::from_str(&text).unwrap();
    ModelConfig::from_json_str(&all[tag]["config"].to_string()).unwrap()
}

fn backend() -> CpuBackend {
    CpuBackend::new(CpuOptions::default()).unwrap()
}

const TOKENS: [TokenId; 20] = [TokenId(1); 20];

/// A run of some tokens in a slot.
fn run(len: usize, slot: u32) -> Run<'static> {
    Run {
        tokens: &TOKENS[..len],
        position: 0,
        slot,
        blocks: &[0],
        logits: LogitRows::Last,
        snapshots: &[],
        effect: Effect::Advance,
    }
}

#[test]
fn logits_come_in_the_order_of_the_plan() {
    let backend = backend();
    let mut batch = ForwardBatch::new(&backend, LIMITS).unwrap();
    // A long run between short ones: they go to different operations.
    let none = Run { logits: LogitRows::None, ..run(2, 1) };
    let last_two = Run { logits: LogitRows::Range(8..10), ..run(10, 0) };
    batch.fill(&backend, &BatchPlan { runs: vec![last_two, none, run(1, 2)] }).unwrap();
    assert_eq!([0, 1, 2, 3].map(|i| batch.logit_rows(i)), [0..2, 2..2, 2..3, 0..0]);
    batch.fill(&backend, &BatchPlan::default()).unwrap();
    assert_eq!(batch.logit_rows(0), 0..0, "the step before is forgotten");
}

#[test]
fn a_plan_that_does_not_fit_is_refused() {
    let backend = backend();
    let mut batch = ForwardBatch::new(&backend, LIMITS).unwrap();
    let mut limit = |runs: Vec<Run<'_>>| match batch.fill(&backend, &BatchPlan { runs }).unwrap_err() {
        ModelError::Limit { what, found, room } => (what, found, room),
        other => panic!("{other}"),
    };
    assert_eq!(limit((0..4).map(|slot| run(1, slot)).collect()), ("runs", 4, 3));
    assert_eq!(limit(vec![run(17, 0)]), ("rows", 17, 16));
    assert_eq!(limit(vec![Run { blocks: &[0; 5], ..run(1, 0) }]), ("block table entries", 5, 4));
    assert_eq!(limit(vec![Run { logits: LogitRows::Range(0..5), ..run(5, 0) }]), ("rows of logits", 5, 4));
}

#[test]
fn a_run_that_makes_no_sense_is_refused() {
    let backend = backend();
    let mut batch = ForwardBatch::new(&backend, LIMITS).unwrap();
    let mut refuse = |bad: Run<'_>, says: &str| {
        let error = batch.fill(&backend, &BatchPlan { runs: vec![run(1, 0), bad] }).unwrap_err().to_string();
        assert!(error.contains("run 1") && error.contains(says), "{error}");
    };
    refuse(run(0, 1), "no tokens");
    refuse(run(1, 0), "slot 0");
    refuse(Run { snapshots: &[SlotCopy { after: 1, slot: 0 }], ..run(1, 1) }, "slot 0");
    refuse(Run { snapshots: &[SlotCopy { after: 2, slot: 2 }], ..run(1, 1) }, "after 2 tokens");
    refuse(Run { logits: LogitRows::Range(1..4), ..run(3, 1) }, "1..4 of 3");
    refuse(Run { effect: Effect::Verify, ..run(9, 1) }, "9 tokens");
    refuse(Run { position: u32::MAX as usize, ..run(1, 1) }, "positions");
}

#[test]
fn caches_cost_what_they_say_and_do_not_overlap() {
    let backend = backend();
    for tag in ["k3", "kl"] {
        let config = tiny(tag);
        let shape = CacheShape::with_room(&config, 16, (5, 3));
        assert_eq!(4 * shape.arena_len, 5 * shape.block_bytes() + 3 * shape.slot_bytes(), "{tag}");
        let caches = Caches::new(&backend, &config, shape).unwrap();
        let last = shape.slots().count - 1;
        let mut owner = vec![0; shape.arena_len];
        for (layer, kind) in config.layers.iter().enumerate() {
            let slots = (0..3).flat_map(|s| [caches.kda_state(layer, last - s), caches.kda_conv(layer, last - s)]);
            let parts: Vec<_> = slots.chain((0..5).map(|block| caches.mla_latent(layer, block))).flatten().collect();
            assert_eq!(parts.len(), if *kind == LayerKind::Mla { 5 } else { 6 }, "{tag}");
            parts.into_iter().flatten().for_each(|element| owner[element] += 1);
        }
        assert!(owner.iter().all(|owners| *owners <= 1), "{tag}: parts overlap");
        let unused = owner.iter().filter(|owners| **owners == 0).count();
        assert!(unused < 16 * (5 + 3), "{tag}: {unused} elements belong to nobody, more than alignment needs");
    }
}

#[test]
fn a_cleared_slot_forgets_its_sequence_and_no_other() {
    let config = tiny("k3");
    let mut bench = Bench::new(&config, &tiny_checkpoint(&config, "k3"), 2);
    let ids = [5, 15, 39, 13, 1, 3, 19, 49, 29, 23];
    let fresh = bench.step(&[(0, &ids), (1, &ids)]);
    assert_eq!(fresh[0], fresh[1]);
    let kept = bench.kda_state(1, 1);
    bench.restart(0);
    assert!(bench.kda_state(1, 0).iter().chain(&bench.kda_conv(1, 0)).all(|value| *value == 0.0));
    assert!(kept.iter().any(|value| *value != 0.0));
    assert_eq!(bench.kda_state(1, 1), kept);
    assert_eq!(bench.step(&[(0, &ids)]), fresh[..1], "latents of the sequence before are not seen");
}

#[test]
fn a_backend_that_cannot_record_runs_every_step() {
    let config = tiny("k3");
    let bench = || Bench::new(&config, &tiny_checkpoint(&config, "k3"), 2);
    let (mut plain, mut asked) = (bench(), bench().with_graphs());
    for ids in [[5, 15], [39, 13], [1, 3], [19, 49]] {
        let runs: [(usize, &[u32]); 2] = [(0, &ids[..1]), (1, &ids[1..])];
        assert_eq!(plain.step(&runs), asked.step(&runs));
    }
    assert_eq!(asked.recorded(), 0);
}

#[test]
fn loading_reports_every_tensor_once() {
    for tag in ["k3", "kl"] {
        let config = tiny(tag);
        let source = tiny_checkpoint(&config, tag);
        let checkpoint = Checkpoint::open(&source, &config).unwrap();
        let mut reports: Vec<Progress> = Vec::new();
        Kimi::load(&backend(), &config, &checkpoint, &mut |progress| reports.push(progress)).unwrap();
        let last = *reports.last().unwrap();
        assert_eq!(last.stage, Stage::Loading);
        assert_eq!((last.tensors_done, last.tensors_total), (checkpoint.len(), checkpoint.len()), "{tag}");
        assert_eq!(reports.len(), checkpoint.len());
        assert!(reports.iter().all(|r| r.bytes_done <= r.bytes_total && r.bytes_total == checkpoint.size_bytes()));
    }
}

#[test]
fn a_tied_head_is_the_embedding() {
    let mut config = tiny("kl");
    let mut source = tiny_checkpoint(&config, "kl");
    let table = source.get("model.embed_tokens.weight").unwrap();
    source.insert("lm_head.weight", table);
    let separate = Bench::new(&config, &source, 1).step(&[(0, &[5, 15, 39])]);
    source.remove("lm_head.weight").unwrap();
    config.head = HeadKind::Tied;
    assert_eq!(Bench::new(&config, &source, 1).step(&[(0, &[5, 15, 39])]), separate);
}

#[test]
fn random_checkpoints_give_logits_of_order_one() {
    for tag in ["k3", "kl"] {
        let config = tiny(tag);
        for experts in [StoredExperts::Bf16, StoredExperts::Mxfp4] {
            let dir = tempfile::tempdir().unwrap();
            write_random_checkpoint(&config, RandomOptions { experts, ..Default::default() }, dir.path()).unwrap();
            let mut bench = Bench::new(&config, &SafetensorsDir::open(dir.path()).unwrap(), 1);
            let ids: Vec<u32> = (0..200).map(|i| i * 7 % 64).collect();
            let logits: Vec<f32> = bench.step(&[(0, &ids)]).concat().concat();
            let mean_square = logits.iter().map(|v| v * v).sum::<f32>() / logits.len() as f32;
            assert!((0.3..3.0).contains(&mean_square), "{tag} {experts:?}: {mean_square}");
        }
    }
}

#[test]
fn weights_in_any_plain_format_give_the_same_logits() {
    let config = tiny("kl");
    let source = tiny_checkpoint(&config, "kl");
    let mut wide = source.clone();
    for name in source.names() {
        let tensor = source.get(name).unwrap();
        wide.insert(name, HostTensor::from_f32(tensor.spec().shape.clone(), &tensor.to_f32()).unwrap());
    }
    let ids = [5, 15, 39, 13, 1, 3, 19, 49, 29, 23, 31, 53];
    let stored = Bench::new(&config, &source, 1).step(&[(0, &ids)]).concat();
    let widened = Bench::new(&config, &wide, 1).step(&[(0, &ids)]).concat();
    for (a, b) in stored.concat().iter().zip(widened.concat()) {
        assert!((a - b).abs() < 2e-5, "{a} {b}");
    }
}
