//! How callers reach an engine: submit, watch, drain, shut down.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Instant;

use perilune_cache::CacheReport;
use perilune_sampling::{Limits, SamplingParams, SharedGrammar};
use perilune_scheduler::SeqId;
use perilune_tensor::TokenId;
use tokio::sync::{mpsc, oneshot, watch};

use crate::courier::Courier;
use crate::stats::Monitor;
use crate::{DiskTier, EngineConfig, EngineError, EngineStats, StepRunner, SubmitError, TokenEvent, TokenStream};

/// One generation to perform.
#[derive(Debug, Clone, PartialEq)]
pub struct GenerateRequest {
    /// The prompt, at least one token.
    pub prompt: Vec<TokenId>,
    /// How to continue it.
    pub params: SamplingParams,
    /// Requests share stored prefixes only where this agrees.
    pub cache_salt: Option<String>,
    /// Positions in the prompt at which later requests are likely to part from it, the best first: states are saved there.
    /// No more than four count.
    pub checkpoint_hints: Vec<usize>,
    /// What its output must be; `None` for anything.
    pub grammar: Option<SharedGrammar>,
}

impl GenerateRequest {
    /// A request that shares prefixes with all others and names no places to save states at, and whose output is free.
    pub fn new(prompt: Vec<TokenId>, params: SamplingParams) -> Self {
        GenerateRequest { prompt, params, cache_salt: None, checkpoint_hints: Vec::new(), grammar: None }
    }
}

/// Where an engine stands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum EngineState {
    /// Takes requests.
    Running,
    /// Finishes what it has and takes nothing new.
    Draining,
    /// Ended in order.
    Stopped,
    /// Ended by a fault.
    Dead {
        /// What happened.
        reason: String,
    },
}

impl EngineState {
    /// Whether the device thread has ended.
    pub fn is_over(&self) -> bool {
        matches!(self, EngineState::Stopped | EngineState::Dead { .. })
    }
}

/// What callers tell the device thread.
#[derive(Debug)]
pub(crate) enum Command {
    Submit(Box<Submission>),
    Abort(SeqId),
    /// The same, but the caller has all it wanted.
    Stop(SeqId),
    AbortAll,
    FlushCache,
    ReportCache(oneshot::Sender<CacheReport>),
    Drain,
    Shutdown,
}

/// An accepted request and where its events go.
#[derive(Debug)]
pub(crate) struct Submission {
    pub(crate) id: SeqId,
    pub(crate) request: GenerateRequest,
    pub(crate) events: mpsc::UnboundedSender<TokenEvent>,
    /// Told when it leaves the queue.
    pub(crate) started: oneshot::Sender<Instant>,
}

/// What handles and the device thread share.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) config: EngineConfig,
    pub(crate) vocab_size: usize,
    pub(crate) state: watch::Sender<EngineState>,
    /// Requests submitted that have not had their first step.
    pub(crate) queued: AtomicUsize,
    pub(crate) monitor: Mutex<Monitor>,
    /// The number of the next request. Held while a submission is sent, so that the inbox is in order of numbers.
    next_id: Mutex<u64>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

/// Starts engines.
#[derive(Debug)]
pub struct Engine;

impl Engine {
    /// Spawns the device thread, which owns `runner` from now on.
    ///
    /// # Errors
    /// `Config` for a size of 0, `Thread` where none could be started.
    pub fn start<R: StepRunner>(runner: R, config: EngineConfig) -> Result<EngineHandle, EngineError> {
        Self::start_with(runner, config, None)
    }

    /// As [`Engine::start`], with a disk tier below the memory for stored prefixes.
    ///
    /// # Errors
    /// As there; `Disk` where a state does not fit, prefixes are not kept, or the runner cannot take part.
    pub fn start_with_disk<R: StepRunner>(
        mut runner: R,
        config: EngineConfig,
        disk: DiskTier,
    ) -> Result<EngineHandle, EngineError> {
        disk.check(&config.cache)?;
        if runner.host_units().is_none() {
            return Err(EngineError::Disk("this device keeps nothing in host memory".into()));
        }
        Self::start_with(runner, config, Some(disk))
    }

    fn start_with<R: StepRunner>(
        runner: R,
        config: EngineConfig,
        disk: Option<DiskTier>,
    ) -> Result<EngineHandle, EngineError> {
        config.validate()?;
        let desk = disk.map(DiskTier::open_desk).transpose()?;
        let (commands, inbox) = mpsc::unbounded_channel();
        let shared = Arc::new(Shared {
            vocab_size: runner.vocab_size(),
            monitor: Mutex::new(Monitor::new(&config)),
            config,
            state: watch::Sender::new(EngineState::Running),
            queued: AtomicUsize::new(0),
            next_id: Mutex::new(0),
            thread: Mutex::new(None),
        });
        let for_thread = shared.clone();
        let courier = Courier::start()?;
        let thread = std::thread::Builder::new()
            .name("perilune-device".into())
            .spawn(move || crate::device_thread::run((runner, desk, courier), for_thread, inbox))
            .map_err(|error| EngineError::Thread(error.to_string()))?;
        *shared.thread.lock().unwrap_or_else(PoisonError::into_inner) = Some(thread);
        Ok(EngineHandle { shared, commands })
    }
}

/// Access to a running engine; cheap to clone. When all handles and streams are gone the device thread ends.
#[derive(Debug, Clone)]
pub struct EngineHandle {
    shared: Arc<Shared>,
    commands: mpsc::UnboundedSender<Command>,
}

