//! A fork-join thread pool: one parallel loop at a time, cheap to start, tasks claimed one by one.
//!
//! Threads that have nothing to do spin for a moment, because the next operation usually follows at once, then sleep.
//! The calling thread takes part and never waits for a thread that has not yet joined the loop, so the pool also works
//! where there are more threads than processors. Loops do not nest.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use perilune_backend::BackendError;

/// Whether threads are tied to processors.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Pinning {
    /// Each thread of the pool on its own processor, where there are enough of them. The calling thread stays free.
    #[default]
    Cores,
    /// As the operating system likes.
    Off,
}

/// How often a thread looks for work, or the caller for the end of it, before it sleeps or yields: some 20 µs.
const SPINS: usize = 2_000;
/// Low bits of the state word: threads inside the loop. Above them the open flag, then the number of the loop.
const OPEN: u64 = 1 << 16;
const LOOP_STEP: u64 = 1 << 17;

/// The body of a loop with its lifetime erased: called with the thread's index and the task's.
type Body = *const (dyn Fn(usize, usize) + Sync);

/// The loop that is running.
#[derive(Clone, Copy)]
struct Loop {
    body: Body,
    tasks: usize,
}

/// SAFETY: the pointer is only followed while `Pool::run`, which borrows the body, has not returned.
unsafe impl Send for Loop {}

struct Shared {
    state: AtomicU64,
    current: Mutex<Option<Loop>>,
    next_task: AtomicUsize,
    sleepers: AtomicUsize,
    sleep: Mutex<()>,
    wake: Condvar,
    stop: AtomicBool,
    panic: Mutex<Option<String>>,
}

/// The pool. Dropping it ends its threads.
pub(crate) struct Pool {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
    one_loop: Mutex<()>,
}

impl Pool {
    /// A pool of `threads` threads in all, the caller of [`Pool::run`] included.
    ///
    /// # Errors
    /// `Device` where the system refuses a thread.
    pub(crate) fn new(threads: usize, pinning: Pinning) -> Result<Pool, BackendError> {
        let shared = Arc::new(Shared::new());
        let cores = core_affinity::get_core_ids().unwrap_or_default();
        let mut pool = Pool { shared, threads: Vec::new(), one_loop: Mutex::new(()) };
        for index in 1..threads.max(1) {
            let core = (pinning == Pinning::Cores && threads <= cores.len()).then(|| cores[index]);
            let shared = pool.shared.clone();
            let body = move || {
                if let Some(core) = core {
                    core_affinity::set_for_current(core);
                }
                shared.work(index);
            };
            let spawned = std::thread::Builder::new().name(format!("cpu-{index}")).spawn(body);
            pool.threads.push(spawned.map_err(|e| BackendError::Device(format!("cannot start a thread: {e}")))?);
        }
        Ok(pool)
    }

    /// Number of threads, the caller included.
    pub(crate) fn num_threads(&self) -> usize {
        self.threads.len() + 1
    }

    /// Runs `body(thread, task)` once for every task, in any order, on any thread; returns when all are done.
    ///
    /// # Errors
    /// `Device` where a task panicked; the other tasks still ran.
    pub(crate) fn run(&self, tasks: usize, body: impl Fn(usize, usize) + Sync) -> Result<(), BackendError> {
        let _one = lock(&self.one_loop);
        let shared = &*self.shared;
        let erased: &(dyn Fn(usize, usize) + Sync) = &body;
        // SAFETY: only the lifetime changes; `open` .. `close` below ends all use of the pointer before `body` dies.
        let erased: Body = unsafe { std::mem::transmute::<&(dyn Fn(usize, usize) + Sync), Body>(erased) };
        let job = Loop { body: erased, tasks };
        shared.next_task.store(0, Ordering::Relaxed);
        if tasks > 1 && !self.threads.is_empty() {
            shared.open(job);
            shared.claim_tasks(0, job);
            shared.close();
        } else {
            shared.claim_tasks(0, job);
        }
        match lock(&shared.panic).take() {
            Some(message) => Err(BackendError::Device(format!("a task panicked: {message}"))),
            None => Ok(()),
        }
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::SeqCst);
        {
            let _guard = lock(&self.shared.sleep);
            self.shared.wake.notify_all();
        }
        for thread in self.threads.drain(..) {
            // A worker catches the panics of its tasks; there is nothing left to report.
            let _ = thread.join();
        }
    }
}

impl Shared {
    fn new() -> Shared {
        Shared {
            state: AtomicU64::new(0),
            current: Mutex::new(None),
            next_task: AtomicUsize::new(0),
            sleepers: AtomicUsize::new(0),
            sleep: Mutex::new(()),
            wake: Condvar::new(),
            stop: AtomicBool::new(false),
            panic: Mutex::new(None),
        }
    }

