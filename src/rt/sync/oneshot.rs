//! One value from one task to another of the same executor.

use std::cell::{Cell, RefCell};
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

/// The sender went away without a value.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("the sender went away without a value")]
pub struct Closed;

struct Shared<T> {
    value: RefCell<Option<T>>,
    sender_gone: Cell<bool>,
    receiver_gone: Cell<bool>,
    waker: RefCell<Option<Waker>>,
}

/// Makes a pair; the receiver is the future of the value.
pub fn channel<T>() -> (Sender<T>, Receiver<T>) {
    let shared = Rc::new(Shared {
        value: RefCell::new(None),
        sender_gone: Cell::new(false),
        receiver_gone: Cell::new(false),
        waker: RefCell::new(None),
    });
    (
        Sender {
            shared: shared.clone(),
        },
        Receiver { shared },
    )
}

pub struct Sender<T> {
    shared: Rc<Shared<T>>,
}

impl<T> Sender<T> {
    /// Hands `value` over.
    ///
    /// # Errors
    /// Gives it back if nobody waits for it any more.
    pub fn send(self, value: T) -> Result<(), T> {
        if self.shared.receiver_gone.get() {
            return Err(value);
        }
        *self.shared.value.borrow_mut() = Some(value);
        Ok(())
    }

    /// True if nobody waits for the value any more.
    pub fn is_closed(&self) -> bool {
        self.shared.receiver_gone.get()
    }
}

impl<T> Drop for Sender<T> {
    fn drop(&mut self) {
        self.shared.sender_gone.set(true);
        let waker = self.shared.waker.borrow_mut().take();
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

pub struct Receiver<T> {
    shared: Rc<Shared<T>>,
}

impl<T> Receiver<T> {
    /// The value, if it is there already.
    pub fn try_recv(&mut self) -> Option<T> {
        self.shared.value.borrow_mut().take()
    }
}

impl<T> Future for Receiver<T> {
    type Output = Result<T, Closed>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        if let Some(value) = self.shared.value.borrow_mut().take() {
            return Poll::Ready(Ok(value));
        }
        if self.shared.sender_gone.get() {
            return Poll::Ready(Err(Closed));
        }
        *self.shared.waker.borrow_mut() = Some(cx.waker().clone());
        Poll::Pending
    }
}

impl<T> Drop for Receiver<T> {
    fn drop(&mut self) {
        self.shared.receiver_gone.set(true);
        let unread = self.shared.value.borrow_mut().take();
        drop(unread);
    }
}
