//! A bell for one: wakes one waiter, or the next one to come.
//!
//! One executor. With nobody waiting at most one notification is remembered, so a burst of them
//! costs one wake.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

/// Clones are the same bell.
#[derive(Clone, Default)]
pub struct Notify {
    shared: Rc<Shared>,
}

#[derive(Default)]
struct Shared {
    /// A notification that came while nobody waited.
    pending: Cell<bool>,
    queue: RefCell<VecDeque<Rc<Waiter>>>,
}

struct Waiter {
    state: Cell<State>,
    waker: RefCell<Option<Waker>>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    Waiting,
    /// A notification is its own.
    Notified,
    Gone,
}

impl Notify {
    pub fn new() -> Notify {
        Notify::default()
    }

    /// Ends one [`Notify::notified`]: the one that waits longest, else the next one called.
    pub fn notify_one(&self) {
        self.shared.ring();
    }

    /// Waits for a notification and takes it.
    pub fn notified(&self) -> Notified {
        Notified {
            shared: self.shared.clone(),
            waiter: None,
        }
    }
}

impl Shared {
    fn ring(&self) {
        loop {
            let Some(waiter) = self.queue.borrow_mut().pop_front() else {
                self.pending.set(true);
                return;
            };
            if waiter.state.get() == State::Waiting {
                waiter.state.set(State::Notified);
                let waker = waiter.waker.borrow_mut().take();
                if let Some(waker) = waker {
                    waker.wake();
                }
                return;
            }
        }
    }
}

/// Future of [`Notify::notified`].
pub struct Notified {
    shared: Rc<Shared>,
    waiter: Option<Rc<Waiter>>,
}

impl Future for Notified {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let this = &mut *self;
        match &this.waiter {
            None if this.shared.pending.replace(false) => Poll::Ready(()),
            None => {
                let waiter = Rc::new(Waiter {
                    state: Cell::new(State::Waiting),
                    waker: RefCell::new(Some(cx.waker().clone())),
                });
                this.shared.queue.borrow_mut().push_back(waiter.clone());
                this.waiter = Some(waiter);
                Poll::Pending
            }
            Some(waiter) if waiter.state.get() == State::Notified => {
                this.waiter = None;
                Poll::Ready(())
            }
            Some(waiter) => {
                *waiter.waker.borrow_mut() = Some(cx.waker().clone());
                Poll::Pending
            }
        }
    }
}

impl Drop for Notified {
    fn drop(&mut self) {
        if let Some(waiter) = self.waiter.take() {
            match waiter.state.replace(State::Gone) {
                // Woken but never polled again: the notification is for somebody else.
                State::Notified => self.shared.ring(),
                // The dead entry goes now, or a bell that never rings would collect them.
                State::Waiting => {
                    self.shared
                        .queue
                        .borrow_mut()
                        .retain(|other| !Rc::ptr_eq(other, &waiter));
                }
                State::Gone => {}
            }
        }
    }
}
