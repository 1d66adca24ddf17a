//! The scheduler of a simulated world: executors, ready tasks, timers, virtual time, the seeded
//! generator and the trace of decisions.
//!
//! One step polls one task, chosen by the seed among the ready ones of an executor chosen by the
//! seed. Time moves a little with every step and jumps to the next timer when nothing is ready.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, HashMap};
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Wake, Waker};
use std::time::Duration;

use super::exec::Executor;
use crate::rt::current::{Current, enter};

/// Virtual time at the start, in nanoseconds: far from 0, so that "an hour ago" can be written.
pub(super) const START_NS: u64 = 1_000_000_000_000_000;
/// What polling one task takes, in nanoseconds of virtual time: from 50 ns to 2 microseconds.
const STEP_NS: std::ops::Range<u64> = 50..2000;

type BoxedFuture = Pin<Box<dyn Future<Output = ()>>>;

/// Deadline and sequence number: unique, and equal deadlines fire in the order of arming.
pub(super) type TimerKey = (u64, u64);

pub(super) enum Fire {
    Wake(Waker),
    Call(Box<dyn FnOnce()>),
}

struct Task {
    /// Absent while it is being polled.
    future: Option<BoxedFuture>,
    executor: Rc<Executor>,
    waker: Arc<TaskWaker>,
}

pub(super) struct Kernel {
    now: Cell<u64>,
    rng: RefCell<fastrand::Rng>,
    trace: Cell<u64>,
    steps: Cell<u64>,
    /// Every state of the trace, where somebody wants to compare two runs.
    kept: RefCell<Option<Vec<u64>>>,
    /// What another run kept: this one stops where it leaves it.
    expected: RefCell<std::vec::IntoIter<u64>>,
    next_id: Cell<u64>,
    tasks: RefCell<HashMap<u64, Task>>,
    executors: RefCell<Vec<Rc<Executor>>>,
    timers: RefCell<BTreeMap<TimerKey, Fire>>,
}

/// Ready tasks of one executor, in the order in which they were woken.
#[derive(Default)]
pub(super) struct ReadyQueue {
    ids: Mutex<Vec<u64>>,
    /// How many, to be seen without the lock: every executor is asked at every step.
    len: AtomicUsize,
}

impl ReadyQueue {
    fn with<R>(&self, f: impl FnOnce(&mut Vec<u64>) -> R) -> R {
        let mut ids = self.ids.lock().unwrap_or_else(PoisonError::into_inner);
        let done = f(&mut ids);
        self.len.store(ids.len(), Ordering::Relaxed);
        done
    }

    fn push(&self, id: u64) {
        self.with(|ids| ids.push(id));
    }

    pub(super) fn is_empty(&self) -> bool {
        self.len.load(Ordering::Relaxed) == 0
    }
}

struct TaskWaker {
    id: u64,
    queued: AtomicBool,
    ready: Arc<ReadyQueue>,
}

impl Wake for TaskWaker {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        if !self.queued.swap(true, Ordering::Relaxed) {
            self.ready.push(self.id);
        }
    }
}

impl Kernel {
    pub(super) fn new(seed: u64) -> Kernel {
        Kernel {
            now: Cell::new(START_NS),
            rng: RefCell::new(fastrand::Rng::with_seed(seed)),
            trace: Cell::new(seed ^ 0x5851_F42D_4C95_7F2D),
            steps: Cell::new(0),
            kept: RefCell::default(),
            expected: RefCell::default(),
            next_id: Cell::new(0),
            tasks: RefCell::new(HashMap::new()),
            executors: RefCell::new(Vec::new()),
            timers: RefCell::new(BTreeMap::new()),
        }
    }

    pub(super) fn now(&self) -> u64 {
        self.now.get()
    }

    pub(super) fn steps(&self) -> u64 {
        self.steps.get()
    }

    pub(super) fn trace_hash(&self) -> u64 {
        self.trace.get()
    }

    /// Mixes a decision or an effect into the trace.
    pub(super) fn note(&self, what: u64, value: u64) {
        let mixed = (self.trace.get() ^ what.rotate_left(32) ^ value)
            .wrapping_mul(0x9E37_79B9_7F4A_7C15)
            .rotate_left(29);
        self.trace.set(mixed);
        if let Some(kept) = &mut *self.kept.borrow_mut() {
            kept.push(mixed);
        }
        let expected = self.expected.borrow_mut().next();
        if expected.is_some_and(|expected| expected != mixed) {
            // Once: what follows is another run.
            self.expected.take();
            panic!("the run leaves the one before at step {}", self.steps());
        }
    }

    pub(super) fn keep_trace(&self) {
        self.kept.borrow_mut().get_or_insert_default();
    }

    pub(super) fn kept_trace(&self) -> Vec<u64> {
        self.kept.borrow().clone().unwrap_or_default()
    }

    pub(super) fn expect_trace(&self, trace: Vec<u64>) {
        *self.expected.borrow_mut() = trace.into_iter();
    }

    pub(super) fn random(&self) -> u64 {
        let drawn = self.rng.borrow_mut().u64(..);
        self.note(3, drawn);
        drawn
    }

    /// Below `bound`, 0 if that is 0.
    pub(super) fn below(&self, bound: u64) -> u64 {
        if bound == 0 {
            0
        } else {
            let drawn = self.rng.borrow_mut().u64(..bound);
            self.note(4, drawn);
            drawn
        }
    }

    pub(super) fn between(&self, low: u64, high: u64) -> u64 {
        low + self.below(high.saturating_sub(low).saturating_add(1))
    }