impl EngineHandle {
    /// Queues a request. Never waits.
    ///
    /// # Errors
    /// See [`SubmitError`]; nothing of a refused request stays behind.
    pub fn submit(&self, request: GenerateRequest) -> Result<TokenStream, SubmitError> {
        self.check_open()?;
        self.check(&request)?;
        self.reserve_place()?;
        let (events, receiver) = mpsc::unbounded_channel();
        let (started, start) = oneshot::channel();
        self.shared.lock_monitor().begin_work();
        let mut next_id = self.shared.next_id.lock().unwrap_or_else(PoisonError::into_inner);
        let id = SeqId(*next_id);
        *next_id += 1;
        let sent = self.commands.send(Command::Submit(Box::new(Submission { id, request, events, started })));
        drop(next_id);
        if sent.is_err() {
            self.shared.queued.fetch_sub(1, Ordering::AcqRel);
            self.check_open()?;
            return Err(SubmitError::Dead { reason: "its thread is gone".into() });
        }
        Ok(TokenStream::new(id, (receiver, start), self.commands.clone()))
    }

    /// Checks a request as [`EngineHandle::submit`] would, without queueing it.
    ///
    /// # Errors
    /// `EmptyPrompt`, `UnknownToken`, `Invalid`, `PromptTooLong`.
    pub fn check(&self, request: &GenerateRequest) -> Result<(), SubmitError> {
        let GenerateRequest { prompt, params, .. } = request;
        if prompt.is_empty() {
            return Err(SubmitError::EmptyPrompt);
        }
        let vocab_size = self.shared.vocab_size;
        if let Some((index, id)) = prompt.iter().enumerate().find(|(_, id)| id.index() >= vocab_size) {
            return Err(SubmitError::UnknownToken { index, id: id.0, vocab_size });
        }
        params.validate(&Limits::for_vocab(vocab_size))?;
        let (context, max_tokens) = (self.context_length(), params.max_tokens.unwrap_or(1));
        if prompt.len().saturating_add(max_tokens) > context {
            return Err(SubmitError::PromptTooLong { prompt: prompt.len(), max_tokens, context });
        }
        Ok(())
    }

    /// Most tokens of prompt and output together.
    pub fn context_length(&self) -> usize {
        self.shared.config.effective_context()
    }

    /// The configuration the engine was started with.
    pub fn config(&self) -> &EngineConfig {
        &self.shared.config
    }

    /// Token ids are below this.
    pub fn vocab_size(&self) -> usize {
        self.shared.vocab_size
    }

    /// What the engine has done and is doing.
    pub fn stats(&self) -> EngineStats {
        self.shared.lock_monitor().snapshot(self.shared.queued.load(Ordering::Acquire))
    }

    /// Where the engine stands.
    pub fn state(&self) -> EngineState {
        self.shared.state.borrow().clone()
    }

    /// Refuses new requests from now on, lets the others finish, then ends the device thread.
    pub fn drain(&self) {
        self.shared.state.send_if_modified(|state| {
            let running = *state == EngineState::Running;
            if running {
                *state = EngineState::Draining;
            }
            running
        });
        // An engine that is gone has nothing left to drain.
        let _ = self.commands.send(Command::Drain);
    }

    /// Ends every request with `Abort`; the engine goes on.
    pub fn abort_all(&self) {
        // An engine that is gone has nothing left to abort.
        let _ = self.commands.send(Command::AbortAll);
    }

    /// Forgets all stored prefixes; requests under way keep what they have.
    pub fn flush_cache(&self) {
        // An engine that is gone has nothing stored.
        let _ = self.commands.send(Command::FlushCache);
    }

    /// What is stored for later requests; `None` from an engine that is gone.
    pub async fn cache_report(&self) -> Option<CacheReport> {
        let (sender, report) = oneshot::channel();
        self.commands.send(Command::ReportCache(sender)).ok()?;
        report.await.ok()
    }

    /// Ends every request with `Abort`, then the device thread.
    pub fn shutdown(&self) {
        // An engine that is gone needs no shutdown.
        let _ = self.commands.send(Command::Shutdown);
    }

    /// Waits until the device thread has ended, in order or not.
    pub async fn stopped(&self) -> EngineState {
        let mut state = self.shared.state.subscribe();
        // The sender lives in `shared`, so the wait cannot fail; were it to, the engine would be gone.
        state.wait_for(EngineState::is_over).await.map_or(EngineState::Stopped, |state| state.clone())
    }

    /// Waits on the calling thread until the device thread has ended, after [`EngineHandle::drain`] or
    /// [`EngineHandle::shutdown`].
    pub fn join(&self) -> EngineState {
        let mut thread = self.shared.thread.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(thread) = thread.take() {
            // The thread catches its own panics and reports them as its state.
            let _ = thread.join();
        }
        self.state()
    }

    fn check_open(&self) -> Result<(), SubmitError> {
        match &*self.shared.state.borrow() {
            EngineState::Running => Ok(()),
            EngineState::Draining => Err(SubmitError::Draining),
            EngineState::Stopped => Err(SubmitError::Dead { reason: "it was shut down".into() }),
            EngineState::Dead { reason } => Err(SubmitError::Dead { reason: reason.clone() }),
        }
    }

    fn reserve_place(&self) -> Result<(), SubmitError> {
        let max_queued_requests = self.shared.config.max_queued_requests;
        let place = |queued| (queued < max_queued_requests).then_some(queued + 1);
        let reserved = self.shared.queued.fetch_update(Ordering::AcqRel, Ordering::Acquire, place);
        reserved.map(|_| ()).map_err(|_| SubmitError::QueueFull { max_queued_requests })
    }
}

impl Shared {
    pub(crate) fn lock_monitor(&self) -> std::sync::MutexGuard<'_, Monitor> {
        self.monitor.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
