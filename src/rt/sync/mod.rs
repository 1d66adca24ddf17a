//! Coordination between tasks of one executor: one-shot value, event, notify, semaphore, queue.
//!
//! All are `!Send`, built on plain wakers, and know neither body. Every wait is safe to drop: what
//! a dropped waiter had been given goes to the next.

mod event;
mod notify;
pub mod oneshot;
pub mod queue;
mod semaphore;
mod waiters;

pub use event::{Event, Wait};
pub use notify::{Notified, Notify};
pub use semaphore::{Acquire, Permit, Semaphore};
