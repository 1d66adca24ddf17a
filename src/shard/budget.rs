//! The memory that requests of one shard may hold, from the first byte of a frame until its
//! answer has left. Lives on its shard; never allocates anything itself.
//!
//! A frame waits for room only before its first byte; after that it is charged for the bytes that
//! have really arrived, even beyond the limit. So a peer that announces a large frame and stops
//! holds only what it has sent, and frames that are half in can always finish: no deadlock. The
//! overdraft is bounded by what the peers can send between two checks.

use crate::rt::sync::Event;
use std::cell::Cell;
use std::rc::Rc;

/// The budget of one shard, in bytes.
pub struct Budget {
    limit: u64,
    used: Cell<u64>,
    freed: Event,
}

/// Bytes charged to the budget; dropping it gives them back.
pub struct Charge {
    budget: Rc<Budget>,
    bytes: u64,
}

impl Budget {
    /// `limit` in bytes: `highwater.request.memory.bytes` of one shard.
    pub fn new(limit: u64) -> Rc<Budget> {
        Rc::new(Budget {
            limit,
            used: Cell::new(0),
            freed: Event::new(),
        })
    }

    /// Waits until a new frame may begin.
    pub async fn room(&self) {
        while self.used.get() >= self.limit {
            self.freed.wait().await;
        }
    }

    pub fn has_room(&self) -> bool {
        self.used.get() < self.limit
    }

    /// A charge of nothing yet.
    pub fn charge(self: &Rc<Self>) -> Charge {
        Charge {
            budget: self.clone(),
            bytes: 0,
        }
    }

    /// Bytes held now.
    pub fn used(&self) -> u64 {
        self.used.get()
    }
}

impl Charge {
    pub fn grow(&mut self, bytes: u64) {
        self.bytes += bytes;
        self.budget.used.set(self.budget.used.get() + bytes);
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        if self.bytes == 0 {
            return;
        }
        let was_full = !self.budget.has_room();
        self.budget.used.set(self.budget.used.get() - self.bytes);
        if was_full && self.budget.has_room() {
            self.budget.freed.notify_all();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_half_sent_frame_holds_only_what_arrived() {
        let budget = Budget::new(100);
        let mut half = budget.charge();
        half.grow(40);
        assert!(budget.has_room());
        let mut other = budget.charge();
        other.grow(90);
        assert!(!budget.has_room());
        drop(other);
        assert!(budget.has_room());
        assert_eq!(budget.used(), 40);
        drop(half);
        assert_eq!(budget.used(), 0);
    }
}
