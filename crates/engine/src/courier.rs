//! Takes events to their callers, on a thread of its own: waking hundreds of callers takes as long as planning a step, and
//! the device need not wait for it.

use std::collections::HashMap;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;

use perilune_scheduler::{Event, SeqId};
use tokio::sync::mpsc::UnboundedSender;

use crate::{EngineError, Fault, TokenEvent};

/// What the device thread hands over, in order.
enum Letter {
    /// A caller from now on.
    Caller(SeqId, UnboundedSender<TokenEvent>),
    /// The events of a step.
    Events(Vec<Event>),
    /// The end of a request, because of a fault.
    Failed(SeqId, Fault, String),
}

/// The device thread's end. Dropping it waits until everything has been delivered.
#[derive(Debug)]
pub(crate) struct Courier {
    letters: Option<Sender<Letter>>,
    thread: Option<JoinHandle<()>>,
}

impl Courier {
    /// Starts the thread.
    ///
    /// # Errors
    /// `Thread` where none could be started.
    pub(crate) fn start() -> Result<Courier, EngineError> {
        let (letters, inbox) = channel();
        let thread = std::thread::Builder::new().name("perilune-events".into()).spawn(move || serve(&inbox));
        let thread = Some(thread.map_err(|error| EngineError::Thread(error.to_string()))?);
        Ok(Courier { letters: Some(letters), thread })
    }

    pub(crate) fn meet(&self, id: SeqId, events: UnboundedSender<TokenEvent>) {
        self.hand_over(Letter::Caller(id, events));
    }

    pub(crate) fn deliver(&self, events: Vec<Event>) {
        if !events.is_empty() {
            self.hand_over(Letter::Events(events));
        }
    }

    pub(crate) fn fail(&self, id: SeqId, (fault, message): (Fault, String)) {
        self.hand_over(Letter::Failed(id, fault, message));
    }

    fn hand_over(&self, letter: Letter) {
        // The thread ends after this end of the channel only.
        let _ = self.letters.as_ref().map(|letters| letters.send(letter));
    }
}

impl Drop for Courier {
    fn drop(&mut self) {
        self.letters = None;
        if let Some(thread) = self.thread.take() {
            // It delivers and forgets; there is nothing it could report.
            let _ = thread.join();
        }
    }
}

fn serve(inbox: &Receiver<Letter>) {
    let mut callers: HashMap<SeqId, UnboundedSender<TokenEvent>> = HashMap::new();
    let send = |callers: &mut HashMap<_, UnboundedSender<_>>, id: SeqId, event: TokenEvent| {
        let is_last = event.is_last();
        // The receiver may be gone; its drop has sent an abort.
        let _ = callers.get(&id).map(|caller| caller.send(event));
        if is_last {
            callers.remove(&id);
        }
    };
    for letter in inbox {
        match letter {
            Letter::Caller(id, events) => {
                callers.insert(id, events);
            }
            Letter::Events(events) => {
                events.into_iter().for_each(|event| send(&mut callers, event.seq, TokenEvent::from(event.kind)));
            }
            Letter::Failed(id, fault, message) => send(&mut callers, id, TokenEvent::Failed { fault, message }),
        }
    }
}
