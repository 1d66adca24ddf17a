//! Owns the counters of a shard's appends: what the logs were given, what they wrote for it, and
//! how much of it is still on its way. On the shard; every log of it adds to the same counters.
//! It decides nothing.

use std::cell::Cell;

/// Counters of the appends of one shard, for metrics and benches. The two gauges say what holds
/// now, everything else grows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AppendStats {
    /// Batches taken into a log.
    pub batches: u64,
    pub bytes_appended: u64,
    /// Write calls for them: on the spot, behind, and what fills a shared block.
    pub writes: u64,
    /// Batches that went out in the write of the batch before them.
    pub merged: u64,
    /// Bytes of those calls. With O_DIRECT more than was appended: whole blocks, the partial
    /// ones once more by every write that begins in them.
    pub bytes_written: u64,
    /// Zeros written ahead of the data.
    pub bytes_zeroed: u64,
    /// Writes that found no space reserved and had to wait for it.
    pub space_waits: u64,
    /// Gauge: bytes queued or in flight.
    pub behind_bytes: u64,
    /// Gauge: writes in flight.
    pub in_flight: u64,
}

impl AppendStats {
    /// Bytes written, zeros ahead included, per byte appended.
    pub fn amplification(&self) -> f64 {
        (self.bytes_written + self.bytes_zeroed) as f64 / self.bytes_appended.max(1) as f64
    }
}

/// The counters as the logs of a shard share them.
#[derive(Default)]
pub(super) struct AppendCounters(Cell<AppendStats>);

impl AppendCounters {
    pub(super) fn get(&self) -> AppendStats {
        self.0.get()
    }

    pub(super) fn count(&self, add: impl FnOnce(&mut AppendStats)) {
        let mut stats = self.0.get();
        add(&mut stats);
        self.0.set(stats);
    }

    /// One write call that carried `batches`.
    pub(super) fn wrote(&self, bytes: u64, batches: u64) {
        self.count(|stats| {
            stats.writes += 1;
            stats.bytes_written += bytes;
            stats.merged += batches.saturating_sub(1);
        });
    }
}
