//! KDA: runs of one and of many tokens, both gates, against the recurrence.

use std::ops::Range;

use perilune_backend::{Backend, BackendError, Kda, KdaDims, KdaGate, KdaParams, Segments, Snapshots, UnitLayout};
use perilune_reference::kda::{Dims, Params, State, Token, step};
use perilune_tensor::TensorSpec;

use crate::rig::{Noise, Rig, assert_close, assert_untouched};

/// Which of the two entry points.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Entry {
    Decode,
    Prefill,
}

/// A layer, a batch of its inputs, and where each run belongs.
pub(crate) struct KdaCase {
    pub(crate) dims: KdaDims,
    gate: KdaGate,
    conv: [Vec<f32>; 3],
    a_log: Vec<f32>,
    dt_bias: Vec<f32>,
    out_norm: Vec<f32>,
    /// q, k, v, gate, out_gate of all rows, each `[N, P]`.
    wide: [Vec<f32>; 5],
    beta: Vec<f32>,
    rows: usize,
}

/// A run: rows of the case, the slot of its sequence.
pub(crate) type Run = (Range<usize>, usize);

/// Some slots in an arena whose other elements belong to nobody.
pub(crate) struct KdaStates<T> {
    pub(crate) arena: T,
    pub(crate) conv_at: UnitLayout,
    pub(crate) state_at: UnitLayout,
}

/// A copy to be taken: index of the run, rows, slot.
pub(crate) type Copy = (usize, usize, usize);

/// Elements of nobody before, between and after the parts of a slot: aligned to wide loads for some widths of a head,
/// to nothing for others.
fn gap(dims: KdaDims) -> usize {
    if dims.head_dim.is_multiple_of(16) { 8 } else { 5 }
}

impl<T> KdaStates<T> {
    fn parts(&self, dims: KdaDims, slot: usize) -> [Range<usize>; 2] {
        let (state, conv) = (self.state_at.start(slot), self.conv_at.start(slot));
        [state..state + dims.state_len(), conv..conv + dims.conv_state_len()]
    }

    /// Recurrent state and convolution tail of a slot.
    pub(crate) fn read<B: Backend<Tensor = T>>(&self, rig: &Rig<'_, B>, (dims, slot): (KdaDims, usize)) -> State {
        let all = rig.read(&self.arena);
        let [state, conv] = self.parts(dims, slot);
        State { recurrent: all[state].to_vec(), conv: all[conv].to_vec() }
    }

    /// Panics unless everything but some slots is as poisoned as in the beginning.
    fn assert_only<B: Backend<Tensor = T>>(&self, rig: &Rig<'_, B>, what: &str, (dims, slots): (KdaDims, &[usize])) {
        let mut all = rig.read(&self.arena);
        for slot in slots {
            self.parts(dims, *slot).into_iter().for_each(|part| all[part].fill(f32::NAN));
        }
        assert_untouched(what, &all);
    }
}

impl KdaCase {
    pub(crate) fn new(dims: KdaDims, gate: KdaGate, rows: usize) -> KdaCase {
        let mut noise = Noise::new(rows as u64 * 31 + dims.head_dim as u64);
        let p = dims.width();
        KdaCase {
            dims,
            gate,
            conv: std::array::from_fn(|_| noise.row(p * dims.conv_kernel, 1.0)),
            a_log: noise.row(dims.num_heads, 1.0),
            dt_bias: noise.row(p, 2.0),
            out_norm: noise.row(dims.head_dim, 2.0),
            wide: std::array::from_fn(|_| noise.row(rows * p, 2.0)),
            beta: noise.row(rows * dims.num_heads, 3.0),
            rows,
        }
    }

    pub(crate) fn params<B: Backend>(&self, rig: &Rig<'_, B>) -> KdaParams<B::Tensor> {
        let p = self.dims.width();
        KdaParams {
            dims: self.dims,
            gate: self.gate,
            conv: std::array::from_fn(|i| rig.f32([p, self.dims.conv_kernel], &self.conv[i])),
            a_log: rig.f32([self.dims.num_heads], &self.a_log),
            dt_bias: rig.f32([p], &self.dt_bias),
            out_norm: rig.f32([self.dims.head_dim], &self.out_norm),
            eps: 1e-5,
        }
    }

    /// Poisoned slots, those of `zeroed` cleared.
    pub(crate) fn states<B: Backend>(&self, rig: &Rig<'_, B>, slots: usize, zeroed: &[usize]) -> KdaStates<B::Tensor> {
        let (state, conv) = (self.dims.state_len(), self.dims.conv_state_len());
        let gap = gap(self.dims);
        let stride = state + conv + 3 * gap;
        let units = |offset: usize| UnitLayout { offset, stride, count: slots };
        let arena = rig.poison([slots * stride]);
        let mut states = KdaStates { arena, state_at: units(gap), conv_at: units(gap + state + gap) };
        for slot in zeroed {
            for part in states.parts(self.dims, *slot) {
                rig.0.zero(&mut states.arena, part).unwrap();
            }
        }
        states
    }

