//! Recorded steps: a replay gives the bits of the operations themselves, for every number of sequences, whatever ran
//! between; and what cannot be recorded runs as it is.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // all of it is test code

mod rig;

use perilune_backend::{Backend, BackendError, RmsNorm, StepGraph};
use perilune_emulator::{Emulator, OnDemand};
use perilune_gpu::{Gpu, GpuTensor};
use perilune_tensor::{HostTensor, TensorSpec};
use perilune_tests::{Bench, Golden};

/// Batch sizes at which others met wrong output (1), and those around the height of a tile.
const SIZES: [usize; 5] = [1, 2, 3, 8, 9];
const VOCAB: u32 = 64;

fn bench(emulator: Emulator, tag: &str) -> Bench<Gpu<Emulator>> {
    Golden::with_room(Gpu::new(emulator, OnDemand), tag, 9).bench
}

/// Every step twice, on both benches, to the same bits; the next tokens are the most likely ones.
struct Pair {
    eager: Bench<Gpu<Emulator>>,
    recorded: Bench<Gpu<Emulator>>,
}

impl Pair {
    fn step(&mut self, runs: &[(usize, &[u32])]) -> Vec<u32> {
        let (wanted, got) = (self.eager.step(runs), self.recorded.step(runs));
        assert!(wanted == got, "a replay of {} runs differs", runs.len());
        let likely = |row: &Vec<f32>| (0..VOCAB).max_by(|a, b| row[*a as usize].total_cmp(&row[*b as usize])).unwrap();
        wanted.iter().map(|rows| likely(rows.last().unwrap())).collect()
    }

    /// Sequences with prompts of different lengths, then tokens one by one.
    fn decode(&mut self, size: usize, steps: usize) {
        let prompts: Vec<Vec<u32>> =
            (0..size).map(|s| (0..9 + 2 * s as u32).map(|i| (i * 7 + s as u32) % VOCAB).collect()).collect();
        (0..size).for_each(|s| {
            self.eager.restart(s);
            self.recorded.restart(s);
        });
        let runs: Vec<(usize, &[u32])> = prompts.iter().enumerate().map(|(s, p)| (s, p.as_slice())).collect();
        let mut next = self.step(&runs);
        for _ in 0..steps {
            let runs: Vec<(usize, &[u32])> = next.chunks(1).enumerate().collect();
            next = self.step(&runs);
        }
    }
}

fn eager_equals_recorded(plane: usize, tag: &str, steps: usize) {
    let (Some(first), Some(second)) = (rig::emulator(plane, 1), rig::emulator(plane, 2)) else { return };
    let replays = second.replays();
    let mut pair = Pair { eager: bench(first, tag), recorded: bench(second, tag).with_graphs() };
    for size in SIZES {
        pair.decode(size, steps);
    }
    assert_eq!(pair.recorded.recorded(), SIZES.len());
    // All but the first step of each size.
    assert_eq!(replays.load(std::sync::atomic::Ordering::Relaxed), (SIZES.len() * (steps - 1)) as u64);
    // An old recording still holds, after larger steps grew what it uses.
    pair.decode(1, 3);
    assert_eq!(pair.recorded.recorded(), SIZES.len());
}

#[test]
fn k3_at_plane_width_32() {
    eager_equals_recorded(32, "k3", 6);
}

#[test]
fn kimi_linear_at_plane_width_64() {
    eager_equals_recorded(64, "kl", 6);
}

/// Runs of several rows, as a verification has them, in a step with single ones.
#[test]
fn short_runs_of_several_rows() {
    let (Some(first), Some(second)) = (rig::emulator(32, 1), rig::emulator(32, 2)) else { return };
    let mut pair = Pair { eager: bench(first, "k3"), recorded: bench(second, "k3").with_graphs() };
    for step in 0..4_u32 {
        let ids: Vec<u32> = (0..8).map(|i| (step * 11 + i * 5) % VOCAB).collect();
        // The same sizes of the whole, divided differently among the runs: one recording serves all.
        let cut = 1 + step as usize;
        pair.step(&[(0, &ids[..cut]), (1, &ids[cut..8])]);
    }
    assert_eq!(pair.recorded.recorded(), 1);
}

struct Norm {
    gpu: Gpu<Emulator>,
    x: GpuTensor<Emulator>,
    weight: GpuTensor<Emulator>,
    out: GpuTensor<Emulator>,
}

impl Norm {
    fn new(emulator: Emulator) -> Norm {
        let gpu = Gpu::new(emulator, OnDemand);
        let x = gpu.upload(&HostTensor::from_f32([1, 64], &[1.0; 64]).unwrap()).unwrap();
        let weight = gpu.upload(&HostTensor::from_f32([64], &[1.0; 64]).unwrap()).unwrap();
        let out = gpu.alloc(&TensorSpec::f32([1, 64])).unwrap();
        Norm { gpu, x, weight, out }
    }

    fn run(&mut self) -> Result<(), BackendError> {
        let Norm { gpu, x, weight, out } = self;
        gpu.rms_norm(RmsNorm { rows: 1, x, weight, eps: 1e-5, out })
    }

    fn record(&mut self) -> Option<<Gpu<Emulator> as Backend>::Graph> {
        let Norm { gpu, x, weight, out } = self;
        gpu.record(&mut || gpu.rms_norm(RmsNorm { rows: 1, x, weight, eps: 1e-5, out })).unwrap()
    }

    fn output(&self) -> f32 {
        self.gpu.download(&self.out).unwrap().wait().unwrap().to_f32()[0]
    }
}

#[test]
fn a_recording_runs_nothing_and_a_replay_sees_new_contents() {
    let Some(emulator) = rig::emulator(32, 1) else { return };
    let mut norm = Norm::new(emulator);
    assert!(norm.record().is_none(), "its kernel was not loaded yet");
    norm.run().unwrap();
    let normal = norm.output();
    let graph = norm.record().expect("everything is there now");
    assert_eq!(graph.nodes(), 1);
    norm.gpu.write_range(&mut norm.x, 0, &[0; 4 * 64]).unwrap();
    assert_eq!(norm.output(), normal, "recording alone computes nothing");
    norm.gpu.replay(&graph).unwrap();
    assert_eq!(norm.output(), 0.0);
}

#[test]
fn what_a_recording_may_not_do_leaves_the_device_usable() {
    let Some(emulator) = rig::emulator(32, 1) else { return };
    let mut norm = Norm::new(emulator);
    norm.run().unwrap();
    let gpu = &norm.gpu;
    let spec = TensorSpec::f32([4]);
    assert!(gpu.record(&mut || gpu.alloc(&spec).map(drop)).unwrap().is_none());
    assert!(gpu.record(&mut || gpu.download(&norm.out).map(drop)).unwrap().is_none());
    assert!(gpu.record(&mut || gpu.synchronize()).unwrap().is_none());
    let failed = gpu.record(&mut || Err(BackendError::Device("lost".into()))).unwrap_err();
    assert!(failed.to_string().contains("lost"));
    norm.run().unwrap();
    assert!(norm.output() > 0.9);
}

/// What a device would do quietly: launch on memory that is gone.
#[test]
fn a_recording_outlives_none_of_its_tensors() {
    let Some(emulator) = rig::emulator(32, 1) else { return };
    let mut norm = Norm::new(emulator);
    norm.run().unwrap();
    let graph = norm.record().unwrap();
    norm.x = norm.gpu.alloc(&TensorSpec::f32([1, 64])).unwrap();
    let error = norm.gpu.replay(&graph).unwrap_err().to_string();
    assert!(error.contains("no allocation"), "{error}");
}
