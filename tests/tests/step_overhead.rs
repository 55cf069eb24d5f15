//! What engine and scheduler cost per step when the device costs nothing, while another thread reads all streams:
//! `cargo test --release --package perilune-tests --test step_overhead -- --nocapture` prints time and allocations. Time
//! is checked for its order of magnitude only.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // all of it is test code

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use perilune_backend::{BackendError, SampledRow, TopLogprob};
use perilune_engine::{
    CheckpointRules, Engine, EngineConfig, GenerateRequest, SamplingParams, StepInput, StepOutput, StepRunner,
    TokenStream,
};
use perilune_tensor::TokenId;
use perilune_tests::room;

const SEQUENCES: usize = 256;
const TOKENS: usize = 300;

/// Counts the allocations of each thread.
struct Counting;

thread_local! {
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

impl Counting {
    fn count() {
        // A thread that ends may allocate after its counter is gone.
        let _ = ALLOCATIONS.try_with(|count| count.set(count.get() + 1));
    }
}

// SAFETY: everything is handed on to the system's allocator unchanged.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        Counting::count();
        // SAFETY: as this function's own contract.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        // SAFETY: as this function's own contract.
        unsafe { System.dealloc(ptr, layout) }
    }

    unsafe fn realloc(&self, ptr: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        Counting::count();
        // SAFETY: as this function's own contract.
        unsafe { System.realloc(ptr, layout, new_size) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Time and allocations between two steps.
type Between = Arc<Mutex<Vec<(Duration, u64)>>>;

/// A device that answers at once, but for its first step, which waits until everybody has come.
struct Null {
    all_here: Receiver<()>,
    left: Option<(Instant, u64)>,
    between: Between,
}

impl StepRunner for Null {
    fn vocab_size(&self) -> usize {
        1000
    }

    fn run(&mut self, input: &StepInput<'_>) -> Result<StepOutput, BackendError> {
        if self.left.is_none() {
            self.all_here.recv().unwrap();
        }
        let (arrived, allocations) = (Instant::now(), ALLOCATIONS.get());
        let all_decode = input.runs.len() == SEQUENCES && input.runs.iter().all(|run| run.tokens.len() == 1);
        if let (Some((left, before)), true) = (self.left, all_decode) {
            self.between.lock().unwrap().push((arrived - left, allocations - before));
        }
        let row = |_: &_| SampledRow::Token { chosen: TopLogprob { id: TokenId(7), logprob: -1.0 }, top: Vec::new() };
        let runs = input.runs.iter().map(|run| run.rows.iter().map(row).collect()).collect();
        self.left = Some((Instant::now(), ALLOCATIONS.get()));
        Ok(StepOutput { runs, ..StepOutput::default() })
    }
}

#[test]
fn a_step_of_256_sequences_on_a_device_that_costs_nothing() {
    let config = EngineConfig {
        max_running_requests: SEQUENCES,
        max_queued_requests: SEQUENCES,
        random_seed: None,
        chunked_prefill_size: 4096,
        max_prompt_logit_rows: 64,
        max_drafts: 0,
        context_length: 1024,
        cache: room(64, (SEQUENCES * 16, SEQUENCES + 16)),
        checkpoints: CheckpointRules { interval: 0, least_gap: 64 },
        eos_ids: vec![],
    };
    let between = Between::default();
    let (everybody, all_here) = channel();
    let engine = Engine::start(Null { all_here, left: None, between: between.clone() }, config).unwrap();
    let streams: Vec<_> = (0..SEQUENCES as u32)
        .map(|i| {
            let params = SamplingParams { seed: Some(1), max_tokens: Some(TOKENS), ..SamplingParams::default() };
            let prompt = (0..16).map(|j| TokenId((i * 17 + j) % 1000)).collect();
            engine.submit(GenerateRequest::new(prompt, params)).unwrap()
        })
        .collect();
    everybody.send(()).unwrap();
    let read = |mut stream: TokenStream| async move {
        let mut events = Vec::new();
        while let Some(event) = stream.next().await {
            events.push(event);
        }
        assert_eq!(perilune_tests::tokens(&events).len(), TOKENS);
    };
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    runtime.block_on(async {
        let readers: Vec<_> = streams.into_iter().map(|stream| tokio::spawn(read(stream))).collect();
        for reader in readers {
            reader.await.unwrap();
        }
    });
    engine.drain();
    engine.join();
    let mut between = std::mem::take(&mut *between.lock().unwrap());
    assert!(between.len() > TOKENS / 2, "{} steps of all sequences", between.len());
    between.sort_unstable();
    let (median, allocations) = between[between.len() / 2];
    eprintln!("{} steps of {SEQUENCES} sequences: {median:?} and {allocations} allocations between two", between.len());
    assert!(median < Duration::from_millis(20), "{median:?} between steps");
    assert!(allocations < SEQUENCES as u64 / 4, "{allocations} allocations between steps: some are per sequence");
}
