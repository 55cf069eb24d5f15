//! Requests that can be ended by their id, from elsewhere.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use tokio::sync::watch;

/// The requests under way, by id. A client may use one id for several.
#[derive(Debug, Default)]
pub struct Aborts(Mutex<HashMap<String, watch::Sender<bool>>>);

/// Tells one request that it is to end; for ever silent where nobody can.
#[derive(Debug, Clone)]
pub struct AbortSignal(watch::Receiver<bool>);

impl Aborts {
    /// A signal for a request of this id.
    pub fn signal(&self, id: &str) -> AbortSignal {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        // Those that nobody listens to any more are over.
        if known.len().is_power_of_two() {
            known.retain(|_, sender| sender.receiver_count() > 0);
        }
        let sender = known.entry(id.to_owned()).or_insert_with(|| watch::Sender::new(false));
        if *sender.borrow() {
            *sender = watch::Sender::new(false);
        }
        AbortSignal(sender.subscribe())
    }

    /// Ends the requests of this id; whether there were any.
    pub fn abort(&self, id: &str) -> bool {
        let known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        known.get(id).is_some_and(|sender| sender.send(true).is_ok())
    }
}

impl AbortSignal {
    /// Waits until the request is to end.
    pub async fn wait(&mut self) {
        if self.0.wait_for(|abort| *abort).await.is_err() {
            std::future::pending::<()>().await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_signal_reaches_its_requests_alone() {
        let aborts = Aborts::default();
        let (mut first, mut second, other) = (aborts.signal("a"), aborts.signal("a"), aborts.signal("b"));
        assert!(!aborts.abort("c"));
        assert!(aborts.abort("a"));
        first.wait().await;
        second.wait().await;
        assert!(!*other.0.borrow());
        drop((first, second));
        assert!(!aborts.abort("a"), "nobody is left");
        let later = aborts.signal("a");
        assert!(!*later.0.borrow(), "a later request of that id is its own");
    }
}
