//! Tasks of one executor: spawning, joining, cancelling, and the register of what is alive.
//!
//! A task runs on the executor that spawned it and never leaves it. Written once for both bodies
//! on plain wakers. The register lets an executor drop all that is left when its main future
//! ends, so that files, locks and sockets never outlive it.

use std::cell::{Cell, RefCell};
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use slab::Slab;

use super::current::{Current, current};
use super::{ring, sim};

/// Spawns `future` on the current executor. It runs for the first time after the current task has
/// yielded, never inside this call.
pub fn spawn<T: 'static>(future: impl Future<Output = T> + 'static) -> Task<T> {
    match current() {
        Current::Ring(executor) => {
            let (task, body) = prepare(&executor.register, future);
            ring::schedule(body);
            task
        }
        Current::Sim(executor) => {
            let (task, body) = prepare(&executor.register, future);
            executor.schedule(body);
            task
        }
    }
}

/// Lets every other runnable task and all completed I/O go first. Goes through the reactor: a
/// bare re-queue would keep the executor from looking at its rings.
pub async fn yield_now() {
    match current() {
        Current::Ring(_) => ring::yield_now().await,
        Current::Sim(executor) => sim::YieldNow::new(executor).await,
    }
}

/// Handle of a spawned task. Awaiting it joins; dropping it lets the task run on.
pub struct Task<T> {
    core: Rc<Core<T>>,
}

struct Core<T> {
    life: Life,
    output: RefCell<Option<T>>,
}

#[derive(Default)]
struct Life {
    cancelled: Cell<bool>,
    finished: Cell<bool>,
    /// Wakes the task itself; set while it waits.
    task: RefCell<Option<Waker>>,
    /// Wakes whoever joins it.
    joiner: RefCell<Option<Waker>>,
}

impl Life {
    fn cancel(&self) {
        if self.finished.get() || self.cancelled.replace(true) {
            return;
        }
        // Taken out first: waking may run foreign code that comes back here.
        let waker = self.task.borrow_mut().take();
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    fn remember(slot: &RefCell<Option<Waker>>, waker: &Waker) {
        let mut slot = slot.borrow_mut();
        match &*slot {
            Some(known) if known.will_wake(waker) => {}
            _ => *slot = Some(waker.clone()),
        }
    }
}

impl<T> Task<T> {
    /// Stops the task: its future is dropped at its next turn, and this waits until it is.
    /// `Some` if it had finished before.
    pub async fn cancel(self) -> Option<T> {
        self.core.life.cancel();
        std::future::poll_fn(|cx| self.poll_finished(cx)).await;
        self.core.output.borrow_mut().take()
    }

    /// [`Task::cancel`] without waiting.
    pub fn cancel_detached(self) {
        self.core.life.cancel();
    }

    pub fn is_finished(&self) -> bool {
        self.core.life.finished.get()
    }

    fn poll_finished(&self, cx: &Context<'_>) -> Poll<()> {
        if self.core.life.finished.get() {
            return Poll::Ready(());
        }
        Life::remember(&self.core.life.joiner, cx.waker());
        Poll::Pending
    }
}

impl<T> Future for Task<T> {
    type Output = T;

    /// Pending for ever if the task was cancelled by the end of its executor.
    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<T> {
        match self.poll_finished(cx) {
            Poll::Pending => Poll::Pending,
            Poll::Ready(()) => match self.core.output.borrow_mut().take() {
                Some(output) => Poll::Ready(output),
                None => Poll::Pending,
            },
        }
    }
}

/// What is alive on one executor.
#[derive(Default)]
pub(crate) struct Register {
    tasks: RefCell<Slab<Rc<dyn Cancel>>>,
    /// Polls of tasks so far: tells activity from idleness.
    polls: Cell<u64>,
}

trait Cancel {
    fn cancel(&self);
}

impl<T> Cancel for Core<T> {
    fn cancel(&self) {
        self.life.cancel();
    }
}

impl Register {
    pub(crate) fn polls(&self) -> u64 {
        self.polls.get()
    }

    pub(crate) fn alive(&self) -> usize {
        self.tasks.borrow().len()
    }

    /// Cancels every task; each future is dropped at its next turn.
    pub(crate) fn cancel_all(&self) {
        let tasks: Vec<Rc<dyn Cancel>> = self
            .tasks
            .borrow()
            .iter()
            .map(|(_, task)| task.clone())
            .collect();
        for task in tasks {
            task.cancel();
        }
    }
}

/// Makes the handle and the future that the body's scheduler has to poll.
pub(crate) fn prepare<T: 'static, F: Future<Output = T> + 'static>(
    register: &Rc<Register>,
    future: F,
) -> (Task<T>, TaskFuture<F>) {
    let core = Rc::new(Core {
        life: Life::default(),
        output: RefCell::new(None),
    });
    let key = register.tasks.borrow_mut().insert(core.clone());
    let body = TaskFuture {
        future: Some(future),
        core: core.clone(),
        register: register.clone(),
        key,
    };
    (Task { core }, body)
}

/// The future of a task with its cancel switch.
pub(crate) struct TaskFuture<F: Future> {
    future: Option<F>,
    core: Rc<Core<F::Output>>,
    register: Rc<Register>,
    key: usize,
}

impl<F: Future> TaskFuture<F> {
    #[allow(unsafe_code)]
    fn project(self: Pin<&mut Self>) -> (Pin<&mut Option<F>>, &Core<F::Output>, &Register) {
        // SAFETY: `future` is never moved out of a pinned TaskFuture (it is only polled in place
        // or set to None, which drops it in place), TaskFuture has no Drop that moves it, and the
        // other fields are not structurally pinned.
        unsafe {
            let this = self.get_unchecked_mut();
            (
                Pin::new_unchecked(&mut this.future),
                &this.core,
                &this.register,
            )
        }
    }
}

impl<F: Future> Future for TaskFuture<F> {
    type Output = ();

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let (mut future, core, register) = self.project();
        register.polls.set(register.polls.get().wrapping_add(1));
        if !core.life.cancelled.get() {
            let Some(running) = future.as_mut().as_pin_mut() else {
                return Poll::Ready(());
            };
            match running.poll(cx) {
                Poll::Ready(output) => {
                    *core.output.borrow_mut() = Some(output);
                }
                // Cancelled by itself or by what it called: drop it now, nobody would wake it.
                Poll::Pending if core.life.cancelled.get() => {}
                Poll::Pending => {
                    Life::remember(&core.life.task, cx.waker());
                    return Poll::Pending;
                }
            }
        }
        // Dropped here, not with the scheduler's own memory: a joiner may rely on it.
        future.set(None);
        Poll::Ready(())
    }
}

impl<F: Future> Drop for TaskFuture<F> {
    fn drop(&mut self) {
        self.core.life.finished.set(true);
        self.core.life.task.borrow_mut().take();
        let entry = self.register.tasks.borrow_mut().try_remove(self.key);
        drop(entry);
        let joiner = self.core.life.joiner.borrow_mut().take();
        if let Some(joiner) = joiner {
            joiner.wake();
        }
    }
}

impl<T> fmt::Debug for Task<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Task")
            .field("finished", &self.is_finished())
            .finish()
    }
}
