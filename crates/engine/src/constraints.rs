//! Follows constrained sequences: masks are computed on threads of their own while the device computes the step that
//! needs them.
//!
//! A sequence's constraint is asked for its next mask as soon as its newest token is known. The mask is waited for only
//! after the model's layers have been enqueued ([`PendingMasks::wait`]), so that it costs time only where it takes longer
//! than they do. For rows that verify a draft, [`PendingMasks::draft`] asks for the masks of all of them instead; accepted
//! tokens advance the constraint, the others leave no trace.
//!
//! Nobody is to wait for another's grammar. A sequence with a mask that took long is slow: it is planned only where its mask
//! is there ([`Constraints::turn`]), drafts nothing, and has its masks computed on a thread that quick ones do not need. Only
//! the mask that shows that it is slow can hold up a step.

use std::collections::{HashMap, VecDeque};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use perilune_sampling::{ConstraintError, SharedGrammar, TokenConstraint, masks_along};
use perilune_scheduler::{SeqId, Turn};
use perilune_tensor::{TokenId, TokenMask};

/// Threads that compute masks of quick sequences.
const NUM_QUICK_THREADS: usize = 2;
/// Threads that compute masks of slow ones.
const NUM_SLOW_THREADS: usize = 1;
/// Their stacks: parsing recurses.
const STACK_BYTES: usize = 16 << 20;
/// A mask that takes longer makes its sequence slow.
const PATIENCE: Duration = Duration::from_millis(10);
/// So many quick tasks in a row make it a quick one again.
const QUICK_AGAIN: u8 = 16;

type Masks = Result<Vec<TokenMask>, ConstraintError>;

/// Masks that are being computed: of the next row, or of all rows that verify a draft.
#[derive(Debug, Clone)]
pub struct PendingMasks {
    cell: Arc<Cell>,
    threads: Option<Threads>,
}

impl PendingMasks {
    /// These tokens are to be verified: instead of the next row's mask, those of all their rows are computed. They leave no
    /// trace.
    pub fn draft(&self, drafted: Vec<TokenId>) {
        ask(&self.cell, Task::Draft(drafted), self.threads.as_ref());
    }

    /// Waits for them. Of a draft there are fewer than rows where a drafted token is not allowed: the row before that
    /// token is the last that matters.
    ///
    /// # Errors
    /// The constraint cannot go on; its sequence must end.
    pub fn wait(&self) -> Masks {
        let mut state = self.cell.lock();
        loop {
            match &state.masks {
                Some(masks) => return masks.clone(),
                None => state = self.cell.ready.wait(state).unwrap_or_else(PoisonError::into_inner),
            }
        }
    }
}

/// A sequence's constraint. The lock is held for moments only, never while something is computed.
#[derive(Debug)]
struct Cell {
    state: Mutex<State>,
    ready: Condvar,
}

#[derive(Debug)]
struct State {
    /// `None` while a thread has it, and before it was started.
    constraint: Option<Box<dyn TokenConstraint>>,
    /// What is left to do, in order; the thread that has the constraint does all of it.
    tasks: VecDeque<Task>,
    worked_on: bool,
    /// `None` while anything is left to do.
    masks: Option<Masks>,
    /// When the last task came.
    asked: Instant,
    /// Not 0 for a slow one: how many quick tasks it needs to be quick again.
    slow: u8,
}

impl State {
    /// A task has taken this long. The first one makes a copy of the grammar, and says nothing of those to come.
    fn note_time(&mut self, took: Duration, num_masks: usize) {
        let quick = took <= PATIENCE * u32::try_from(num_masks.max(1)).unwrap_or(u32::MAX);
        self.slow = if quick { self.slow.saturating_sub(1) } else { QUICK_AGAIN };
    }
}

impl Cell {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Does what is left to do, unless another thread is at it.
    fn work(&self) {
        let mut state = self.lock();
        if std::mem::replace(&mut state.worked_on, true) {
            return;
        }
        while let Some(task) = state.tasks.pop_front() {
            let mut constraint = state.constraint.take();
            drop(state);
            let (begun, first) = (Instant::now(), matches!(task, Task::Start(_)));
            let masks = perform(&mut constraint, task);
            state = self.lock();
            state.constraint = constraint;
            if !first {
                state.note_time(begun.elapsed(), masks.as_ref().map_or(1, Vec::len));
            }
            if masks.is_err() {
                state.tasks.clear();
            }
            if state.tasks.is_empty() {
                state.masks = Some(masks);
            }
        }
        state.worked_on = false;
        drop(state);
        self.ready.notify_all();
    }
}

#[derive(Debug)]
enum Task {
    Start(SharedGrammar),
    Advance(Vec<TokenId>),
    Draft(Vec<TokenId>),
}

/// The constraints of an engine's sequences.
#[derive(Debug, Default)]
pub(crate) struct Constraints {
    cells: HashMap<SeqId, Arc<Cell>>,
    /// They start with the first constraint.
    threads: Option<Threads>,
}

