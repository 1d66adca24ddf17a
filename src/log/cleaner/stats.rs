//! Owns the numbers that tell how the cleaner of a shard is doing. Plain data.

use std::time::Duration;

use super::pass::PassReport;

/// What metrics show; the names are those of Kafka's LogCleaner and LogCleanerManager.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct CleanerStats {
    pub passes: u64,
    /// Over all passes.
    pub bytes_read: u64,
    pub bytes_written: u64,
    /// Of the last pass.
    pub last_bytes_read: u64,
    pub last_bytes_written: u64,
    pub last_took: Duration,
    /// How full the offset map of the last pass got, 0 to 1.
    pub last_map_utilization: f64,
    /// Of the dirtiest log at the last look, 0 to 1.
    pub max_dirty_ratio: f64,
    /// The longest that a record has waited beyond its `max.compaction.lag.ms`, at the last look.
    pub max_overdue: Duration,
    /// When the cleaner last looked, wall clock in milliseconds; 0 before the first time.
    pub last_look_ms: i64,
    /// Logs that failed to clean and are left alone until the next start.
    pub uncleanable_partitions: usize,
    pub uncleanable_bytes: u64,
}

impl CleanerStats {
    pub(super) fn count(&mut self, report: &PassReport) {
        self.passes += 1;
        self.bytes_read += report.bytes_read;
        self.bytes_written += report.bytes_written;
        self.last_bytes_read = report.bytes_read;
        self.last_bytes_written = report.bytes_written;
        self.last_took = report.took;
        self.last_map_utilization = report.map_utilization;
    }

    /// `cleaner-recopy-percent`: what the last pass wrote of what it read.
    pub fn recopy_percent(&self) -> f64 {
        100.0 * self.last_bytes_written as f64 / self.last_bytes_read.max(1) as f64
    }
}
