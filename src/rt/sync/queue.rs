//! A bounded queue between tasks of one executor: many senders, one receiver, backpressure in
//! order of arrival.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::future::poll_fn;
use std::rc::Rc;
use std::task::{Poll, Waker};

use super::semaphore::Semaphore;

/// The other end went away; the value comes back.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("the receiver went away")]
pub struct Closed<T>(pub T);

/// Why [`Sender::try_send`] did not take the value.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum TrySendError<T> {
    #[error("the queue is full")]
    Full(T),
    #[error("the receiver went away")]
    Closed(T),
}

struct Shared<T> {
    items: RefCell<VecDeque<Slot<T>>>,
    room: Semaphore,
    senders: Cell<usize>,
    closed: Cell<bool>,
    receiver: RefCell<Option<Waker>>,
}

struct Slot<T> {
    value: T,
    // Dropped with the slot when the receiver takes it: frees the room.
    _permit: super::semaphore::Permit,
}

/// A queue of at most `capacity` (at least 1) values.
pub fn bounded<T>(capacity: usize) -> (Sender<T>, Receiver<T>) {
    let shared = Rc::new(Shared {
        items: RefCell::new(VecDeque::new()),
        room: Semaphore::new(capacity.max(1) as u64),
        senders: Cell::new(1),
        closed: Cell::new(false),
        receiver: RefCell::new(None),
    });
    (
        Sender {
            shared: shared.clone(),
        },
        Receiver { shared },
    )
}

impl<T> Shared<T> {
    fn wake_receiver(&self) {
        let waker = self.receiver.borrow_mut().take();
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

pub struct Sender<T> {
    shared: Rc<Shared<T>>,
}

impl<T> Sender<T> {
    /// Waits for room.
    ///
    /// # Errors
    /// [`Closed`] with the value if the receiver went away.
    pub async fn send(&self, value: T) -> Result<(), Closed<T>> {
        let permit = self.shared.room.acquire(1).await;
        if self.shared.closed.get() {
            return Err(Closed(value));
        }
        self.shared.items.borrow_mut().push_back(Slot {
            value,
            _permit: permit,
        });
        self.shared.wake_receiver();
        Ok(())
    }

    /// # Errors
    /// [`TrySendError`] with the value if there is no room or no receiver.
    pub fn try_send(&self, value: T) -> Result<(), TrySendError<T>> {
        if self.shared.closed.get() {
            return Err(TrySendError::Closed(value));
        }
        let Some(permit) = self.shared.room.try_acquire(1) else {
            return Err(TrySendError::Full(value));
        };
        self.shared.items.borrow_mut().push_back(Slot {
            value,
            _permit: permit,
        });
        self.shared.wake_receiver();
        Ok(())
    }

    pub fn is_closed(&self) -> bool {
        self.shared.closed.get()
    }

    /// Values in the queue.
    pub fn len(&self) -> usize {
        self.shared.items.borrow().len()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl<T> Clone for Sender<T> {
    fn clone(&self) -> Self {
        self.shared.senders.set(self.shared.senders.get() + 1);
        Sender {
            shared: self.shared.clone(),
        }
    }
}

impl<T> Drop for Sender<T> {
    fn drop(&mut self) {
        let left = self.shared.senders.get() - 1;
        self.shared.senders.set(left);
        if left == 0 {
            self.shared.wake_receiver();
        }
    }
}

pub struct Receiver<T> {
    shared: Rc<Shared<T>>,
}

impl<T> Receiver<T> {
    /// The next value; `None` when the queue is empty and all senders are gone.
    pub async fn recv(&mut self) -> Option<T> {
        poll_fn(|cx| {
            if let Some(value) = self.try_recv() {
                return Poll::Ready(Some(value));
            }
            if self.shared.senders.get() == 0 {
                return Poll::Ready(None);
            }
            let mut slot = self.shared.receiver.borrow_mut();
            match &*slot {
                Some(known) if known.will_wake(cx.waker()) => {}
                _ => *slot = Some(cx.waker().clone()),
            }
            Poll::Pending
        })
        .await
    }

    pub fn try_recv(&mut self) -> Option<T> {
        let slot = self.shared.items.borrow_mut().pop_front();
        slot.map(|slot| slot.value)
    }

    pub fn len(&self) -> usize {
        self.shared.items.borrow().len()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl<T> Drop for Receiver<T> {
    fn drop(&mut self) {
        self.shared.closed.set(true);
        // Frees the room, so that waiting senders come back and see that it is closed.
        let unread = std::mem::take(&mut *self.shared.items.borrow_mut());
        drop(unread);
    }
}