    /// Runs the operation over some runs of the case; the output of all rows, poisoned where no run writes.
    pub(crate) fn run<B: Backend>(
        &self,
        rig: &Rig<'_, B>,
        (runs, entry): (&[Run], Entry),
        states: &mut KdaStates<B::Tensor>,
    ) -> Result<Vec<f32>, BackendError> {
        self.run_and_copy(rig, (runs, &[], entry), states)
    }

    /// The same, with copies of states taken on the way.
    pub(crate) fn run_and_copy<B: Backend>(
        &self,
        rig: &Rig<'_, B>,
        (runs, copies, entry): (&[Run], &[Copy], Entry),
        states: &mut KdaStates<B::Tensor>,
    ) -> Result<Vec<f32>, BackendError> {
        self.with_op(rig, (runs, copies), states, |op| match entry {
            Entry::Decode => rig.0.kda_decode(op),
            Entry::Prefill => rig.0.kda_prefill(op),
        })
    }

    /// Hands the operation to `call`; the output of all rows.
    pub(crate) fn with_op<B: Backend>(
        &self,
        rig: &Rig<'_, B>,
        (runs, copies): (&[Run], &[Copy]),
        states: &mut KdaStates<B::Tensor>,
        call: impl FnOnce(Kda<'_, B::Tensor>) -> Result<(), BackendError>,
    ) -> Result<Vec<f32>, BackendError> {
        let p = self.dims.width();
        let column = |f: &dyn Fn(&Run) -> usize| rig.u32(&runs.iter().map(|r| f(r) as u32).collect::<Vec<_>>());
        let (start, len) = (column(&|r| r.0.start), column(&|r| r.0.len()));
        let (position, slot) = (column(&|_| 0), column(&|r| r.1));
        let of_copies = |f: &dyn Fn(&Copy) -> usize| rig.u32(&copies.iter().map(|c| f(c) as u32).collect::<Vec<_>>());
        let (copied, after, target) = (of_copies(&|c| c.0), of_copies(&|c| c.1), of_copies(&|c| c.2));
        let snapshots = Snapshots { count: copies.len(), run: &copied, rows: &after, slot: &target };
        let wide: [B::Tensor; 5] = std::array::from_fn(|i| rig.f32([self.rows, p], &self.wide[i]));
        let beta = rig.f32([self.rows, self.dims.num_heads], &self.beta);
        let params = self.params(rig);
        let mut out = rig.poison([self.rows, p]);
        let op = Kda {
            params: &params,
            segments: Segments { count: runs.len(), start: &start, len: &len, position: &position, slot: &slot },
            q: &wide[0],
            k: &wide[1],
            v: &wide[2],
            gate: &wide[3],
            beta: &beta,
            out_gate: &wide[4],
            arena: &mut states.arena,
            conv_at: states.conv_at,
            state_at: states.state_at,
            snapshots: (!copies.is_empty()).then_some(snapshots),
            out: &mut out,
        };
        call(op)?;
        rig.0.synchronize()?;
        Ok(rig.read(&out))
    }

    /// The recurrence over rows of one sequence.
    pub(crate) fn reference(&self, rows: Range<usize>, state: &mut State) -> Vec<f32> {
        self.with_reference(rows, |params, tokens| tokens.iter().flat_map(|token| step(params, token, state)).collect())
    }

    /// The reference's view of the layer and of some rows.
    pub(crate) fn with_reference<R>(&self, rows: Range<usize>, call: impl FnOnce(&Params<'_>, &[Token<'_>]) -> R) -> R {
        let d = self.dims;
        let (p, heads) = (d.width(), d.num_heads);
        let params = Params {
            dims: Dims { heads, head_dim: d.head_dim, taps: d.conv_kernel },
            conv: [&self.conv[0], &self.conv[1], &self.conv[2]],
            a_log: &self.a_log,
            dt_bias: &self.dt_bias,
            out_norm: &self.out_norm,
            eps: 1e-5,
            lower_bound: if let KdaGate::Bounded { lower_bound } = self.gate { Some(lower_bound) } else { None },
        };
        let token = |t: usize| {
            let wide = |i: usize| &self.wide[i][t * p..(t + 1) * p];
            let beta = &self.beta[t * heads..(t + 1) * heads];
            Token { q: wide(0), k: wide(1), v: wide(2), gate: wide(3), beta, out_gate: wide(4) }
        };
        call(&params, &rows.map(token).collect::<Vec<_>>())
    }
}

