//! The orders that end the process, and the signals that give them.

use std::time::Duration;

use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::watch;

use crate::error::ServerError;

/// How urgently the process is to end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Order {
    /// Go on.
    Serve,
    /// Finish what is in flight, then end.
    Drain,
    /// End now.
    Now,
}

/// Gives orders; clones give to the same server.
#[derive(Debug, Clone)]
pub struct Shutdown(watch::Sender<Order>);

impl Default for Shutdown {
    fn default() -> Self {
        Shutdown(watch::Sender::new(Order::Serve))
    }
}

impl Shutdown {
    /// What SIGTERM does: the first call drains, a second ends at once.
    pub fn request(&self) {
        self.0.send_modify(|order| *order = if *order == Order::Serve { Order::Drain } else { Order::Now });
    }

    /// Waits until the order is at least `order`.
    pub async fn wait(&self, order: Order) {
        let mut orders = self.0.subscribe();
        // The sender lives in `self`, so the wait can only end with the order.
        let _ = orders.wait_for(|given| *given >= order).await;
    }

    /// Turns SIGTERM and SIGINT into orders, for as long as the process lives.
    ///
    /// # Errors
    /// `Io` where the system does not let signals be caught.
    pub fn on_signals(&self) -> Result<(), ServerError> {
        let catch = |kind| -> Result<Signal, ServerError> {
            signal(kind).map_err(|source| ServerError::Io { what: "cannot catch signals".to_owned(), source })
        };
        let (mut term, mut int) = (catch(SignalKind::terminate())?, catch(SignalKind::interrupt())?);
        let this = self.clone();
        tokio::spawn(async move {
            loop {
                let name = tokio::select! {
                    _ = term.recv() => "SIGTERM",
                    _ = int.recv() => "SIGINT",
                };
                tracing::info!(signal = name, "ending");
                this.request();
            }
        });
        Ok(())
    }
}

/// How long connections may take to close once every request is answered.
pub const CLOSING: Duration = Duration::from_secs(5);

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_first_request_drains_and_the_second_ends() {
        let shutdown = Shutdown::default();
        let other = shutdown.clone();
        other.request();
        shutdown.wait(Order::Drain).await;
        assert_eq!(*shutdown.0.borrow(), Order::Drain);
        other.request();
        shutdown.wait(Order::Now).await;
        other.request();
        assert_eq!(*shutdown.0.borrow(), Order::Now);
    }
}
