//! The bridge from a command on the main thread to a future on an executor.
//!
//! Everything runs on the unpinned control executor; the one shard that a process must have ends
//! at once.

use std::future::Future;
use std::sync::{Arc, Mutex, PoisonError};

use super::Failure;
use crate::rt::{RingPlan, run_ring};

/// Runs the future that `main` makes until it ends, and hands its result to the caller. What it
/// spawned and left behind is cancelled then.
///
/// # Errors
/// The future's own; or the executors could not start.
pub(crate) fn run<T, M, F>(main: M) -> Result<T, Failure>
where
    T: Send + 'static,
    M: FnOnce() -> F + Send + 'static,
    F: Future<Output = Result<T, Failure>> + 'static,
{
    let main = Arc::new(Mutex::new(Some(main)));
    let result = Arc::new(Mutex::new(None));
    let ended = run_ring(RingPlan::default(), {
        let result = result.clone();
        move |executor| {
            let main = match executor.is_control() {
                true => main.lock().unwrap_or_else(PoisonError::into_inner).take(),
                false => None,
            };
            let result = result.clone();
            async move {
                let Some(main) = main else { return };
                let outcome = main().await;
                *result.lock().unwrap_or_else(PoisonError::into_inner) = Some(outcome);
            }
        }
    });
    let outcome = result.lock().unwrap_or_else(PoisonError::into_inner).take();
    match outcome {
        Some(outcome) => outcome,
        None => Err(ended
            .err()
            .map_or_else(|| "the executor ended early".into(), Failure::from)),
    }
}
