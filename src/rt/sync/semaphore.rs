//! A counted budget, handed out in order of arrival.
//!
//! One executor. A large request at the head is not overtaken by small ones behind it, so it is
//! served in bounded time.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

/// Clones are the same budget.
#[derive(Clone)]
pub struct Semaphore {
    shared: Rc<Shared>,
}

struct Shared {
    total: u64,
    free: Cell<u64>,
    queue: RefCell<VecDeque<Rc<Waiter>>>,
}

struct Waiter {
    wanted: u64,
    state: Cell<State>,
    waker: RefCell<Option<Waker>>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    Waiting,
    /// The permits are set aside for it.
    Granted,
    Gone,
}

impl Semaphore {
    /// A budget of `total` permits.
    pub fn new(total: u64) -> Semaphore {
        Semaphore {
            shared: Rc::new(Shared {
                total,
                free: Cell::new(total),
                queue: RefCell::new(VecDeque::new()),
            }),
        }
    }

    /// Waits for `wanted` permits. More than the whole budget counts as the whole budget: such a
    /// request runs alone instead of never.
    pub fn acquire(&self, wanted: u64) -> Acquire {
        Acquire {
            shared: self.shared.clone(),
            wanted: wanted.min(self.shared.total),
            waiter: None,
        }
    }

    /// `wanted` permits at once, `None` if they are not free or others wait before us.
    pub fn try_acquire(&self, wanted: u64) -> Option<Permit> {
        let wanted = wanted.min(self.shared.total);
        self.shared.take_now(wanted).then(|| Permit {
            shared: self.shared.clone(),
            count: wanted,
        })
    }

    pub fn available(&self) -> u64 {
        self.shared.free.get()
    }

    pub fn total(&self) -> u64 {
        self.shared.total
    }
}

impl Shared {
    fn take_now(&self, wanted: u64) -> bool {
        let free = self.free.get();
        if free >= wanted && self.queue.borrow().is_empty() {
            self.free.set(free - wanted);
            return true;
        }
        false
    }

    fn release(&self, count: u64) {
        self.free.set(self.free.get() + count);
        assert!(
            self.free.get() <= self.total,
            "more permits returned than handed out"
        );
        self.grant();
    }

    /// Serves the queue from its head as far as the free permits reach.
    fn grant(&self) {
        loop {
            let waker = {
                let mut queue = self.queue.borrow_mut();
                let Some(head) = queue.front() else { return };
                match head.state.get() {
                    State::Waiting if head.wanted > self.free.get() => return,
                    State::Waiting => {
                        self.free.set(self.free.get() - head.wanted);
                        head.state.set(State::Granted);
                        let waker = head.waker.borrow_mut().take();
                        queue.pop_front();
                        waker
                    }
                    State::Granted | State::Gone => {
                        queue.pop_front();
                        None
                    }
                }
            };
            if let Some(waker) = waker {
                waker.wake();
            }
        }
    }
}

/// Future of [`Semaphore::acquire`].
pub struct Acquire {
    shared: Rc<Shared>,
    wanted: u64,
    waiter: Option<Rc<Waiter>>,
}

impl Future for Acquire {
    type Output = Permit;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Permit> {
        let this = &mut *self;
        match &this.waiter {
            None => {
                if !this.shared.take_now(this.wanted) {
                    let waiter = Rc::new(Waiter {
                        wanted: this.wanted,
                        state: Cell::new(State::Waiting),
                        waker: RefCell::new(Some(cx.waker().clone())),
                    });
                    this.shared.queue.borrow_mut().push_back(waiter.clone());
                    this.waiter = Some(waiter);
                    return Poll::Pending;
                }
            }
            Some(waiter) => {
                if waiter.state.get() != State::Granted {
                    *waiter.waker.borrow_mut() = Some(cx.waker().clone());
                    return Poll::Pending;
                }
                this.waiter = None;
            }
        }
        Poll::Ready(Permit {
            shared: this.shared.clone(),
            count: this.wanted,
        })
    }
}

impl Drop for Acquire {
    fn drop(&mut self) {
        if let Some(waiter) = self.waiter.take() {
            match waiter.state.replace(State::Gone) {
                State::Granted => self.shared.release(self.wanted),
                // It may have been the head that held smaller requests back.
                State::Waiting => {
                    self.shared
                        .queue
                        .borrow_mut()
                        .retain(|other| !Rc::ptr_eq(other, &waiter));
                    self.shared.grant();
                }
                State::Gone => {}
            }
        }
    }
}

/// Permits held; they go back when it is dropped.
pub struct Permit {
    shared: Rc<Shared>,
    count: u64,
}

impl Permit {
    pub fn count(&self) -> u64 {
        self.count
    }

    /// Gives `count` of the held permits back early; at most what is held.
    pub fn give_back(&mut self, count: u64) {
        let count = count.min(self.count);
        self.count -= count;
        self.shared.release(count);
    }

    /// Takes the permits of `other`, which must be of the same semaphore.
    pub fn merge(&mut self, mut other: Permit) {
        assert!(
            Rc::ptr_eq(&self.shared, &other.shared),
            "permits of two semaphores"
        );
        self.count += std::mem::take(&mut other.count);
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        self.shared.release(self.count);
    }
}