/// Mixed runs against the recurrence: outputs, states and convolution tails; nobody else's rows and slots are touched.
pub fn check_kda<B: Backend>(backend: &B) {
    let rig = Rig(backend);
    let gates = [KdaGate::Bounded { lower_bound: -5.0 }, KdaGate::Softplus];
    for (heads, head_dim, conv_kernel) in [(1, 1, 4), (2, 16, 4), (3, 33, 4), (1, 64, 2), (2, 128, 4)] {
        for gate in gates {
            let dims = KdaDims { num_heads: heads, head_dim, conv_kernel };
            for lengths in [&[1][..], &[1, 1, 1], &[8, 1, 3]] {
                two_steps(&rig, (dims, gate), lengths, Entry::Decode);
            }
            for lengths in [&[1][..], &[2, 1], &[17, 64, 5], &[130]] {
                two_steps(&rig, (dims, gate), lengths, Entry::Prefill);
            }
        }
    }
    extreme_gates(&rig);
    copies(&rig);
    refuses(&rig);
    no_runs(&rig);
}

/// Decays of exactly 0 and exactly 1 side by side, from a rate that overflows: nothing becomes NaN.
fn extreme_gates<B: Backend>(rig: &Rig<'_, B>) {
    const TOKENS: usize = 70;
    let dims = KdaDims { num_heads: 2, head_dim: 20, conv_kernel: 4 };
    for gate in [KdaGate::Bounded { lower_bound: -5.0 }, KdaGate::Softplus] {
        for (lengths, entry) in [(&[TOKENS][..], Entry::Prefill), (&[1; TOKENS], Entry::Decode)] {
            let mut case = KdaCase::new(dims, gate, TOKENS);
            case.a_log = vec![100.0, -3.0];
            case.dt_bias.fill(0.0);
            case.wide[3].iter_mut().enumerate().for_each(|(i, z)| *z = [-200.0, 0.0, 10.0, 1000.0][i % 4]);
            let mut states = case.states(rig, 1, &[0]);
            let mut state = State::zeros(reference_dims(dims));
            let want = case.reference(0..TOKENS, &mut state);
            let (mut first, mut got) = (0, Vec::new());
            for len in lengths {
                let rows = first..first + len;
                let out = case.run(rig, (&[(rows.clone(), 0)], entry), &mut states).unwrap();
                got.extend_from_slice(&out[rows.start * dims.width()..rows.end * dims.width()]);
                first += len;
            }
            let what = format!("kda at the limits of {gate:?}, {entry:?}");
            assert!(want.iter().all(|v| v.is_finite()), "{what}: the reference");
            assert_close(&what, &got, &want, output_tolerance(dims));
            assert_close(&what, &states.read(rig, (dims, 0)).recurrent, &state.recurrent, 2e-5);
        }
    }
}

/// Each sequence gets a run in a first and a second call; between them only its slot carries over.
fn two_steps<B: Backend>(rig: &Rig<'_, B>, (dims, gate): (KdaDims, KdaGate), lengths: &[usize], entry: Entry) {
    let total: usize = lengths.iter().sum();
    let case = KdaCase::new(dims, gate, 2 * total + 1);
    let slots = lengths.len() + 2;
    let slot_of: Vec<usize> = (0..lengths.len()).map(|i| slots - 1 - i).collect();
    let mut states = case.states(rig, slots, &slot_of);
    let mut expected: Vec<State> = lengths.iter().map(|_| State::zeros(reference_dims(dims))).collect();
    let (p, what) = (dims.width(), format!("kda {dims:?} {gate:?} {lengths:?} {entry:?}"));
    for half in 0..2 {
        let mut first = half * total;
        let mut runs = Vec::new();
        for (i, len) in lengths.iter().enumerate() {
            runs.push((first..first + len, slot_of[i]));
            first += len;
        }
        let got = case.run(rig, (&runs, entry), &mut states).unwrap();
        for ((rows, _), state) in runs.iter().zip(&mut expected) {
            let want = case.reference(rows.clone(), state);
            assert_close(&what, &got[rows.start * p..rows.end * p], &want, output_tolerance(dims));
        }
        assert_untouched(&what, &got[first * p..]);
        assert_untouched(&what, &got[..half * total * p]);
    }
    for (slot, state) in slot_of.iter().zip(&expected) {
        let got = states.read(rig, (dims, *slot));
        assert_eq!(got.conv, state.conv, "{what}: convolution tail");
        assert_close(&what, &got.recurrent, &state.recurrent, 2e-5);
    }
    states.assert_only(rig, &what, (dims, &slot_of));
}