/// Ways to the threads that compute masks, for cells with something to do.
#[derive(Debug, Clone)]
struct Threads {
    quick: Sender<Arc<Cell>>,
    slow: Sender<Arc<Cell>>,
}

impl Constraints {
    /// Begins to follow a sequence.
    pub(crate) fn add(&mut self, id: SeqId, grammar: SharedGrammar) {
        let (tasks, asked) = (VecDeque::new(), Instant::now());
        let state = State { constraint: None, tasks, worked_on: false, masks: None, asked, slow: 0 };
        self.cells.insert(id, Arc::new(Cell { state: Mutex::new(state), ready: Condvar::new() }));
        self.ask(id, Task::Start(grammar));
    }

    /// Forgets a sequence.
    pub(crate) fn remove(&mut self, id: SeqId) {
        self.cells.remove(&id);
    }

    /// A sequence has gone on by these tokens.
    pub(crate) fn advance(&mut self, id: SeqId, tokens: &[TokenId]) {
        if self.cells.contains_key(&id) {
            self.ask(id, Task::Advance(tokens.to_vec()));
        }
    }

    /// The masks of a sequence's next step; `None` where it is free.
    pub(crate) fn pending(&self, id: SeqId) -> Option<PendingMasks> {
        let cell = self.cells.get(&id)?.clone();
        Some(PendingMasks { cell, threads: self.threads.clone() })
    }

    /// Whether a sequence may draw in the next step.
    pub(crate) fn turn(&self, id: SeqId) -> Turn {
        let Some(cell) = self.cells.get(&id) else { return Turn::Free };
        let state = cell.lock();
        let late = state.masks.is_none() && (state.slow > 0 || state.asked.elapsed() > PATIENCE);
        match (late, state.slow) {
            (true, _) => Turn::Later,
            (false, 0) => Turn::Free,
            (false, _) => Turn::NoDrafts,
        }
    }

    /// Waits until a sequence has its masks, or for `most`.
    pub(crate) fn wait_a_moment(&self, id: SeqId, most: Duration) {
        let Some(cell) = self.cells.get(&id) else { return };
        // Whoever waits looks again by itself.
        let _ = cell.ready.wait_timeout_while(cell.lock(), most, |state| state.masks.is_none());
    }

    fn ask(&mut self, id: SeqId, task: Task) {
        let Some(cell) = self.cells.get(&id) else { return };
        let threads = self.threads.get_or_insert_with(start_threads);
        ask(cell, task, Some(threads));
    }
}

fn ask(cell: &Arc<Cell>, task: Task, threads: Option<&Threads>) {
    let mut state = cell.lock();
    // A failure is final.
    if matches!(state.masks, Some(Err(_))) {
        return;
    }
    (state.masks, state.asked) = (None, Instant::now());
    state.tasks.push_back(task);
    let slow = state.slow > 0;
    drop(state);
    let way = threads.map(|threads| if slow { &threads.slow } else { &threads.quick });
    if way.is_none_or(|way| way.send(cell.clone()).is_err()) {
        // No thread could be started: slower, not wrong.
        cell.work();
    }
}

fn start_threads() -> Threads {
    Threads { quick: start("perilune-mask", NUM_QUICK_THREADS), slow: start("perilune-slow", NUM_SLOW_THREADS) }
}

fn start(name: &str, count: usize) -> Sender<Arc<Cell>> {
    let (sender, receiver) = channel::<Arc<Cell>>();
    let receiver = Arc::new(Mutex::new(receiver));
    for i in 0..count {
        let receiver = receiver.clone();
        let thread = std::thread::Builder::new().name(format!("{name}-{i}")).stack_size(STACK_BYTES);
        if let Err(error) = thread.spawn(move || serve(&receiver)) {
            tracing::error!(%error, "a thread that computes masks could not be started");
        }
    }
    sender
}

/// Until the engine is gone.
fn serve(receiver: &Mutex<Receiver<Arc<Cell>>>) {
    loop {
        let next = receiver.lock().unwrap_or_else(PoisonError::into_inner).recv();
        match next {
            Ok(cell) => cell.work(),
            Err(_) => return,
        }
    }
}

fn perform(constraint: &mut Option<Box<dyn TokenConstraint>>, task: Task) -> Masks {
    let outcome = catch_unwind(AssertUnwindSafe(|| {
        if let Task::Start(grammar) = &task {
            *constraint = Some(grammar.0.start());
        }
        let constraint =
            constraint.as_mut().ok_or_else(|| ConstraintError::Broken("the grammar is gone".to_owned()))?;
        match task {
            Task::Start(_) => masks_along(constraint.as_mut(), &[]),
            Task::Draft(drafted) => masks_along(constraint.as_mut(), &drafted),
            Task::Advance(tokens) => {
                tokens.into_iter().try_for_each(|token| constraint.accept(token))?;
                masks_along(constraint.as_mut(), &[])
            }
        }
    }));
    outcome.unwrap_or_else(|_| Err(ConstraintError::Broken("a fault in the grammar".to_owned())))
}

