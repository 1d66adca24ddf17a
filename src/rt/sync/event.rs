//! An event that wakes everybody who waits for it.
//!
//! One executor. A wait counts from the moment [`Event::wait`] is called, not from its first
//! poll, so "look at the state, then wait" loses nothing.

use std::cell::Cell;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};

use super::waiters::Waiters;

/// Clones are the same event.
#[derive(Clone, Default)]
pub struct Event {
    shared: Rc<Shared>,
}

#[derive(Default)]
struct Shared {
    /// Number of notifications so far.
    generation: Cell<u64>,
    waiters: Waiters,
}

impl Event {
    pub fn new() -> Event {
        Event::default()
    }

    /// Ends every wait that has begun.
    pub fn notify_all(&self) {
        self.shared.generation.set(self.shared.generation.get() + 1);
        self.shared.waiters.wake_all();
    }

    /// Waits for the next [`Event::notify_all`] after this call.
    pub fn wait(&self) -> Wait {
        Wait {
            shared: self.shared.clone(),
            since: self.shared.generation.get(),
            ticket: None,
        }
    }
}

/// Future of [`Event::wait`].
pub struct Wait {
    shared: Rc<Shared>,
    since: u64,
    ticket: Option<u64>,
}

impl Future for Wait {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let this = &mut *self;
        if this.shared.generation.get() != this.since {
            return Poll::Ready(());
        }
        this.shared.waiters.register(&mut this.ticket, cx.waker());
        Poll::Pending
    }
}

impl Drop for Wait {
    fn drop(&mut self) {
        if let Some(ticket) = self.ticket {
            self.shared.waiters.remove(ticket);
        }
    }
}
