//! Owns the effective settings of one log as plain values, and the names of the durability rows.
//! Pure, any core. It never reads a property file: the `config` room resolves topic, broker and
//! default settings and hands the result down.

use crate::wire::batch::TimestampType;
use crate::wire::codec::Codec;

use super::validator::INFLATED_BYTES_DEFAULT;

/// How segment bytes reach the disk (`highwater.segment.io`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SegmentIo {
    /// Through the page cache, as Kafka does.
    Buffered,
    /// O_DIRECT in aligned blocks.
    Direct,
}

/// When a replica may count a record as its own, and what that record then survives.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Durability {
    /// Counted when written into the page cache: survives the process, not the host.
    PageCache,
    /// Counted when an fdatasync covering it completed: survives power loss.
    PageCacheFlushed,
    /// Counted when the O_DIRECT write completed: survives power loss only with a non-volatile
    /// device cache.
    Direct,
    /// Counted when the O_DIRECT write and an fdatasync covering it completed.
    DirectFlushed,
}

impl Durability {
    /// True when a record counts only once an fdatasync covers it.
    pub fn waits_for_flush(self) -> bool {
        matches!(
            self,
            Durability::PageCacheFlushed | Durability::DirectFlushed
        )
    }
}

/// The settings of one log, all of them effective values (topic over broker over default).
/// Times are milliseconds, sizes bytes; -1 means "no limit" where Kafka says so.
#[derive(Clone, PartialEq, Debug)]
pub struct LogConfig {
    pub segment_bytes: u32,
    pub segment_ms: i64,
    pub segment_jitter_ms: i64,
    pub index_interval_bytes: u32,
    pub segment_index_bytes: u32,
    pub max_message_bytes: u32,
    pub max_decompressed_message_bytes: u32,
    /// What a producer's compressed batch may inflate to.
    pub inflated_batch_bytes: u32,
    /// `cleanup.policy` contains `compact`.
    pub compact: bool,
    /// `cleanup.policy` contains `delete`.
    pub delete: bool,
    pub timestamp_type: TimestampType,
    pub timestamp_before_max_ms: i64,
    pub timestamp_after_max_ms: i64,
    /// `compression.type`; `None` is `producer`, keep what the producer chose.
    pub compression: Option<Codec>,
    /// The level for `compression`, where its codec has levels.
    pub compression_level: Option<i32>,
    pub retention_ms: i64,
    pub retention_bytes: i64,
    /// How long compaction keeps a tombstone after it has first met it.
    pub delete_retention_ms: i64,
    pub min_cleanable_dirty_ratio: f64,
    pub min_compaction_lag_ms: i64,
    pub max_compaction_lag_ms: i64,
    /// Records after which a flush is asked for; `i64::MAX` leaves it to the system.
    pub flush_messages: i64,
    pub flush_ms: i64,
    pub file_delete_delay_ms: i64,
    pub segment_io: SegmentIo,
    pub preallocate: bool,
}

impl Default for LogConfig {
    /// Apache Kafka 4.4's defaults.
    fn default() -> LogConfig {
        LogConfig {
            segment_bytes: 1 << 30,
            segment_ms: 7 * 24 * 3_600_000,
            segment_jitter_ms: 0,
            index_interval_bytes: 4096,
            segment_index_bytes: 10 << 20,
            max_message_bytes: (1 << 20) + 12,
            max_decompressed_message_bytes: i32::MAX as u32 - 8,
            inflated_batch_bytes: INFLATED_BYTES_DEFAULT as u32,
            compact: false,
            delete: true,
            timestamp_type: TimestampType::CreateTime,
            timestamp_before_max_ms: i64::MAX,
            timestamp_after_max_ms: 3_600_000,
            compression: None,
            compression_level: None,
            retention_ms: 7 * 24 * 3_600_000,
            retention_bytes: -1,
            delete_retention_ms: 24 * 3_600_000,
            min_cleanable_dirty_ratio: 0.5,
            min_compaction_lag_ms: 0,
            max_compaction_lag_ms: i64::MAX,
            flush_messages: i64::MAX,
            flush_ms: i64::MAX,
            file_delete_delay_ms: 60_000,
            segment_io: SegmentIo::Buffered,
            preallocate: false,
        }
    }
}

impl LogConfig {
    /// The durability row these settings choose. Only `flush.messages=1` makes every
    /// acknowledgement wait for the disk: with a larger value those of the records in between come
    /// from memory, as in Kafka, and [`FlushInterval`](super::flush_interval) says which wait.
    pub fn durability(&self) -> Durability {
        match (self.segment_io, self.flush_messages <= 1) {
            (SegmentIo::Buffered, false) => Durability::PageCache,
            (SegmentIo::Buffered, true) => Durability::PageCacheFlushed,
            (SegmentIo::Direct, false) => Durability::Direct,
            (SegmentIo::Direct, true) => Durability::DirectFlushed,
        }
    }

    /// Whether segment files may be longer than what was written to them: zeros at the end of one
    /// are no lost records then.
    pub fn reserves_space(&self) -> bool {
        let row = self.durability();
        self.preallocate || row.waits_for_flush() || self.segment_io == SegmentIo::Direct
    }

    /// Entries an index file of `entry_bytes` per entry may hold (`segment.index.bytes` rounded
    /// down to whole entries, never less than two).
    pub fn max_index_entries(&self, entry_bytes: u32) -> usize {
        (self.segment_index_bytes / entry_bytes).max(2) as usize
    }

    /// How long a segment may be open before it rolls, given the jitter drawn at its creation. A
    /// compacted log rolls in time for `max.compaction.lag.ms`: the active segment is not cleaned.
    pub fn roll_after_ms(&self, jitter_ms: i64) -> i64 {
        let segment_ms = if self.compact && self.max_compaction_lag_ms > 0 {
            self.segment_ms.min(self.max_compaction_lag_ms)
        } else {
            self.segment_ms
        };
        segment_ms.saturating_sub(jitter_ms).max(0)
    }
}
