//! The metrics of compaction, one instance a shard, under the names Kafka's LogCleaner and
//! LogCleanerManager give them. Brought up to date before a scrape; never on the path of a record.

use super::metrics::ShardLabels;
use crate::log::CleanerStats;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;
use std::sync::atomic::Ordering;

type Gauges = Family<ShardLabels, Gauge>;
type Counters = Family<ShardLabels, Counter>;

/// All families of compaction.
#[derive(Clone, Default)]
pub struct CleanerFamilies {
    max_dirty_percent: Gauges,
    recopy_percent: Gauges,
    max_clean_time_secs: Gauges,
    max_buffer_utilization_percent: Gauges,
    max_compaction_delay_secs: Gauges,
    time_since_last_run_ms: Gauges,
    uncleanable_partitions_count: Gauges,
    uncleanable_bytes: Gauges,
    passes: Counters,
    bytes_read: Counters,
    bytes_written: Counters,
}

impl CleanerFamilies {
    pub fn register(&self, registry: &mut Registry) {
        let gauges = [
            (
                "log_cleaner_max_dirty_percent",
                "Dirty share of the dirtiest compacted log",
                &self.max_dirty_percent,
            ),
            (
                "log_cleaner_recopy_percent",
                "What the last compaction wrote of what it read",
                &self.recopy_percent,
            ),
            (
                "log_cleaner_max_clean_time_secs",
                "How long the last compaction took",
                &self.max_clean_time_secs,
            ),
            (
                "log_cleaner_max_buffer_utilization_percent",
                "How full the dedupe buffer was in the last compaction",
                &self.max_buffer_utilization_percent,
            ),
            (
                "log_cleaner_max_compaction_delay_secs",
                "Longest time that a record has waited beyond max.compaction.lag.ms",
                &self.max_compaction_delay_secs,
            ),
            (
                "log_cleaner_time_since_last_run_ms",
                "Time since the cleaner last looked for a log to compact",
                &self.time_since_last_run_ms,
            ),
            (
                "log_cleaner_uncleanable_partitions_count",
                "Logs that failed to be compacted and are left alone",
                &self.uncleanable_partitions_count,
            ),
            (
                "log_cleaner_uncleanable_bytes",
                "Bytes in logs that are left alone",
                &self.uncleanable_bytes,
            ),
        ];
        for (name, help, family) in gauges {
            registry.register(name, help, family.clone());
        }
        let counters = [
            (
                "log_cleaner_passes",
                "Compactions of a log that were completed",
                &self.passes,
            ),
            (
                "log_cleaner_read_bytes",
                "Bytes that compaction has read",
                &self.bytes_read,
            ),
            (
                "log_cleaner_written_bytes",
                "Bytes that compaction has written",
                &self.bytes_written,
            ),
        ];
        for (name, help, family) in counters {
            registry.register(name, help, family.clone());
        }
    }

    /// What the cleaner of one shard tells at `now_ms`.
    pub fn set(&self, labels: &ShardLabels, stats: &CleanerStats, now_ms: i64) {
        let gauge = |family: &Gauges, value: i64| {
            family.get_or_create(labels).set(value);
        };
        let percent = |share: f64| (100.0 * share) as i64;
        let since = match stats.last_look_ms {
            0 => 0,
            last => now_ms.saturating_sub(last).max(0),
        };
        gauge(&self.max_dirty_percent, percent(stats.max_dirty_ratio));
        gauge(&self.recopy_percent, stats.recopy_percent() as i64);
        gauge(&self.max_clean_time_secs, stats.last_took.as_secs() as i64);
        gauge(
            &self.max_buffer_utilization_percent,
            percent(stats.last_map_utilization),
        );
        gauge(
            &self.max_compaction_delay_secs,
            stats.max_overdue.as_secs() as i64,
        );
        gauge(&self.time_since_last_run_ms, since);
        gauge(
            &self.uncleanable_partitions_count,
            stats.uncleanable_partitions as i64,
        );
        gauge(&self.uncleanable_bytes, stats.uncleanable_bytes as i64);
        let counter = |family: &Counters, value: u64| {
            let counter = family.get_or_create(labels);
            counter.inner().store(value, Ordering::Relaxed);
        };
        counter(&self.passes, stats.passes);
        counter(&self.bytes_read, stats.bytes_read);
        counter(&self.bytes_written, stats.bytes_written);
    }
}
