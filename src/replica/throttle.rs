//! How fast replicas that are not in sync may be copied (KIP-73): bytes over a sliding window
//! against a rate. Pure; one for what a shard leads and one for what it follows, each with its
//! share of the broker's rate. Replicas in sync are counted but never held up.

use crate::rt::Instant;
use std::collections::VecDeque;
use std::time::Duration;

/// `replication.quota.window.size.seconds` and `.num` of Kafka.
const WINDOW: Duration = Duration::from_secs(1);
const WINDOWS: u32 = 11;

/// See the module's words.
#[derive(Debug, Default)]
pub struct Throttle {
    /// Bytes a second; `None` without limit.
    rate: Option<u64>,
    /// Beginning and bytes of each window in which there were some.
    windows: VecDeque<(Instant, u64)>,
}

impl Throttle {
    pub fn set_rate(&mut self, rate: Option<u64>) {
        self.rate = rate;
    }

    pub fn record(&mut self, bytes: u64, now: Instant) {
        if self.rate.is_none() || bytes == 0 {
            return;
        }
        self.forget(now);
        match self.windows.back_mut() {
            Some((begun, sum)) if now.since(*begun) < WINDOW => *sum += bytes,
            _ => self.windows.push_back((now, bytes)),
        }
    }

    /// Whether more was copied than the rate allows. As in Kafka the rate is taken over all whole
    /// windows also while fewer have passed.
    pub fn is_exceeded(&mut self, now: Instant) -> bool {
        let Some(rate) = self.rate else {
            return false;
        };
        self.forget(now);
        let Some((oldest, _)) = self.windows.front() else {
            return false;
        };
        let elapsed = now.since(*oldest).max(WINDOW * (WINDOWS - 1));
        let bytes: u64 = self.windows.iter().map(|(_, bytes)| bytes).sum();
        bytes as f64 / elapsed.as_secs_f64() > rate as f64
    }

    fn forget(&mut self, now: Instant) {
        let span = WINDOW * WINDOWS;
        while let Some((begun, _)) = self.windows.front()
            && now.since(*begun) >= span
        {
            self.windows.pop_front();
        }
    }
}

/// Whether a list of throttled replicas (`*`, or `partition:broker,...`) names this one.
pub fn is_throttled(list: &str, partition: i32, broker: i32) -> bool {
    let list = list.trim();
    if list == "*" {
        return true;
    }
    list.split(',').any(|entry| {
        entry.split_once(':').is_some_and(|(index, id)| {
            index.trim().parse() == Ok(partition) && id.trim().parse() == Ok(broker)
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Instant {
        Instant(seconds * 1_000_000_000)
    }

    #[test]
    fn a_rate_is_kept_over_its_windows_and_a_burst_is_paid_for() {
        let mut throttle = Throttle::default();
        throttle.record(1 << 30, at(0));
        assert!(!throttle.is_exceeded(at(0)), "no limit");
        throttle.set_rate(Some(100));
        throttle.record(1000, at(1));
        assert!(!throttle.is_exceeded(at(1)), "ten windows' worth");
        throttle.record(1, at(1));
        assert!(throttle.is_exceeded(at(1)));
        throttle.record(500, at(6));
        assert!(throttle.is_exceeded(at(11)));
        assert!(!throttle.is_exceeded(at(12)), "the burst is forgotten");
        assert!(!throttle.is_exceeded(at(60)));
    }

    #[test]
    fn throttled_replicas_are_named_by_partition_and_broker() {
        for (list, named) in [
            ("", false),
            ("*", true),
            ("3:1", true),
            ("0:1, 3:1", true),
            ("3:2,1:3", false),
            ("x", false),
        ] {
            assert_eq!(is_throttled(list, 3, 1), named, "{list}");
        }
    }
}
