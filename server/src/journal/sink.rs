//! A thread that takes what others must not wait for.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::time::{Duration, Instant};

/// Most items that wait; further ones are dropped and counted.
const MAX_WAITING: usize = 8192;
/// Most items that are handed over at once.
const MAX_BATCH: usize = 512;

enum Message<T> {
    Item(T),
    /// All before it is to be written; then the answer.
    Flush(SyncSender<()>),
}

/// Hands items over to a thread of its own, which ends with the sink.
#[derive(Debug)]
pub(super) struct Sink<T> {
    messages: SyncSender<Message<T>>,
    dropped: Arc<AtomicU64>,
}

/// Takes items from a sink, on its thread.
pub(super) trait Consumer<T>: Send + 'static {
    /// How long items may be gathered before they are handed over.
    const PATIENCE: Duration;

    /// Takes some items, at least one.
    fn take(&mut self, batch: Vec<T>);

    /// So many items were dropped since the last call, more than none.
    fn dropped(&mut self, num_items: u64);
}

impl<T: Send + 'static> Sink<T> {
    /// Starts `consumer` on a thread called `name`.
    pub(super) fn start(name: &str, consumer: impl Consumer<T>) -> std::io::Result<Self> {
        let (messages, receiver) = sync_channel(MAX_WAITING);
        let dropped = Arc::new(AtomicU64::new(0));
        let count = dropped.clone();
        let builder = std::thread::Builder::new().name(name.to_owned());
        builder.spawn(move || consume(consumer, &receiver, &count))?;
        Ok(Sink { messages, dropped })
    }

    /// Hands an item over; never waits.
    pub(super) fn send(&self, item: T) {
        if self.messages.try_send(Message::Item(item)).is_err() {
            self.dropped.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Waits until what was handed over is written, at most for `limit`.
    pub(super) fn flush(&self, limit: Duration) {
        let (done, written) = sync_channel(1);
        if self.messages.try_send(Message::Flush(done)).is_ok() {
            // Past the limit it is left behind.
            let _ = written.recv_timeout(limit);
        }
    }
}

fn consume<T, C: Consumer<T>>(mut consumer: C, messages: &Receiver<Message<T>>, dropped: &AtomicU64) {
    while let Ok(first) = messages.recv() {
        let (batch, flush) = gather::<T, C>(first, messages);
        if !batch.is_empty() {
            consumer.take(batch);
        }
        match dropped.swap(0, Ordering::Relaxed) {
            0 => {}
            num_items => consumer.dropped(num_items),
        }
        if let Some(done) = flush {
            // Whoever asked may have given up.
            let _ = done.send(());
        }
    }
}

/// A batch that begins with `first`, and who waits for it to be written.
fn gather<T, C: Consumer<T>>(first: Message<T>, messages: &Receiver<Message<T>>) -> (Vec<T>, Option<SyncSender<()>>) {
    let until = Instant::now() + C::PATIENCE;
    let mut batch = Vec::new();
    let mut next = Ok(first);
    loop {
        match next {
            Ok(Message::Item(item)) => batch.push(item),
            Ok(Message::Flush(done)) => return (batch, Some(done)),
            Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => return (batch, None),
        }
        if batch.len() >= MAX_BATCH {
            return (batch, None);
        }
        next = messages.recv_timeout(until.saturating_duration_since(Instant::now()));
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;

    struct Kept(Arc<Mutex<Vec<Vec<u32>>>>);

    impl Consumer<u32> for Kept {
        const PATIENCE: Duration = Duration::from_secs(600);

        fn take(&mut self, batch: Vec<u32>) {
            self.0.lock().unwrap().push(batch);
        }

        fn dropped(&mut self, num_items: u64) {
            panic!("{num_items}");
        }
    }

    #[test]
    fn batches_are_bounded_and_a_flush_waits_for_no_more() {
        let kept = Arc::new(Mutex::new(Vec::new()));
        let sink = Sink::start("test", Kept(kept.clone())).unwrap();
        (0..600).for_each(|item| sink.send(item));
        sink.flush(Duration::from_secs(60));
        let kept = kept.lock().unwrap();
        assert_eq!(kept.concat(), (0..600).collect::<Vec<_>>());
        assert!(kept.iter().all(|batch| batch.len() <= MAX_BATCH));
    }
}
