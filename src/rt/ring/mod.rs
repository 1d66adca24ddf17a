//! The real body: one glommio executor per thread, real files and sockets.
//!
//! What glommio does badly or not at all (vectored writes, page-cache writes, exclusive binds)
//! goes through raw system calls, all of them in `sys`.

mod build;
pub(crate) mod file;
pub(crate) mod net;
pub(crate) mod path;
pub(crate) mod pool;
pub(crate) mod run;
pub(crate) mod sys;

use std::future::{Future, poll_fn};
use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::task::Poll;
use std::time::Duration;

use super::sync::Semaphore;
use super::task::Register;

/// What this thread's executor carries.
pub(crate) struct Executor {
    pub(crate) register: Rc<Register>,
    /// One permit: whose turn it is (see `rt::turn`).
    pub(crate) turns: Semaphore,
}

/// Queues a task's future on this thread's executor. Always the default queue: a second queue
/// would bring shares and latency classes, and with them stalls (see `run`).
pub(crate) fn schedule(body: impl Future<Output = ()> + 'static) {
    let task = glommio::spawn_local_into(body, glommio::TaskQueueHandle::default())
        .expect("the default task queue exists as long as the executor");
    // The handle is dropped at once: a handle alive while another thread drops the task's last
    // waker would be a race inside glommio's reference count.
    drop(task.detach());
}

/// Longest sleep handed to glommio, which adds it to the clock without a check: ten years.
const SLEEP_MAX: Duration = Duration::from_secs(10 * 365 * 86_400);

pub(crate) async fn sleep(duration: Duration) {
    glommio::timer::Timer::new(duration.min(SLEEP_MAX)).await;
}

/// One turn of the reactor: everything runnable runs and the rings are looked at before the
/// caller goes on. A timer is what reaches the reactor. It must not have passed when it is polled
/// first, or it would be ready on the spot; but it should have when the executor looks at its
/// timers next, or the executor parks for the rest of it: 6 microseconds a yield against 28.
pub(crate) async fn yield_now() {
    let mut armed = None;
    poll_fn(|cx| {
        if armed.is_some() {
            return Poll::Ready(());
        }
        let mut delay = YIELD_FIRST;
        loop {
            let mut timer = glommio::timer::Timer::new(delay);
            if Pin::new(&mut timer).poll(cx).is_pending() {
                armed = Some(timer);
                return Poll::Pending;
            }
            delay *= 2;
        }
    })
    .await;
}

/// Arming takes 50 to 100 ns.
const YIELD_FIRST: Duration = Duration::from_nanos(150);

/// glommio's errors wrap the system's; callers match on kinds and codes.
pub(crate) fn io_error(error: glommio::GlommioError<()>) -> io::Error {
    match error {
        glommio::GlommioError::IoError(source) => source,
        glommio::GlommioError::EnhancedIoError { source, .. } => source,
        other => io::Error::other(other.to_string()),
    }
}
