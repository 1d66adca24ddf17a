//! Metrics of the way of bytes to the disk: appends, writes and flush rounds of each shard. The
//! shard counts in plain numbers; a scrape's refresh brings them here. Decides nothing.

use std::sync::atomic::AtomicU64;

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::{Registry, Unit};

use super::metrics::ShardLabels;
use crate::log::LogShard;

type Counters = Family<ShardLabels, Counter>;
type Gauges = Family<ShardLabels, Gauge>;

/// The metric families of the shards' appenders.
#[derive(Clone, Default)]
pub struct LogFamilies {
    batches: Counters,
    appended: Counters,
    writes: Counters,
    merged: Counters,
    written: Counters,
    zeroed: Counters,
    space_waits: Counters,
    behind: Gauges,
    in_flight: Gauges,
    flush_rounds: Counters,
    flush_waiters: Counters,
    flush_batches: Counters,
    flushed_files: Counters,
    flush_time: Family<ShardLabels, Counter<f64, AtomicU64>>,
    journal_frames: Counters,
    journal_written: Counters,
}

impl LogFamilies {
    pub fn register(&self, registry: &mut Registry) {
        let mut plain = |name: &str, help: &str, family: &Counters| {
            registry.register(name, help, family.clone());
        };
        plain("log_batches", "Batches appended", &self.batches);
        plain(
            "log_writes",
            "Writes of appended batches to segment files",
            &self.writes,
        );
        plain(
            "log_merged_batches",
            "Batches that shared the write of the batch before them",
            &self.merged,
        );
        plain(
            "log_space_waits",
            "Direct writes that had to wait for file space to be reserved",
            &self.space_waits,
        );
        plain("log_flush_rounds", "Flush rounds", &self.flush_rounds);
        plain(
            "log_flush_waiters",
            "Logs that waited for a flush round, over all rounds",
            &self.flush_waiters,
        );
        plain(
            "log_flush_batches",
            "Batches that waited for a flush round, over all rounds",
            &self.flush_batches,
        );
        plain(
            "log_journal_frames",
            "Frames written to the flush journals",
            &self.journal_frames,
        );
        plain(
            "log_flushed_files",
            "Files flushed, over all rounds",
            &self.flushed_files,
        );
        let mut bytes = |name: &str, help: &str, family: &Counters| {
            registry.register_with_unit(name, help, Unit::Bytes, family.clone());
        };
        bytes("log_appended", "Bytes of batches appended", &self.appended);
        bytes(
            "log_written",
            "Bytes written for them, whole blocks where the write is direct",
            &self.written,
        );
        bytes(
            "log_journal_written",
            "Bytes of the frames of the flush journals",
            &self.journal_written,
        );
        bytes(
            "log_zeroed",
            "Zeros written ahead of the data",
            &self.zeroed,
        );
        registry.register_with_unit(
            "log_flush_time",
            "Time spent in flush rounds; rounds by journal and by segment may overlap",
            Unit::Seconds,
            self.flush_time.clone(),
        );
        registry.register_with_unit(
            "log_behind",
            "Bytes appended that are queued or being written",
            Unit::Bytes,
            self.behind.clone(),
        );
        registry.register(
            "log_writes_in_flight",
            "Direct writes in flight",
            self.in_flight.clone(),
        );
    }

    /// Brings the families up to what the shard has counted.
    pub fn refresh(&self, labels: &ShardLabels, shard: &LogShard) {
        let (appends, flushes) = (shard.append_stats(), shard.flush_stats());
        let grow = |family: &Counters, value: u64| {
            let counter = family.get_or_create(labels);
            counter.inc_by(value.saturating_sub(counter.get()));
        };
        grow(&self.batches, appends.batches);
        grow(&self.appended, appends.bytes_appended);
        grow(&self.writes, appends.writes);
        grow(&self.merged, appends.merged);
        grow(&self.written, appends.bytes_written);
        grow(&self.zeroed, appends.bytes_zeroed);
        grow(&self.space_waits, appends.space_waits);
        grow(&self.flush_rounds, flushes.rounds);
        grow(&self.flush_waiters, flushes.logs);
        grow(&self.flushed_files, flushes.files);
        grow(&self.flush_batches, flushes.batches);
        grow(&self.journal_frames, flushes.journal_frames);
        grow(&self.journal_written, flushes.journal_bytes);
        let time = self.flush_time.get_or_create(labels);
        time.inc_by((flushes.time.as_secs_f64() - time.get()).max(0.0));
        let set = |family: &Gauges, value: u64| {
            family.get_or_create(labels).set(value as i64);
        };
        set(&self.behind, appends.behind_bytes);
        set(&self.in_flight, appends.in_flight);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::log::ShardLimits;

    #[test]
    fn a_scrape_shows_what_the_shard_counted_and_never_counts_it_twice() {
        let shard = LogShard::new(ShardLimits::default());
        shard.count_for_test(3, 4096);
        let families = LogFamilies::default();
        let mut registry = Registry::with_prefix("highwater");
        families.register(&mut registry);
        for _ in 0..2 {
            families.refresh(&ShardLabels { shard: 1 }, &shard);
        }
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &registry).unwrap();
        for line in [
            "highwater_log_writes_total{shard=\"1\"} 1",
            "highwater_log_merged_batches_total{shard=\"1\"} 2",
            "highwater_log_written_bytes_total{shard=\"1\"} 4096",
            "highwater_log_flush_rounds_total{shard=\"1\"} 0",
            "highwater_log_writes_in_flight{shard=\"1\"} 0",
            "highwater_log_flush_time_seconds_total{shard=\"1\"} 0.0",
        ] {
            assert!(text.contains(line), "{line} in\n{text}");
        }
    }
}
