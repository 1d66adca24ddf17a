//! Clock and timers: monotonic instants in nanoseconds, wall time in milliseconds, sleeping and
//! time-outs.
//!
//! Any executor; `now` and `wall_ms` work on every thread. Real time comes from the vDSO (about
//! 25 ns a call); under the simulator both clocks are virtual and may drift from node to node.

use std::fmt;
use std::future::Future;
use std::ops::{Add, AddAssign, Sub};
use std::pin::pin;
use std::task::Poll;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use super::current::{Current, current, try_current};
use super::{ring, sim};

/// A point on the monotonic clock, in nanoseconds since the machine's (or the simulated node's)
/// boot. Comparable within one machine only.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Instant(pub u64);

impl Instant {
    pub fn as_nanos(self) -> u64 {
        self.0
    }

    /// Time from `earlier` to `self`; zero if `earlier` is later.
    pub fn since(self, earlier: Instant) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }

    /// Time from `self` until now.
    pub fn elapsed(self) -> Duration {
        now().since(self)
    }

    pub fn saturating_add(self, duration: Duration) -> Instant {
        Instant(self.0.saturating_add(nanos(duration)))
    }
}

fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

impl Add<Duration> for Instant {
    type Output = Instant;
    fn add(self, duration: Duration) -> Instant {
        self.saturating_add(duration)
    }
}

impl AddAssign<Duration> for Instant {
    fn add_assign(&mut self, duration: Duration) {
        *self = self.saturating_add(duration);
    }
}

impl Sub<Duration> for Instant {
    type Output = Instant;
    fn sub(self, duration: Duration) -> Instant {
        Instant(self.0.saturating_sub(nanos(duration)))
    }
}

impl Sub<Instant> for Instant {
    type Output = Duration;
    fn sub(self, earlier: Instant) -> Duration {
        self.since(earlier)
    }
}

impl fmt::Debug for Instant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{}.{:09}s",
            self.0 / 1_000_000_000,
            self.0 % 1_000_000_000
        )
    }
}

/// The monotonic clock of this machine, or of the simulated node whose task is running.
pub fn now() -> Instant {
    match try_current() {
        None | Some(Current::Ring(_)) => ring::sys::monotonic(),
        Some(Current::Sim(executor)) => executor.now(),
    }
}

/// Milliseconds since the Unix epoch: what record timestamps are made of. May jump and go back.
pub fn wall_ms() -> i64 {
    match try_current() {
        None | Some(Current::Ring(_)) => match SystemTime::now().duration_since(UNIX_EPOCH) {
            Ok(since) => i64::try_from(since.as_millis()).unwrap_or(i64::MAX),
            Err(before) => -i64::try_from(before.duration().as_millis()).unwrap_or(i64::MAX),
        },
        Some(Current::Sim(executor)) => executor.wall_ms(),
    }
}

/// Waits for `duration`. Dropping the future disarms the timer.
pub async fn sleep(duration: Duration) {
    match current() {
        Current::Ring(_) => ring::sleep(duration).await,
        Current::Sim(executor) => sim::Sleep::new(executor, duration).await,
    }
}

/// Waits until `deadline`; returns at the next turn of the reactor if it has passed.
pub async fn sleep_until(deadline: Instant) {
    sleep(deadline.since(now())).await;
}

/// [`sleep_until`], or for ever without a deadline: for a `select` arm that may be disabled.
pub async fn sleep_until_opt(deadline: Option<Instant>) {
    match deadline {
        Some(deadline) => sleep_until(deadline).await,
        None => std::future::pending().await,
    }
}

/// The time of a [`timeout`] ran out first.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("deadline has elapsed")]
pub struct Elapsed;

/// Runs `future` for at most `limit`; it is dropped when the time is up. A future that is ready
/// wins over a deadline that has passed.
pub async fn timeout<F: Future>(limit: Duration, future: F) -> Result<F::Output, Elapsed> {
    let mut future = pin!(future);
    let mut sleep = pin!(sleep(limit));
    std::future::poll_fn(|cx| {
        if let Poll::Ready(output) = future.as_mut().poll(cx) {
            return Poll::Ready(Ok(output));
        }
        sleep.as_mut().poll(cx).map(|()| Err(Elapsed))
    })
    .await
}
