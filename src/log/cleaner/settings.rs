//! Owns the cleaner's settings as plain values, a shard's share of each. Pure.

use std::time::Duration;

/// What the cleaner of one shard runs with.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct CleanerSettings {
    /// `log.cleaner.enable`.
    pub enabled: bool,
    /// `log.cleaner.backoff.ms`: the pause when nothing is to be cleaned.
    pub backoff: Duration,
    /// The shard's share of `log.cleaner.dedupe.buffer.size`.
    pub dedupe_bytes: u64,
    /// `log.cleaner.io.buffer.load.factor`: when the dedupe buffer counts as full.
    pub load_factor: f64,
    /// The shard's share of `log.cleaner.io.buffer.size`, half for reading, half for writing. A
    /// batch larger than that takes what it needs.
    pub io_buffer_bytes: usize,
    /// The shard's share of `log.cleaner.io.max.bytes.per.second`, read and written together.
    pub io_bytes_per_second: f64,
}

impl Default for CleanerSettings {
    /// Apache Kafka 4.4's, for a broker of one shard.
    fn default() -> CleanerSettings {
        CleanerSettings {
            enabled: true,
            backoff: Duration::from_secs(15),
            dedupe_bytes: 128 << 20,
            load_factor: 0.9,
            io_buffer_bytes: 512 << 10,
            io_bytes_per_second: f64::MAX,
        }
    }
}

impl CleanerSettings {
    /// The same for each of `shards`: the settings speak of the whole broker.
    pub fn shared_by(self, shards: usize) -> CleanerSettings {
        let shards = shards.max(1);
        CleanerSettings {
            dedupe_bytes: self.dedupe_bytes / shards as u64,
            io_buffer_bytes: self.io_buffer_bytes / shards,
            io_bytes_per_second: self.io_bytes_per_second / shards as f64,
            ..self
        }
    }
}
