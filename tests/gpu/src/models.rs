//! The tiny models: logits against the float64 oracle, and recorded steps against steps as they are.

use anyhow::{Result, ensure};
use perilune_gpu::{Driver, Gpu};
use perilune_tests::Golden;

use crate::options::Size;

/// Batch sizes at which others met wrong output from recorded steps (1), and those around the height of a tile.
const SIZES: [usize; 5] = [1, 2, 3, 8, 9];
const VOCAB: u32 = 64;

/// Both models.
pub(crate) fn run<D: Driver>(gpu: &impl Fn() -> Result<Gpu<D>>, size: Size) -> Result<()> {
    for tag in ["k3", "kl"] {
        let mut golden = Golden::on(gpu()?, tag);
        let ids = golden.ids.clone();
        for lengths in [&[24][..], &[7, 1, 16], &[1; 24]] {
            let rows = golden.bench.chunked(0, &ids, lengths);
            golden.check_logits(&rows, (tag, 1e-4));
        }
        println!("tiny model {tag}: logits as the oracle's");
        if size == Size::Small {
            continue;
        }
        for batch in SIZES {
            recorded_equals_eager(gpu, tag, batch)?;
            println!("tiny model {tag}: 200 recorded steps of {batch} sequences equal steps as they are");
        }
    }
    Ok(())
}

fn recorded_equals_eager<D: Driver>(gpu: &impl Fn() -> Result<Gpu<D>>, tag: &str, batch: usize) -> Result<()> {
    let bench = |gpu: Gpu<D>| Golden::with_room(gpu, tag, batch).bench;
    let (mut eager, mut recorded) = (bench(gpu()?), bench(gpu()?).with_graphs());
    let mut next: Vec<u32> = (0..batch as u32).collect();
    for step in 0..200 {
        let runs: Vec<(usize, &[u32])> = next.chunks(1).enumerate().collect();
        let (wanted, got) = (eager.step(&runs), recorded.step(&runs));
        ensure!(wanted == got, "{tag}: step {step} of {batch} sequences differs when it is replayed");
        let likely = |row: &Vec<f32>| (0..VOCAB).max_by(|a, b| row[*a as usize].total_cmp(&row[*b as usize]));
        next = wanted.iter().filter_map(|rows| rows.last().and_then(likely)).collect();
    }
    ensure!(recorded.recorded() == 1, "{tag}: the steps of {batch} sequences were not recorded");
    Ok(())
}
