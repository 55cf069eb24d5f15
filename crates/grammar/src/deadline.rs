//! Runs work on a thread of its own until a deadline: compilation must neither hold up a request for ever nor run out
//! of a small stack.
//!
//! Work that misses the deadline goes on until the library's own limits end it; only so many run at once, so that
//! a client cannot fill the machine with it.

use std::sync::mpsc::{RecvTimeoutError, channel};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::GrammarError;

/// Stack of a compiling thread: recursion follows the depth of schemas and expressions.
const STACK_BYTES: usize = 64 << 20;

/// Places for work.
#[derive(Debug, Clone)]
pub(crate) struct Places(Arc<(Mutex<usize>, Condvar)>);

impl Places {
    pub(crate) fn new(count: usize) -> Self {
        Places(Arc::new((Mutex::new(count), Condvar::new())))
    }

    /// Runs `work`; `TimedOut` where it has not begun and ended within `limit`.
    pub(crate) fn run<T: Send + 'static>(
        &self,
        limit: Duration,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, GrammarError> {
        let end = Instant::now() + limit;
        let place = self.take(end).ok_or(GrammarError::TimedOut(limit))?;
        let (sender, receiver) = channel();
        let work = move || {
            let _place = place;
            // Whoever waited may have given up.
            let _ = sender.send(work());
        };
        let thread = std::thread::Builder::new().name("perilune-grammar".into()).stack_size(STACK_BYTES).spawn(work);
        thread.map_err(|error| GrammarError::Compile(format!("no thread could be started: {error}")))?;
        receiver.recv_timeout(end.saturating_duration_since(Instant::now())).map_err(|error| match error {
            RecvTimeoutError::Timeout => GrammarError::TimedOut(limit),
            RecvTimeoutError::Disconnected => GrammarError::Compile("the compiler failed".into()),
        })
    }

    fn take(&self, end: Instant) -> Option<Place> {
        let (free, changed) = &*self.0;
        let free = free.lock().unwrap_or_else(PoisonError::into_inner);
        let wait = end.saturating_duration_since(Instant::now());
        let waited = changed.wait_timeout_while(free, wait, |free| *free == 0);
        let (mut free, timeout) = waited.unwrap_or_else(PoisonError::into_inner);
        if timeout.timed_out() && *free == 0 {
            return None;
        }
        *free -= 1;
        Some(Place(self.0.clone()))
    }
}

/// A place taken; given back on drop.
struct Place(Arc<(Mutex<usize>, Condvar)>);

impl Drop for Place {
    fn drop(&mut self) {
        let (free, changed) = &*self.0;
        *free.lock().unwrap_or_else(PoisonError::into_inner) += 1;
        changed.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slow_work_and_full_places_time_out_and_places_come_back() {
        let places = Places::new(1);
        let (release, held) = channel::<()>();
        let slow = places.run(Duration::from_millis(20), move || held.recv());
        assert!(matches!(slow, Err(GrammarError::TimedOut(_))));
        assert!(matches!(places.run(Duration::from_millis(20), || 1), Err(GrammarError::TimedOut(_))));
        drop(release);
        assert_eq!(places.run(Duration::from_secs(60), || 1), Ok(1));
        let failed = places.run(Duration::from_secs(60), || -> i32 { panic!("on purpose") });
        assert!(matches!(failed, Err(GrammarError::Compile(_))));
        assert_eq!(places.run(Duration::from_secs(60), || 2), Ok(2));
    }
}
