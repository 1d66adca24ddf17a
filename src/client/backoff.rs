//! How long to wait before the next attempt: doubling from a first delay to a longest one, with
//! jitter so that clients which failed together do not come back together (KIP-580).
//!
//! Pure; the caller brings the randomness.

use std::time::Duration;

/// Kafka's jitter: a fifth up or down.
const JITTER: f64 = 0.2;

/// A first and a longest delay, e.g. `retry.backoff.ms` and `retry.backoff.max.ms`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Backoff {
    pub first: Duration,
    pub longest: Duration,
}

impl Backoff {
    pub const fn from_ms(first: u64, longest: u64) -> Backoff {
        Backoff {
            first: Duration::from_millis(first),
            longest: Duration::from_millis(longest),
        }
    }

    /// The delay after `failures` failures in a row (0: none). `random` is any 64 bits.
    pub fn delay(&self, failures: u32, random: u64) -> Duration {
        if failures == 0 {
            return Duration::ZERO;
        }
        let doubled = self
            .first
            .saturating_mul(1u32.checked_shl(failures - 1).unwrap_or(u32::MAX));
        // 53 bits make a fraction that a double holds exactly.
        let fraction = (random >> 11) as f64 / (1u64 << 53) as f64;
        let factor = 1.0 - JITTER + 2.0 * JITTER * fraction;
        doubled.min(self.longest).mul_f64(factor).min(self.longest)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn delays_double_within_their_jitter_and_never_pass_the_longest() {
        let backoff = Backoff::from_ms(100, 1000);
        assert_eq!(backoff.delay(0, u64::MAX), Duration::ZERO);
        for (failures, low, high) in [(1, 80, 120), (2, 160, 240), (4, 640, 960), (5, 800, 1000)] {
            for random in [0, 1 << 40, 1 << 63, u64::MAX] {
                let delay = backoff.delay(failures, random).as_millis();
                assert!(
                    (low..=high).contains(&delay),
                    "{failures} failures: {delay} ms"
                );
            }
        }
        for failures in [32, 33, 64, u32::MAX] {
            assert!(backoff.delay(failures, u64::MAX) <= backoff.longest);
        }
    }
}
