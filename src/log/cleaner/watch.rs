//! Owns the word between a pass and those who need the log for themselves: a deletion, the end of
//! the shard. On the shard. It never stops anything by force: the pass looks at it between pieces.

use std::cell::Cell;
use std::time::Duration;

use crate::rt;
use crate::rt::sync::Event;

/// Shared by a pass and whoever wants it to end.
#[derive(Default)]
pub struct PassWatch {
    leave: Cell<bool>,
    told: Event,
}

impl PassWatch {
    /// Tells the pass to give up.
    pub fn tell_to_leave(&self) {
        self.leave.set(true);
        self.told.notify_all();
    }

    pub fn is_told_to_leave(&self) -> bool {
        self.leave.get()
    }

    /// Sleeps, but not once the pass is told to leave.
    pub async fn sleep(&self, duration: Duration) {
        if !self.leave.get() {
            rt::select2(rt::sleep(duration), self.told.wait()).await;
        }
    }
}
