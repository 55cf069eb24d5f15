//! Grammars whose masks take long: nobody waits for them but their own sequences.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // all of it is test code

use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use perilune_engine::{
    ConstraintError, Engine, EngineConfig, EngineHandle, GenerateRequest, Grammar, SamplingParams, SharedGrammar,
    TokenConstraint, TokenEvent, TokenStream,
};
use perilune_tensor::{TokenId, TokenMask};
use perilune_tests::{HashRunner, ToyGrammar, all_events, hash_config, stopped, tokens};

/// What must happen soon has not happened if it takes longer.
const PATIENCE: Duration = Duration::from_secs(60);
/// Longer than any mask that a step waits for gladly.
const LONG: Duration = Duration::from_millis(60);

/// A toy whose masks, from the second token on, come only when the test says so.
#[derive(Debug)]
struct Held(Arc<Mutex<Way>>);

/// Says that a mask is wanted, and waits until it may come.
#[derive(Debug)]
struct Way {
    wanted: Sender<usize>,
    permits: Receiver<()>,
}

#[derive(Debug)]
struct HeldConstraint {
    toy: Box<dyn TokenConstraint>,
    way: Arc<Mutex<Way>>,
    num_tokens: usize,
}

/// The test's side; once dropped, masks no longer wait.
struct Holder {
    wanted: Receiver<usize>,
    permits: Sender<()>,
}

impl Grammar for Held {
    fn start(&self) -> Box<dyn TokenConstraint> {
        let toy = ToyGrammar { fails_after: None }.start();
        Box::new(HeldConstraint { toy, way: self.0.clone(), num_tokens: 0 })
    }
}

impl TokenConstraint for HeldConstraint {
    fn mask(&mut self) -> Result<TokenMask, ConstraintError> {
        let way = self.way.lock().unwrap();
        if self.num_tokens > 0 && way.wanted.send(self.num_tokens).is_ok() {
            let _ = way.permits.recv();
        }
        self.toy.mask()
    }

    fn accept(&mut self, token: TokenId) -> Result<(), ConstraintError> {
        self.num_tokens += 1;
        self.toy.accept(token)
    }

    fn roll_back(&mut self, count: usize) -> Result<(), ConstraintError> {
        self.num_tokens -= count;
        self.toy.roll_back(count)
    }
}

fn held() -> (SharedGrammar, Holder) {
    let (wanted, arrivals) = channel();
    let (permit, permits) = channel();
    let way = Way { wanted, permits };
    (SharedGrammar(Arc::new(Held(Arc::new(Mutex::new(way))))), Holder { wanted: arrivals, permits: permit })
}

impl Holder {
    /// Waits until the mask after so many tokens is being computed.
    fn arrival(&self, num_tokens: usize) {
        assert_eq!(self.wanted.recv_timeout(PATIENCE), Ok(num_tokens));
    }

    /// The first one is seen to take long; the one after it is being computed when this returns.
    fn show_that_it_is_slow(&self) {
        self.arrival(1);
        let begin = Instant::now();
        while begin.elapsed() < LONG {
            std::thread::yield_now();
        }
        self.permits.send(()).unwrap();
        self.arrival(2);
    }
}

fn engine(max_running_requests: usize) -> EngineHandle {
    let config = EngineConfig { max_running_requests, ..hash_config() };
    Engine::start(HashRunner::default(), config).unwrap()
}

fn request(prompt: &[u32], max_tokens: usize, grammar: Option<SharedGrammar>) -> GenerateRequest {
    let params = SamplingParams { seed: Some(3), max_tokens: Some(max_tokens), ..SamplingParams::default() };
    let prompt = prompt.iter().map(|id| TokenId(*id)).collect();
    GenerateRequest { grammar, ..GenerateRequest::new(prompt, params) }
}

/// All of a stream, soon.
fn soon(stream: TokenStream) -> Vec<TokenEvent> {
    let (send, receive) = channel();
    std::thread::spawn(move || send.send(all_events(stream)));
    receive.recv_timeout(PATIENCE).expect("it waits for somebody else's grammar")
}

#[test]
fn others_go_on_while_a_mask_is_late() {
    let alone = engine(8);
    let bound = |prompt: &[u32], grammar| request(prompt, 12, Some(grammar));
    let expected = all_events(alone.submit(bound(&[1, 2], ToyGrammar::shared())).unwrap());
    let others = [request(&[5, 6, 7], 300, None), bound(&[8], ToyGrammar::shared()), request(&[1, 2], 40, None)];
    let expected_others = others.clone().map(|other| all_events(alone.submit(other).unwrap()));

    let engine = engine(8);
    let (grammar, holder) = held();
    let slow = engine.submit(bound(&[1, 2], grammar)).unwrap();
    holder.show_that_it_is_slow();
    for (other, expected) in others.into_iter().zip(expected_others) {
        assert_eq!(tokens(&soon(engine.submit(other).unwrap())), tokens(&expected));
    }
    drop(holder);
    assert_eq!(tokens(&soon(slow)), tokens(&expected), "late masks change nothing");
    stopped(&engine);
}

#[test]
fn who_waits_for_a_mask_can_be_aborted_and_be_the_only_one() {
    let engine = engine(1);
    let (grammar, holder) = held();
    let slow = engine.submit(request(&[1, 2], 12, Some(grammar))).unwrap();
    holder.show_that_it_is_slow();
    let queued = engine.submit(request(&[4], 5, None)).unwrap();
    drop(slow);
    assert_eq!(tokens(&soon(queued)).len(), 5, "its place is free although its mask never came");
    drop(holder);
    stopped(&engine);
}
