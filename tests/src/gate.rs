//! A runner whose steps wait for the test: so that tests say what happens during which step, without sleeping.

use std::sync::mpsc::{Receiver, Sender, channel};

use perilune_backend::BackendError;
use perilune_engine::{StepInput, StepOutput, StepRunner};

/// The runner's side.
pub struct Gated<R> {
    inner: R,
    arrivals: Sender<Vec<u64>>,
    permits: Receiver<()>,
}

/// The test's side. Once dropped, steps no longer wait.
pub struct Gate {
    arrivals: Receiver<Vec<u64>>,
    permits: Sender<()>,
}

/// Puts a gate before a runner.
pub fn gated<R: StepRunner>(inner: R) -> (Gated<R>, Gate) {
    let (arrived, arrivals) = channel();
    let (permit, permits) = channel();
    (Gated { inner, arrivals: arrived, permits }, Gate { arrivals, permits: permit })
}

impl Gate {
    /// Waits until a step is about to be computed; numbers of its requests.
    pub fn arrival(&self) -> Vec<u64> {
        self.arrivals.recv().expect("the engine has ended")
    }

    /// The step that has arrived, if there is one already; does not wait.
    pub fn try_arrival(&self) -> Option<Vec<u64>> {
        self.arrivals.try_recv().ok()
    }

    /// Lets one step pass.
    pub fn pass(&self) {
        self.permits.send(()).expect("the engine has ended");
    }
}

impl<R: StepRunner> StepRunner for Gated<R> {
    fn vocab_size(&self) -> usize {
        self.inner.vocab_size()
    }

    fn run(&mut self, input: &StepInput<'_>) -> Result<StepOutput, BackendError> {
        // Without a test at the other end nothing waits.
        if self.arrivals.send(input.runs.iter().map(|run| run.seq.0).collect()).is_ok() {
            let _ = self.permits.recv();
        }
        self.inner.run(input)
    }
}
