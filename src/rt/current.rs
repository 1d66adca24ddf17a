//! Which executor runs on this thread right now: the switch between the ring and the simulated
//! body.
//!
//! Every public function of the room asks here. A thread without an executor (pool threads, plain
//! unit tests) still has clock and randomness, but no tasks, files or sockets.

use std::cell::RefCell;
use std::rc::Rc;

use super::{ring, sim};

/// The executor whose task is being polled on this thread.
#[derive(Clone)]
pub(crate) enum Current {
    Ring(Rc<ring::Executor>),
    Sim(Rc<sim::Executor>),
}

thread_local! {
    static CURRENT: RefCell<Option<Current>> = const { RefCell::new(None) };
}

/// The current executor, `None` on a thread that runs none.
pub(crate) fn try_current() -> Option<Current> {
    CURRENT.with(|current| current.borrow().clone())
}

/// The current executor.
///
/// # Panics
/// On a thread that runs none: tasks, files and sockets belong to an executor.
#[track_caller]
pub(crate) fn current() -> Current {
    try_current().expect("called outside of an executor: this needs run_ring or a simulated world")
}

/// Puts `next` in place until the returned guard is dropped.
pub(crate) fn enter(next: Option<Current>) -> Entered {
    Entered {
        previous: CURRENT.with(|current| current.replace(next)),
    }
}

/// Restores the executor that was current before [`enter`].
pub(crate) struct Entered {
    previous: Option<Current>,
}

impl Drop for Entered {
    fn drop(&mut self) {
        let previous = self.previous.take();
        CURRENT.with(|current| current.replace(previous));
    }
}