    /// Publishes a loop and wakes the sleepers.
    fn open(&self, job: Loop) {
        *lock(&self.current) = Some(job);
        self.state.fetch_add(LOOP_STEP | OPEN, Ordering::SeqCst);
        if self.sleepers.load(Ordering::SeqCst) > 0 {
            let _guard = lock(&self.sleep);
            self.wake.notify_all();
        }
    }

    /// Lets no further thread in and waits for those inside.
    fn close(&self) {
        self.state.fetch_sub(OPEN, Ordering::SeqCst);
        let mut spins = 0;
        while self.state.load(Ordering::Acquire) & (OPEN - 1) != 0 {
            spins += 1;
            if spins < SPINS { std::hint::spin_loop() } else { std::thread::yield_now() }
        }
        *lock(&self.current) = None;
    }

    /// Takes tasks until there are none.
    fn claim_tasks(&self, thread: usize, job: Loop) {
        loop {
            let task = self.next_task.fetch_add(1, Ordering::Relaxed);
            if task >= job.tasks {
                return;
            }
            // SAFETY: `Pool::run` keeps the body alive until the loop is closed and every thread inside has left.
            let body = unsafe { &*job.body };
            if let Err(panic) = catch_unwind(AssertUnwindSafe(|| body(thread, task))) {
                lock(&self.panic).get_or_insert_with(|| message(panic.as_ref()));
            }
        }
    }

    /// The life of a worker: join each loop once, sleep between loops.
    fn work(&self, thread: usize) {
        let mut seen = 0;
        while let Some(state) = self.wait_for_loop(seen) {
            // Joining fails where the loop closed meanwhile or another thread joined first; look again.
            if self.state.compare_exchange(state, state + 1, Ordering::AcqRel, Ordering::Relaxed).is_err() {
                continue;
            }
            seen = state & !(LOOP_STEP - 1);
            let job = *lock(&self.current);
            if let Some(job) = job {
                self.claim_tasks(thread, job);
            }
            self.state.fetch_sub(1, Ordering::Release);
        }
    }

    /// The state once a loop other than `seen` is open; `None` when the pool ends.
    fn wait_for_loop(&self, seen: u64) -> Option<u64> {
        let ready = |order| {
            let state = self.state.load(order);
            (state & OPEN != 0 && state & !(LOOP_STEP - 1) != seen).then_some(state)
        };
        loop {
            for _ in 0..SPINS {
                if self.stop.load(Ordering::Relaxed) {
                    return None;
                }
                if let Some(state) = ready(Ordering::Acquire) {
                    return Some(state);
                }
                std::hint::spin_loop();
            }
            let guard = lock(&self.sleep);
            self.sleepers.fetch_add(1, Ordering::SeqCst);
            if ready(Ordering::SeqCst).is_none() && !self.stop.load(Ordering::SeqCst) {
                drop(self.wake.wait(guard).unwrap_or_else(PoisonError::into_inner));
            }
            self.sleepers.fetch_sub(1, Ordering::SeqCst);
        }
    }
}

/// A lock whose holder cannot leave broken data behind.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn message(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|s| (*s).to_owned());
    text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_else(|| "no message".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_task_runs_once_for_any_count_of_threads() {
        for threads in [1, 2, 3, 8] {
            let pool = Pool::new(threads, Pinning::Cores).unwrap();
            for tasks in [0, 1, 2, 7, 100] {
                for _ in 0..200 {
                    let counts: Vec<AtomicUsize> = (0..tasks).map(|_| AtomicUsize::new(0)).collect();
                    pool.run(tasks, |thread, task| {
                        assert!(thread < threads);
                        counts[task].fetch_add(1, Ordering::Relaxed);
                    })
                    .unwrap();
                    assert!(counts.iter().all(|c| c.load(Ordering::Relaxed) == 1), "{threads} threads, {tasks} tasks");
                }
            }
        }
    }

    #[test]
    fn a_panic_is_an_error_and_the_pool_lives_on() {
        let pool = Pool::new(2, Pinning::Off).unwrap();
        let done = AtomicUsize::new(0);
        let outcome = pool.run(10, |_, task| {
            assert!(task != 3, "task three");
            done.fetch_add(1, Ordering::Relaxed);
        });
        assert!(matches!(outcome, Err(BackendError::Device(text)) if text.contains("task three")));
        assert_eq!(done.load(Ordering::Relaxed), 9);
        pool.run(1, |_, _| {}).unwrap();
    }

    #[test]
    fn callers_on_several_threads_take_turns() {
        let pool = Pool::new(2, Pinning::Off).unwrap();
        let total = AtomicUsize::new(0);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..100 {
                        pool.run(5, |_, _| {
                            total.fetch_add(1, Ordering::Relaxed);
                        })
                        .unwrap();
                    }
                });
            }
        });
        assert_eq!(total.load(Ordering::Relaxed), 4 * 100 * 5);
    }
}
