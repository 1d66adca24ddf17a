//! A list of wakers from which a waiter can remove itself: the shared part of the primitives.
//!
//! One executor. Order of arrival is kept; removal is O(1) amortised by generation-checked keys.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::task::Waker;

/// FIFO of wakers, each with a ticket.
#[derive(Default)]
pub(super) struct Waiters {
    inner: RefCell<Inner>,
}

#[derive(Default)]
struct Inner {
    next_ticket: u64,
    // Sorted by ticket, because tickets only grow.
    queue: VecDeque<(u64, Waker)>,
}

impl Waiters {
    /// Puts `waker` in under `ticket` if that is still waiting, else as a new entry at the end.
    pub(super) fn register(&self, ticket: &mut Option<u64>, waker: &Waker) {
        let mut inner = self.inner.borrow_mut();
        if let Some(ticket) = *ticket
            && let Ok(index) = inner.queue.binary_search_by_key(&ticket, |entry| entry.0)
        {
            if !inner.queue[index].1.will_wake(waker) {
                inner.queue[index].1 = waker.clone();
            }
            return;
        }
        let new = inner.next_ticket;
        inner.next_ticket += 1;
        inner.queue.push_back((new, waker.clone()));
        *ticket = Some(new);
    }

    /// True if the entry was still there.
    pub(super) fn remove(&self, ticket: u64) -> bool {
        let mut inner = self.inner.borrow_mut();
        match inner.queue.binary_search_by_key(&ticket, |entry| entry.0) {
            Ok(index) => {
                let entry = inner.queue.remove(index);
                drop(inner);
                drop(entry);
                true
            }
            Err(_) => false,
        }
    }

    pub(super) fn wake_all(&self) {
        // Swapped out first: a woken task may register again at once.
        let all = std::mem::take(&mut self.inner.borrow_mut().queue);
        for (_, waker) in all {
            waker.wake();
        }
    }
}
