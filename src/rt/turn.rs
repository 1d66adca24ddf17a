//! Turns for steps that keep the executor busy for tens of microseconds: copying a piece of a
//! large answer into a socket, or out of the page cache.
//!
//! Any executor. Its tasks take turns, and the reactor runs between two of them. Without that,
//! every connection with a large answer would do a step of its own before anything else is looked
//! at: what a small request waits for would grow with the number of large ones.

use crate::rt::current::{Current, current};
use crate::rt::sync::Permit;

/// What one step should move at most: 64 KiB into a loopback socket take some 25 microseconds
/// with the receiving side that the kernel runs in the same call.
pub const STEP_BYTES: usize = 64 << 10;

/// The right to do one step.
pub struct Turn(Option<Permit>);

/// Waits for the executor's next turn; they are given in order of arrival.
pub async fn turn() -> Turn {
    match current() {
        Current::Ring(executor) => Turn(Some(executor.turns.acquire(1).await)),
        // A step takes no virtual time.
        Current::Sim(_) => Turn(None),
    }
}

impl Turn {
    /// The step is done: everything else runs before the next one.
    pub async fn end(self) {
        crate::rt::yield_now().await;
        drop(self.0);
    }
}
