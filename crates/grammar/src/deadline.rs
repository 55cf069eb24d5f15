//! Runs work on a thread of its own until a deadline: compilation must neither hold up a request for ever nor run out
//! of a small stack.
//!
//! Work that misses the deadline goes on until the library's own limits end it; only so many run at once, so that
//! a client cannot fill the machine with it.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::GrammarError;

/// Stack of a compiling thread: recursion follows the depth of schemas and expressions.
const STACK_BYTES: usize = 64 << 20;

/// Places for work.
#[derive(Debug, Clone)]
pub(crate) struct Places(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    count: usize,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug)]
struct State {
    free: usize,
    /// Work that goes on although nobody waits for it any more, and that has no place: up to as much as there are places,
    /// so that others are served meanwhile.
    abandoned: usize,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Places {
    pub(crate) fn new(count: usize) -> Self {
        let state = Mutex::new(State { free: count, abandoned: 0 });
        Places(Arc::new(Shared { count, state, changed: Condvar::new() }))
    }

    /// Runs `work`; `Busy` where it has not begun within `limit`, `TimedOut` where it has not ended.
    pub(crate) fn run<T: Send + 'static>(
        &self,
        limit: Duration,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, GrammarError> {
        let place = self.take(limit).ok_or(GrammarError::Busy(limit))?;
        let given_up = place.given_up.clone();
        let (sender, receiver) = channel();
        let work = move || {
            let _place = place;
            // Whoever waited may have given up.
            let _ = sender.send(work());
        };
        let thread = std::thread::Builder::new().name("perilune-grammar".into()).stack_size(STACK_BYTES).spawn(work);
        thread.map_err(|error| GrammarError::Compile(format!("no thread could be started: {error}")))?;
        receiver.recv_timeout(limit).map_err(|error| match error {
            RecvTimeoutError::Timeout => {
                self.give_up(&given_up);
                GrammarError::TimedOut(limit)
            }
            RecvTimeoutError::Disconnected => GrammarError::Compile("the compiler failed".into()),
        })
    }

    fn take(&self, limit: Duration) -> Option<Place> {
        let waited = self.0.changed.wait_timeout_while(self.0.lock(), limit, |state| state.free == 0);
        let (mut state, _) = waited.unwrap_or_else(PoisonError::into_inner);
        state.free = state.free.checked_sub(1)?;
        Some(Place { shared: self.0.clone(), given_up: Arc::default() })
    }

    /// The place of work that nobody waits for goes to others.
    fn give_up(&self, given_up: &AtomicBool) {
        let mut state = self.0.lock();
        if state.abandoned < self.0.count && !given_up.swap(true, Ordering::Relaxed) {
            state.abandoned += 1;
            state.free += 1;
            self.0.changed.notify_one();
        }
    }
}

/// A place taken; given back on drop.
struct Place {
    shared: Arc<Shared>,
    /// Whether it has another owner by now; changed only under the lock.
    given_up: Arc<AtomicBool>,
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut state = self.shared.lock();
        if self.given_up.swap(true, Ordering::Relaxed) {
            state.abandoned -= 1;
        } else {
            state.free += 1;
            self.shared.changed.notify_one();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SOON: Duration = Duration::from_millis(20);
    const LATE: Duration = Duration::from_secs(60);

    #[test]
    fn work_that_takes_too_long_leaves_its_place_to_others() {
        let places = Places::new(1);
        let (release, held) = channel::<()>();
        assert!(matches!(places.run(SOON, move || held.recv()), Err(GrammarError::TimedOut(_))));
        assert_eq!(places.run(LATE, || 1), Ok(1), "others are served");
        let (release_too, held) = channel::<()>();
        assert!(matches!(places.run(SOON, move || held.recv()), Err(GrammarError::TimedOut(_))));
        assert!(matches!(places.run(SOON, || 1), Err(GrammarError::Busy(_))), "but not without end");
        drop((release, release_too));
        assert_eq!(places.run(LATE, || 1), Ok(1), "places come back");
    }

    #[test]
    fn a_panic_fails_its_own_work() {
        let places = Places::new(1);
        let failed = places.run(LATE, || -> i32 { panic!("on purpose") });
        assert!(matches!(failed, Err(GrammarError::Compile(_))));
        assert_eq!(places.run(LATE, || 2), Ok(2));
    }
}