/// Copies after the first, some and all rows of a run hold what their slots would hold had the run ended there, bit for
/// bit; outputs and the runs' own slots are as without copies; nobody else's slots are touched.
fn copies<B: Backend>(rig: &Rig<'_, B>) {
    for (head_dim, conv_kernel) in [(20, 4), (64, 2)] {
        let dims = KdaDims { num_heads: 2, head_dim, conv_kernel };
        for (lengths, cuts, entry) in [
            ([100, 70], [&[1, 64, 99][..], &[70]], Entry::Prefill),
            ([20, 9], [&[2, 3, 16][..], &[]], Entry::Prefill),
            ([8, 3], [&[1, 2, 5][..], &[3]], Entry::Decode),
            ([1, 1], [&[][..], &[1]], Entry::Decode),
        ] {
            let case = KdaCase::new(dims, KdaGate::Bounded { lower_bound: -5.0 }, lengths[0] + lengths[1]);
            let runs = [(0..lengths[0], 1), (lengths[0]..lengths[0] + lengths[1], 3)];
            let mut wanted: Vec<Copy> = Vec::new();
            for (run, cuts) in cuts.iter().enumerate() {
                for rows in *cuts {
                    wanted.push((run, *rows, 4 + wanted.len()));
                }
            }
            let what = format!("kda {dims:?} {lengths:?}, copies {wanted:?}, {entry:?}");
            let mut states = case.states(rig, 9, &[1, 3]);
            let got = case.run_and_copy(rig, (&runs, &wanted, entry), &mut states).unwrap();
            let mut plain = case.states(rig, 9, &[1, 3]);
            let out = case.run(rig, (&runs, entry), &mut plain).unwrap();
            let tolerance = if entry == Entry::Prefill { 2e-5 } else { 0.0 };
            assert_close(&what, &got, &out, tolerance);
            for (_, slot) in &runs {
                let (got, want) = (states.read(rig, (dims, *slot)), plain.read(rig, (dims, *slot)));
                assert_close(&what, &got.recurrent, &want.recurrent, tolerance);
                assert_eq!(got.conv, want.conv, "{what}: slot {slot}");
            }
            for (run, rows, slot) in &wanted {
                let mut short = case.states(rig, 9, &[1, 3]);
                let (range, own) = runs[*run].clone();
                case.run(rig, (&[(range.start..range.start + rows, own)], entry), &mut short).unwrap();
                let (got, want) = (states.read(rig, (dims, *slot)), short.read(rig, (dims, own)));
                assert_close(&what, &got.recurrent, &want.recurrent, tolerance);
                assert_eq!(got.conv, want.conv, "{what}: copy in slot {slot}");
            }
            let used: Vec<usize> = wanted.iter().map(|c| c.2).chain([1, 3]).collect();
            states.assert_only(rig, &what, (dims, &used));
        }
    }
}

/// The output norm of a one-wide head divides a value by itself: near zero it magnifies rounding up to `eps^(-1/2)` times.
fn output_tolerance(dims: KdaDims) -> f32 {
    if dims.head_dim == 1 { 1e-3 } else { 2e-5 }
}

pub(crate) fn reference_dims(d: KdaDims) -> Dims {
    Dims { heads: d.num_heads, head_dim: d.head_dim, taps: d.conv_kernel }
}

/// An arena too small for its slots is refused.
fn refuses<B: Backend>(rig: &Rig<'_, B>) {
    let dims = KdaDims { num_heads: 1, head_dim: 8, conv_kernel: 4 };
    let case = KdaCase::new(dims, KdaGate::Softplus, 2);
    let mut states = case.states(rig, 2, &[0, 1]);
    assert!(case.run(rig, (&[(0..1, 0)], Entry::Decode), &mut states).is_ok());
    let len = states.state_at.start(1) + dims.state_len() + gap(dims) + dims.conv_state_len();
    states.arena = rig.0.alloc(&TensorSpec::f32([len - 1])).unwrap();
    assert!(case.run(rig, (&[(0..1, 0)], Entry::Decode), &mut states).is_err());
}

fn no_runs<B: Backend>(rig: &Rig<'_, B>) {
    let dims = KdaDims { num_heads: 1, head_dim: 8, conv_kernel: 4 };
    let case = KdaCase::new(dims, KdaGate::Softplus, 2);
    let mut states = case.states(rig, 1, &[]);
    for entry in [Entry::Decode, Entry::Prefill] {
        assert_untouched("kda without runs", &case.run(rig, (&[], entry), &mut states).unwrap());
    }
    assert_untouched("kda without runs", &rig.read(&states.arena));
}