    pub(super) fn one_in(&self, n: u64) -> bool {
        self.below(n) == 0
    }

    pub(super) fn fill(&self, bytes: &mut [u8]) {
        self.rng.borrow_mut().fill(bytes);
    }

    fn next_id(&self) -> u64 {
        let id = self.next_id.get();
        self.next_id.set(id + 1);
        id
    }

    pub(super) fn arm(&self, deadline: u64, fire: Fire) -> TimerKey {
        let key = (deadline, self.next_id());
        self.timers.borrow_mut().insert(key, fire);
        key
    }

    pub(super) fn disarm(&self, key: TimerKey) {
        let fire = self.timers.borrow_mut().remove(&key);
        drop(fire);
    }

    /// Runs `call` after `delay_ns`.
    pub(super) fn after(&self, delay_ns: u64, call: impl FnOnce() + 'static) {
        self.arm(
            self.now().saturating_add(delay_ns),
            Fire::Call(Box::new(call)),
        );
    }

    pub(super) fn add_executor(&self, executor: Rc<Executor>) {
        self.executors.borrow_mut().push(executor);
    }

    pub(super) fn spawn(
        &self,
        executor: &Rc<Executor>,
        future: impl Future<Output = ()> + 'static,
    ) {
        let id = self.next_id();
        let waker = Arc::new(TaskWaker {
            id,
            queued: AtomicBool::new(true),
            ready: executor.ready.clone(),
        });
        executor.ready.push(id);
        let task = Task {
            future: Some(Box::pin(future)),
            executor: executor.clone(),
            waker,
        };
        self.tasks.borrow_mut().insert(id, task);
    }

    /// Drops the executors for which `dead` holds, with all their tasks.
    pub(super) fn remove_executors(&self, dead: impl Fn(&Executor) -> bool) {
        self.executors
            .borrow_mut()
            .retain(|executor| !dead(executor));
        let mut doomed: Vec<u64> = self
            .tasks
            .borrow()
            .iter()
            .filter(|(_, task)| dead(&task.executor))
            .map(|(id, _)| *id)
            .collect();
        // The map's order is the process's, not the seed's.
        doomed.sort_unstable();
        for id in doomed {
            let task = self.tasks.borrow_mut().remove(&id);
            if let Some(task) = task {
                let _entered = enter(Some(Current::Sim(task.executor.clone())));
                drop(task.future);
            }
        }
    }

    /// Drops everything that waits: timers hold what holds the kernel.
    pub(super) fn clear(&self) {
        self.remove_executors(|_| true);
        let timers = std::mem::take(&mut *self.timers.borrow_mut());
        drop(timers);
    }

    /// One step. False if nothing is ready and no timer is due by `until`.
    pub(super) fn step(&self, until: u64) -> bool {
        let step = self.between(STEP_NS.start, STEP_NS.end);
        self.now.set(self.now.get() + step);
        if self.fire_due() {
            return true;
        }
        if let Some(executor) = self.pick_executor() {
            self.run_one(&executor);
            return true;
        }
        let next = self.timers.borrow().keys().next().map(|key| key.0);
        match next {
            Some(deadline) if deadline <= until => {
                self.now.set(self.now.get().max(deadline));
                self.fire_due()
            }
            _ => false,
        }
    }

    /// Sets the clock forward, when nothing happens before.
    pub(super) fn advance_to(&self, instant: u64) {
        self.now.set(self.now.get().max(instant));
    }

    fn fire_due(&self) -> bool {
        let due = {
            let mut timers = self.timers.borrow_mut();
            match timers.first_key_value() {
                Some((key, _)) if key.0 <= self.now.get() => timers.pop_first(),
                _ => None,
            }
        };
        let Some((key, fire)) = due else { return false };
        self.note(1, key.1);
        match fire {
            Fire::Wake(waker) => waker.wake(),
            Fire::Call(call) => call(),
        }
        true
    }

    fn pick_executor(&self) -> Option<Rc<Executor>> {
        let executors = self.executors.borrow();
        let busy = || executors.iter().filter(|executor| executor.has_work());
        let index = self.below(busy().count() as u64) as usize;
        busy().nth(index).cloned()
    }

    fn run_one(&self, executor: &Rc<Executor>) {
        if executor.ready.is_empty() {
            // The end of a turn: those who yielded go on.
            executor.wake_yielded();
            return;
        }
        let choose = |ids: &mut Vec<u64>| ids.remove(self.below(ids.len() as u64) as usize);
        let id = executor.ready.with(choose);
        self.steps.set(self.steps.get() + 1);
        self.note(2, id);
        let taken = {
            let mut tasks = self.tasks.borrow_mut();
            let Some(task) = tasks.get_mut(&id) else {
                return;
            };
            task.waker.queued.store(false, Ordering::Relaxed);
            task.future
                .take()
                .map(|future| (future, task.waker.clone()))
        };
        let Some((mut future, waker)) = taken else {
            return;
        };
        let _entered = enter(Some(Current::Sim(executor.clone())));
        let waker = Waker::from(waker);
        let done = future
            .as_mut()
            .poll(&mut Context::from_waker(&waker))
            .is_ready();
        if done {
            drop(future);
            self.tasks.borrow_mut().remove(&id);
            return;
        }
        let left = match self.tasks.borrow_mut().get_mut(&id) {
            Some(task) => task.future.replace(future),
            // Its node was killed by what it did.
            None => Some(future),
        };
        drop(left);
    }
}

pub(super) fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}
