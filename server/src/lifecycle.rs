//! Where the process is between start and end, and how many requests are in flight.
//!
//! `Loading → Ready → Draining → Cut`, or `Failed` from anywhere. Everything that waits (streams, the drain, the main
//! task) watches one channel; nothing polls. Signals are in `drain`.

use std::time::Duration;

use tokio::sync::watch;
use tokio::time::{Instant, timeout, timeout_at};

/// How long streams that were told to end may take to say so.
pub const LAST_WORDS: Duration = Duration::from_secs(2);

/// The state of the whole process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Phase {
    /// The model is being loaded; only liveness is answered.
    Loading,
    /// Requests are served.
    Ready,
    /// No new requests; those in flight finish.
    Draining,
    /// Those still in flight are ended with an error.
    Cut,
    /// The model could not be loaded, or the engine stopped.
    Failed(String),
}

/// The phase and the number of requests in flight.
#[derive(Debug)]
pub struct Lifecycle {
    phase: watch::Sender<Phase>,
    in_flight: watch::Sender<usize>,
}

/// One request in flight, for as long as it lives.
#[derive(Debug)]
pub struct InFlight(watch::Sender<usize>);

impl Drop for InFlight {
    fn drop(&mut self) {
        self.0.send_modify(|count| *count -= 1);
    }
}

impl Default for Lifecycle {
    fn default() -> Self {
        Lifecycle { phase: watch::Sender::new(Phase::Loading), in_flight: watch::Sender::new(0) }
    }
}

impl Lifecycle {
    /// The phase now.
    pub fn phase(&self) -> Phase {
        self.phase.borrow().clone()
    }

    /// Follows the phase.
    pub fn watch(&self) -> watch::Receiver<Phase> {
        self.phase.subscribe()
    }

    /// The model is loaded. Without effect unless loading.
    pub fn ready(&self) {
        self.phase.send_if_modified(|phase| {
            let loading = *phase == Phase::Loading;
            if loading {
                *phase = Phase::Ready;
            }
            loading
        });
    }

    /// Nothing can be served any more.
    pub fn fail(&self, reason: String) {
        self.phase.send_replace(Phase::Failed(reason));
    }

    /// Counts a request in until the value is dropped.
    pub fn enter(&self) -> InFlight {
        self.in_flight.send_modify(|count| *count += 1);
        InFlight(self.in_flight.clone())
    }

    /// Requests in flight.
    pub fn num_in_flight(&self) -> usize {
        *self.in_flight.borrow()
    }

    /// Refuses new requests at once, waits for those in flight until `deadline` has passed, then ends them.
    pub async fn drain(&self, deadline: Duration) {
        let until = Instant::now() + deadline;
        self.advance(Phase::Draining);
        let mut in_flight = self.in_flight.subscribe();
        if timeout_at(until, in_flight.wait_for(|count| *count == 0)).await.is_ok() {
            return;
        }
        tracing::warn!(in_flight = self.num_in_flight(), "the drain deadline has passed; ending what is left");
        self.advance(Phase::Cut);
        // A client that does not read may keep its request open; it is left behind.
        self.settle(LAST_WORDS).await;
    }

    /// Waits until no request is in flight, at most for `limit`.
    pub async fn settle(&self, limit: Duration) {
        // Past the limit whoever is left is left behind.
        let _ = timeout(limit, self.in_flight.subscribe().wait_for(|count| *count == 0)).await;
    }

    fn advance(&self, to: Phase) {
        self.phase.send_if_modified(|phase| {
            let alive = !matches!(phase, Phase::Failed(_));
            if alive {
                *phase = to;
            }
            alive
        });
    }
}

/// Waits until requests in flight must end.
pub async fn cut(phase: &mut watch::Receiver<Phase>) {
    let over = |phase: &Phase| *phase == Phase::Cut;
    if phase.wait_for(over).await.is_err() {
        // The process forgot its lifecycle: nobody will ever cut anything.
        std::future::pending::<()>().await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn drains_at_once_when_idle_and_at_the_deadline_when_not() {
        let idle = Lifecycle::default();
        idle.ready();
        idle.drain(Duration::from_secs(1000)).await;
        assert_eq!(idle.phase(), Phase::Draining);

        let busy = Lifecycle::default();
        busy.ready();
        let request = busy.enter();
        let began = Instant::now();
        busy.drain(Duration::from_millis(20)).await;
        assert_eq!((busy.phase(), busy.num_in_flight()), (Phase::Cut, 1));
        assert!(began.elapsed() >= Duration::from_millis(20) + LAST_WORDS);
        drop(request);
        assert_eq!(busy.num_in_flight(), 0);
    }

    #[tokio::test]
    async fn the_last_request_ends_the_drain() {
        let lifecycle = std::sync::Arc::new(Lifecycle::default());
        lifecycle.ready();
        let request = lifecycle.enter();
        let draining = tokio::spawn({
            let lifecycle = lifecycle.clone();
            async move { lifecycle.drain(Duration::from_secs(1000)).await }
        });
        lifecycle.watch().wait_for(|phase| *phase == Phase::Draining).await.unwrap();
        drop(request);
        timeout(Duration::from_secs(30), draining).await.expect("it waits for nobody").unwrap();
        assert_eq!(lifecycle.phase(), Phase::Draining);
    }

    #[test]
    fn a_failure_is_final() {
        let lifecycle = Lifecycle::default();
        lifecycle.fail("no".to_owned());
        lifecycle.ready();
        lifecycle.advance(Phase::Draining);
        assert_eq!(lifecycle.phase(), Phase::Failed("no".to_owned()));
    }
}