#[cfg(test)]
mod tests {
    use perilune_sampling::Grammar;

    use super::*;

    /// Allows the number of tokens so far, fails at 4.
    #[derive(Debug, Default)]
    struct Count(u32);

    impl TokenConstraint for Count {
        fn mask(&mut self) -> Result<TokenMask, ConstraintError> {
            match self.0 {
                4 => Err(ConstraintError::Impossible("four".to_owned())),
                count => Ok(TokenMask::of(&[TokenId(count)], 64)),
            }
        }

        fn accept(&mut self, token: TokenId) -> Result<(), ConstraintError> {
            assert_eq!(token.0, self.0, "out of order");
            self.0 += 1;
            Ok(())
        }

        fn roll_back(&mut self, count: usize) -> Result<(), ConstraintError> {
            self.0 -= count as u32;
            Ok(())
        }
    }

    #[derive(Debug)]
    struct Counting;

    impl Grammar for Counting {
        fn start(&self) -> Box<dyn TokenConstraint> {
            Box::new(Count::default())
        }
    }

    fn of(id: u32) -> TokenMask {
        TokenMask::of(&[TokenId(id)], 64)
    }

    #[test]
    fn masks_follow_the_tokens_and_drafts_leave_no_trace() {
        let mut constraints = Constraints::default();
        let ids: Vec<SeqId> = (0..50).map(SeqId).collect();
        ids.iter().for_each(|id| constraints.add(*id, SharedGrammar(Arc::new(Counting))));
        let wait = |constraints: &Constraints, id: SeqId| constraints.pending(id).unwrap().wait();
        for step in 0..3 {
            for id in &ids {
                // Not waited for: the draft and the token after it queue up.
                if id.0 % 2 == 0 {
                    assert_eq!(wait(&constraints, *id), Ok(vec![of(step)]));
                }
                constraints.pending(*id).unwrap().draft([step, 9, 9].map(TokenId).to_vec());
                if id.0 % 3 == 0 {
                    assert_eq!(wait(&constraints, *id), Ok(vec![of(step), of(step + 1)]));
                }
                constraints.advance(*id, &[TokenId(step)]);
            }
        }
        assert!(constraints.pending(SeqId(99)).is_none());
        constraints.advance(ids[0], &[TokenId(3)]);
        assert_eq!(wait(&constraints, ids[0]), Err(ConstraintError::Impossible("four".to_owned())));
        constraints.advance(ids[0], &[TokenId(4)]);
        assert!(wait(&constraints, ids[0]).is_err(), "a failure stays");
        assert_eq!(wait(&constraints, ids[1]), Ok(vec![of(3)]), "and is its own");
        constraints.remove(ids[1]);
        assert!(constraints.pending(ids[1]).is_none());
    }

    /// Panics where it is asked for its second mask.
    #[derive(Debug, Default)]
    struct Faulty(bool);

    impl TokenConstraint for Faulty {
        fn mask(&mut self) -> Result<TokenMask, ConstraintError> {
            assert!(!self.0, "on purpose");
            Ok(of(1))
        }

        fn accept(&mut self, _token: TokenId) -> Result<(), ConstraintError> {
            self.0 = true;
            Ok(())
        }

        fn roll_back(&mut self, _count: usize) -> Result<(), ConstraintError> {
            Ok(())
        }
    }

    impl Grammar for Faulty {
        fn start(&self) -> Box<dyn TokenConstraint> {
            Box::new(Faulty::default())
        }
    }

    #[test]
    fn a_panic_is_no_fault_of_the_request() {
        let mut constraints = Constraints::default();
        constraints.add(SeqId(1), SharedGrammar(Arc::new(Faulty::default())));
        assert_eq!(constraints.pending(SeqId(1)).unwrap().wait(), Ok(vec![of(1)]));
        constraints.advance(SeqId(1), &[TokenId(1)]);
        assert!(matches!(constraints.pending(SeqId(1)).unwrap().wait(), Err(ConstraintError::Broken(_))));
    }

    #[test]
    fn a_mask_that_took_long_makes_its_sequence_slow_for_a_while() {
        let mut state = State {
            constraint: None,
            tasks: VecDeque::new(),
            worked_on: false,
            masks: None,
            asked: Instant::now(),
            slow: 0,
        };
        state.note_time(PATIENCE * 4, 4);
        assert_eq!(state.slow, 0, "four masks");
        state.note_time(PATIENCE * 2, 1);
        assert_eq!(state.slow, QUICK_AGAIN);
        (0..QUICK_AGAIN).for_each(|_| state.note_time(Duration::ZERO, 1));
        assert_eq!(state.slow, 0);
    }
}
