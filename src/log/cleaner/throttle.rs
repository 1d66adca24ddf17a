//! Owns how long a pass must rest so that it stays under `log.cleaner.io.max.bytes.per.second`.
//! Pure: it is told the time.

use std::time::Duration;

use crate::rt::Instant;

/// Paces bytes read and written.
#[derive(Clone, Copy, Debug)]
pub struct Throttle {
    bytes_per_second: f64,
    /// When what was taken so far is paid for.
    paid: Instant,
}

impl Throttle {
    /// A rate that is not positive is no rate.
    pub fn new(bytes_per_second: f64, now: Instant) -> Throttle {
        Throttle {
            bytes_per_second: if bytes_per_second > 0.0 {
                bytes_per_second
            } else {
                f64::INFINITY
            },
            paid: now,
        }
    }

    /// Takes `bytes`; how long to rest before the next ones.
    pub fn take(&mut self, bytes: u64, now: Instant) -> Duration {
        // The longest rest that a duration is made of, however slow the rate.
        const REST_MAX_SECONDS: f64 = 86_400.0;
        let cost = (bytes as f64 / self.bytes_per_second).min(REST_MAX_SECONDS);
        self.paid = self
            .paid
            .max(now)
            .saturating_add(Duration::from_secs_f64(cost));
        self.paid.since(now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ms: u64) -> Instant {
        Instant(ms * 1_000_000)
    }

    #[test]
    fn a_pass_rests_until_its_bytes_are_paid_for() {
        let mut throttle = Throttle::new(1000.0, at(0));
        assert_eq!(throttle.take(500, at(0)), Duration::from_millis(500));
        assert_eq!(throttle.take(500, at(500)), Duration::from_millis(500));
        assert_eq!(throttle.take(100, at(700)), Duration::from_millis(400));
        // Time that was not used is not saved up for a burst.
        assert_eq!(throttle.take(100, at(60_000)), Duration::from_millis(100));
    }

    #[test]
    fn without_a_rate_nothing_rests() {
        for rate in [f64::MAX, f64::INFINITY, 0.0, -1.0, f64::NAN] {
            let mut throttle = Throttle::new(rate, at(0));
            assert_eq!(throttle.take(1 << 30, at(0)), Duration::ZERO, "{rate}");
        }
        let mut slow = Throttle::new(f64::MIN_POSITIVE, at(0));
        assert!(slow.take(u64::MAX, at(0)) <= Duration::from_secs(86_400));
    }
}
