//! KDA under speculation: a verification gives the bits of decode and changes nothing, a fold leaves its states.

use std::ops::Range;

use perilune_backend::{Backend, KdaDims, KdaFold, KdaGate, KdaVerify, Segments, Snapshots};
use perilune_reference::kda::State;
use perilune_reference::kda_replay;

use crate::kda::{Copy, Entry, KdaCase, KdaStates, Run, reference_dims};
use crate::rig::{Rig, assert_close, assert_untouched};

/// Verified runs: rows of the case, slots.
const RUNS: [(Range<usize>, usize); 3] = [(3..6, 4), (6..7, 1), (7..15, 2)];
/// One row of each sequence comes first, so that no state is zero.
const FIRST: [(Range<usize>, usize); 3] = [(0..1, 4), (1..2, 1), (2..3, 2)];
const ROWS: usize = 16;

/// Both operations over several runs, widths and gates.
pub fn check_kda_replay<B: Backend>(backend: &B) {
    let rig = Rig(backend);
    for (heads, head_dim, conv_kernel) in [(2, 16, 4), (3, 33, 4), (1, 64, 2), (1, 128, 4)] {
        for gate in [KdaGate::Bounded { lower_bound: -5.0 }, KdaGate::Softplus] {
            let case = KdaCase::new(KdaDims { num_heads: heads, head_dim, conv_kernel }, gate, ROWS);
            let replay = verify(&rig, &case);
            for committed in [[3, 1, 8], [1, 0, 5], [0, 0, 0], [2, 1, 1]] {
                fold(&rig, &case, (&replay, committed, &[]));
            }
            fold(&rig, &case, (&replay, [3, 1, 7], &[(0, 1, 5), (2, 4, 6), (2, 7, 0)]));
        }
    }
}

/// Slots after the first rows.
fn begun<B: Backend>(rig: &Rig<'_, B>, case: &KdaCase) -> KdaStates<B::Tensor> {
    let mut states = case.states(rig, 7, &[1, 2, 4]);
    case.run(rig, (&FIRST, Entry::Decode), &mut states).unwrap();
    states
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|v| v.to_bits()).collect()
}

/// Verifies all runs; the stored inputs.
fn verify<B: Backend>(rig: &Rig<'_, B>, case: &KdaCase) -> B::Tensor {
    let dims = case.dims;
    let (p, what) = (dims.width(), format!("kda_verify {dims:?}"));
    let mut states = begun(rig, case);
    let before = rig.read(&states.arena);
    let mut replay = rig.poison([ROWS, dims.replay_width()]);
    let out =
        case.with_op(rig, (&RUNS, &[]), &mut states, |op| rig.0.kda_verify(KdaVerify { kda: op, replay: &mut replay }));
    let out = out.unwrap();
    assert_eq!(bits(&rig.read(&states.arena)), bits(&before), "{what}: the arena was written");
    let (stored, width) = (rig.read(&replay), dims.replay_width());
    for ((rows, slot), (first, _)) in RUNS.iter().zip(&FIRST) {
        let mut alone = begun(rig, case);
        for row in rows.clone() {
            let one = case.run(rig, (&[(row..row + 1, *slot)], Entry::Decode), &mut alone).unwrap();
            let at = row * p..(row + 1) * p;
            assert_eq!(bits(&out[at.clone()]), bits(&one[at]), "{what}: row {row} against a decode of its own");
        }
        let mut state = State::zeros(reference_dims(dims));
        case.reference(first.clone(), &mut state);
        let (want, steps) =
            case.with_reference(rows.clone(), |params, tokens| kda_replay::verify(params, tokens, &state));
        assert_close(&what, &out[rows.start * p..rows.end * p], &want, 2e-5);
        let steps: Vec<f32> = steps.iter().flat_map(|step| step.flat()).collect();
        assert_close(&what, &stored[rows.start * width..rows.end * width], &steps, 2e-5);
    }
    assert_untouched(&what, &out[..RUNS[0].0.start * p]);
    assert_untouched(&what, &out[RUNS[2].0.end * p..]);
    assert_untouched(&what, &stored[..RUNS[0].0.start * width]);
    assert_untouched(&what, &stored[RUNS[2].0.end * width..]);
    replay
}

/// Folds the first rows of each run; the arena must be, bit for bit, that of a decode of these rows.
fn fold<B: Backend>(rig: &Rig<'_, B>, case: &KdaCase, (replay, committed, copies): (&B::Tensor, [usize; 3], &[Copy])) {
    let dims = case.dims;
    let mut folded = begun(rig, case);
    let column = |values: &[usize]| rig.u32(&values.iter().map(|v| *v as u32).collect::<Vec<_>>());
    let (start, slot) = (column(&RUNS.clone().map(|r| r.0.start)), column(&RUNS.clone().map(|r| r.1)));
    let (len, position) = (column(&committed), column(&[0; 3]));
    let copied = |f: fn(&Copy) -> usize| column(&copies.iter().map(f).collect::<Vec<_>>());
    let (run, rows, target) = (copied(|c| c.0), copied(|c| c.1), copied(|c| c.2));
    let snapshots = Snapshots { count: copies.len(), run: &run, rows: &rows, slot: &target };
    let op = KdaFold {
        dims,
        segments: Segments { count: 3, start: &start, len: &len, position: &position, slot: &slot },
        replay,
        arena: &mut folded.arena,
        conv_at: folded.conv_at,
        state_at: folded.state_at,
        snapshots: (!copies.is_empty()).then_some(snapshots),
    };
    rig.0.kda_fold(op).unwrap();
    rig.0.synchronize().unwrap();
    let mut decoded = begun(rig, case);
    let runs: Vec<Run> =
        RUNS.iter().zip(committed).map(|((rows, slot), n)| (rows.start..rows.start + n, *slot)).collect();
    // A decode has no empty runs: the others keep their numbers for the copies only if all are there.
    let some: Vec<Run> = runs.into_iter().filter(|(rows, _)| !rows.is_empty()).collect();
    case.run_and_copy(rig, (&some, copies, Entry::Decode), &mut decoded).unwrap();
    let (got, want) = (rig.read(&folded.arena), rig.read(&decoded.arena));
    assert_eq!(bits(&got), bits(&want), "kda_fold {dims:?}: {committed:?} rows, copies {copies:?}");
}
