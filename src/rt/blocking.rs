//! Work off the executor: CPU-heavy closures and system calls that may sleep.
//!
//! The ring body has pools of threads for the process, so that long computations never queue
//! behind a flush; the simulator runs the closure at once. Never call [`blocking`] for something
//! shorter than about 20 microseconds: the hop costs more.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use super::current::{Current, current};
use super::lane::{OnceReceiver, once};
use super::ring::pool::{self, Pool};
use super::sim;

/// Runs `work` on a thread for computations (compression, recovery, hashing of passwords).
///
/// # Panics
/// With the closure's own panic.
pub async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    spawn_blocking(work).await
}

/// Starts [`blocking`] work now; await the result later. Dropping the handle lets it run on.
pub fn spawn_blocking<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> BlockingTask<T> {
    start(Pool::Compute, work)
}

/// Runs `work` on a thread for file system calls.
pub(crate) fn blocking_io<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> BlockingTask<T> {
    start(Pool::Disk, work)
}

/// Runs `work` on a thread for reads from the device.
pub(crate) fn blocking_read<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> BlockingTask<T> {
    start(Pool::Cold, work)
}

fn start<T: Send + 'static>(
    pool: Pool,
    work: impl FnOnce() -> T + Send + 'static,
) -> BlockingTask<T> {
    match current() {
        Current::Ring(_) => {
            let (sender, receiver) = once();
            pool::submit(
                pool,
                Box::new(move || {
                    let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(work));
                    // The other side may have lost interest.
                    let _ = sender.send(result);
                }),
            );
            BlockingTask {
                body: Body::Ring(receiver),
            }
        }
        // At once, which is deterministic; the answer takes its time.
        Current::Sim(executor) => {
            let delay = Box::pin(sim::IoDelay::of_thread(&executor));
            BlockingTask {
                body: Body::Sim {
                    result: Some(work()),
                    delay,
                },
            }
        }
    }
}

/// The result to come of blocking work.
pub struct BlockingTask<T: Send> {
    body: Body<T>,
}

enum Body<T: Send> {
    Ring(OnceReceiver<std::thread::Result<T>>),
    Sim {
        result: Option<T>,
        delay: Pin<Box<sim::IoDelay>>,
    },
}

// The result is moved out, never pinned.
impl<T: Send> Unpin for BlockingTask<T> {}

impl<T: Send> Future for BlockingTask<T> {
    type Output = T;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<T> {
        let receiver = match &mut self.body {
            Body::Ring(receiver) => receiver,
            Body::Sim { result, delay } => {
                return match delay.as_mut().poll(cx) {
                    Poll::Pending => Poll::Pending,
                    Poll::Ready(()) => result.take().map_or(Poll::Pending, Poll::Ready),
                };
            }
        };
        match Pin::new(receiver).poll(cx) {
            Poll::Pending => Poll::Pending,
            Poll::Ready(Some(Ok(value))) => Poll::Ready(value),
            Poll::Ready(Some(Err(panic))) => std::panic::resume_unwind(panic),
            // The pool lives as long as the process and runs what it took.
            Poll::Ready(None) => Poll::Pending,
        }
    }
}
